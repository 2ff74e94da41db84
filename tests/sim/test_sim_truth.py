"""Every row of benchmarks/simulator_truth.py, on both machines: how far it is from the truth."""

from __future__ import annotations

import pytest
from reduced import only
from simulator_truth import ROWS, TASKS, Row, result_of

OTHER_SIZES = ("stencil of 16x16", "stencil of 22x22", "stencil of 64x64")
IN_CI = [row for row in ROWS if not row.name.startswith(OTHER_SIZES)]
"""Of stencils the sizes 8x8 and 32x32."""


@pytest.mark.parametrize("row", only(ROWS, *IN_CI), ids=lambda row: row.name)
def test_row(row: Row) -> None:
    """Vector code and the fabric within 5 %, scalar code and tasks within 15 %."""
    assert abs(result_of(row).error) <= (0.15 if row in TASKS else 0.05)
