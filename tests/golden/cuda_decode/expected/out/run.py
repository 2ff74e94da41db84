"""Generate tokens with the kernels of this directory.

    python run.py --prompt-ids 5,17,42 --max-tokens 8 [--backend cuda|cuda-cpu] [--weights PATH]

The same as `meshc run DIR` with this directory; `--help` lists all options.
"""

import sys
from pathlib import Path

from meshc.cli import main

if __name__ == "__main__":
    sys.exit(main(["run", str(Path(__file__).resolve().parent), *sys.argv[1:]]))
