"""The stencil that measures large rectangles, on a small one, with both machines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshc.sim.csl_compiler import compile_program
from meshc.sim.host.host_operations import Runtime
from meshc.sim.stored_programs import save_program

LAYOUT = Path(__file__).parents[2] / "benchmarks" / "stencil" / "layout.csl"


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize(("width", "height"), [(6, 5), (1, 4)])
def test_the_stencil(tmp_path: Path, arch: str, width: int, height: int) -> None:
    sizes = {"width": width, "height": height, "depth": 3}
    save_program(compile_program(str(LAYOUT), arch, sizes, {}, (0, 0), (4, 1)), tmp_path)
    runtime, region = Runtime(str(tmp_path)), (0, 0, width, height)
    field = np.arange(height * width * 3, dtype=np.float32).reshape(height, width, 3)
    runtime.h2d("field", field, region, 3, 0, 0)
    runtime.launch("run", (2,))
    result = np.zeros(field.size, np.float32)
    runtime.d2h(result, "field", region, 3, 0, 0)
    for _ in range(2):
        padded = np.pad(field, ((1, 1), (1, 1), (0, 0)))
        around = padded[2:, 1:-1] + padded[:-2, 1:-1] + padded[1:-1, 2:] + padded[1:-1, :-2]
        field = (4 * field + around) / np.float32(8)
    np.testing.assert_allclose(result, field.ravel(), rtol=1e-6)
