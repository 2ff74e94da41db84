"""``python -m meshc``: the command line."""

import sys

from meshc.cli import main

if __name__ == "__main__":
    sys.exit(main())
