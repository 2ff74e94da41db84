"""Prints what tests take of a core, file by file, the processes among it that they start and await.

    python tools/times_of_tests.py tests/driver/planning [further arguments of pytest]

What files share, such as imports and what is kept from one to the next, is counted where it is
first needed, or in the sum alone.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence

import pytest


class Times:
    """A plugin of pytest that adds up the seconds of each file."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self._began = 0.0

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins, with what has to be set up for it."""
        self._began = seconds()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A test has ended."""
        self.files[nodeid.partition("::")[0]] += seconds() - self._began


def seconds() -> float:
    """Processor time of this process and of those that it has awaited."""
    return sum(os.times()[:4])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests as CI chooses them, one after the other, and print their times."""
    times = Times()
    given = sys.argv[1:] if arguments is None else [*arguments]
    code = pytest.main(["-q", "-n0", "-m", "not slow", *given], plugins=[times])
    for file, taken in times.files.most_common():
        print(f"{taken:7.1f} s  {file}")
    print(f"{seconds():7.1f} s  in all")
    return int(code)


if __name__ == "__main__":
    raise SystemExit(main())
