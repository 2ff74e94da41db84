"""Every CSL program of these tests runs on both machines, which must agree (see twin.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twin import Twin

from meshc.sim.cgen.build import C
from meshc.sim.host import runtime


@pytest.fixture(autouse=True)
def both_machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs run on both machines; on the Python machine alone without a C compiler."""
    if C.path() is not None:
        make: Any = Twin
        monkeypatch.setattr(runtime, "make_machine", make)
    yield
