"""The simulator runs emitted CSL for these tests as it does for those of the back end."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "backends" / "csl"))
