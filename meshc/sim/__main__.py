"""``python -m meshc.sim``"""

import sys

from meshc.sim.commands import main

sys.exit(main())
