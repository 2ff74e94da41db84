"""Every row of benchmarks/simulator_truth.py, on both machines: how far it is from the truth."""

from __future__ import annotations

import pytest
from simulator_truth import ROWS, Row, result_of

SCALAR = ("scalar loop", "f32 to i16", "f32 division", "data task")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(row: Row) -> None:
    """Vector code within 5 %, scalar code and tasks within 20 %."""
    allowed = 0.2 if row.name.startswith(SCALAR) else 0.05
    assert abs(result_of(row).error) <= allowed
