"""Wide products of weights that stay quantised: divided where a step is predicted to be faster."""

import pytest
from reduced import only

from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.ir.ops import task
from meshc.support.diagnostics import Diagnostics


@pytest.mark.parametrize(
    ("form", "divided"), only([("e4m3_128", True), ("int4_128", False)], ("e4m3_128", True))
)
def test_wide_products_are_divided_where_that_is_faster(form, divided):
    """A ring has room for three tiles more, for which blocks wait whose tiles are decoded before
    the next ones come."""
    request = CompileRequest(
        target="cuda", device="h200", phase="decode", dtype="f16", seq=1024,
        keep_quantised=(f"all={form}",),
    )  # fmt: skip
    made = compile_loaded(load_any("llama-3-8b", Diagnostics()), request, verified=False)
    module = made.modules["decode"]
    names = [op.name for op in module.walk() if isinstance(op, task.Phase)]
    assert ("y_sum" in names) == divided
