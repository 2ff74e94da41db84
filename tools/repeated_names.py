"""Lists the names that several files of a folder have, so that a reader can judge them.

    python tools/repeated_names.py [FOLDER] [--least N]

Each line has a name and the folders in which it occurs, those of most files first. A name may well
occur twice where the folders make the difference clear (``passes/mesh/forms/gemm.py``,
``passes/tile/expand/gemm.py``); where they do not, one of the files should be renamed.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "meshc"
EVERYWHERE = {"__init__.py", "__main__.py"}


def repeated(folder: Path, least: int = 2) -> dict[str, list[str]]:
    """Names that ``least`` Python files or more below ``folder`` have, with their folders in it."""
    places = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        if path.name not in EVERYWHERE:
            places[path.name].append(path.parent.relative_to(folder).as_posix())
    found = {name: sorted(where) for name, where in places.items() if len(where) >= least}
    return dict(sorted(found.items(), key=lambda entry: (-len(entry[1]), entry[0])))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the repeated names of a folder and how many there are."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=PACKAGE)
    parser.add_argument("--least", type=int, default=2, help="list names of so many files or more")
    given = parser.parse_args(arguments)
    found = repeated(given.folder, given.least)
    for name, where in found.items():
        print(f"{name}: {', '.join(where)}")
    print(f"{len(found)} names occur {given.least} times or more")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
