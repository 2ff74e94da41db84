"""Every row of benchmarks/simulator_truth.py, on both machines: how far it is from the truth."""

from __future__ import annotations

import pytest
from simulator_truth import ROWS, TASKS, Row, result_of


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(row: Row) -> None:
    """Vector code and the fabric within 5 %, scalar code and tasks within 20 %."""
    assert abs(result_of(row).error) <= (0.2 if row in TASKS else 0.05)
