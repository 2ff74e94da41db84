"""Every CSL program of these tests runs on both machines, which must agree (see twin.py)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twin import Twin

from meshc.sim.cgen.build import C
from meshc.sim.host import host_operations

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks")]


@pytest.fixture(autouse=True)
def both_machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs run on both machines; on the Python machine alone without a C compiler."""
    if C.path() is not None:
        make: Any = Twin
        monkeypatch.setattr(host_operations, "make_machine", make)
    yield


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run writes ``sim.log`` to the current directory, as that of the vendor does."""
    monkeypatch.chdir(tmp_path)
