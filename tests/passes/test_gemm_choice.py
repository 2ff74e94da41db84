"""Which algorithm select-gemm takes when none is asked for, and what it says about it."""

import re
from pathlib import Path

import numpy as np
import pytest

import meshc
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.ir.ops import mesh as ops
from meshc.support.diagnostics import Diagnostics

PRODUCT = """\
model product(M={n}, K={n}, N={n}) {{
  weights f32  accumulate f32
  param w[K, N]
  main(x[M, K]) -> [M, N] {{ return x @ w }}
}}
"""
EXAMPLES = Path(__file__).parents[2] / "examples"


def compiled(source, **options):
    """Algorithms of the products, and the remark about them."""
    report = Diagnostics()
    loaded = load_any(str(source), report)
    request = CompileRequest(compile_to="mesh", **options)
    modules = compile_loaded(loaded, request, (), report).modules
    found = {o.algo for m in modules.values() for o in m.walk() if isinstance(o, ops.Gemm)}
    return found, next(m.message for m in report.messages if m.code == "gemm")


def product(folder, n, **options):
    source = folder / "product.mesh"
    source.write_text(PRODUCT.format(n=n))
    return compiled(source, **options)


@pytest.mark.parametrize("device", ["wse2", "wse3"])
def test_an_allgather_where_a_core_has_the_memory(device, tmp_path):
    algos, remark = product(tmp_path, 32, device=device, mesh="4x4", dtype="f16")
    assert algos == {"allgather"}
    assert remark.startswith("1 products: allgather") and "M of PLMR" not in remark
    assert "hops" in remark and "stages" in remark and "colors" in remark and "bytes" in remark


def test_mesh_gemm_where_it_has_not(tmp_path):
    """Two gathered operands take 19 KiB each of 37 that a core has."""
    algos, remark = product(tmp_path, 600, device="wse2", mesh="16x16", dtype="f16")
    assert algos == {"cyclic_shift"}
    assert "allgather" in remark and "for which a core may lack room: M of PLMR" in remark


def test_what_has_fewer_cycles_and_is_not_chosen_has_a_reason(tmp_path):
    """SUMMA has, and its axes are natural; nobody asks why where an algorithm is asked for."""
    where = {"device": "wse2", "mesh": "16x16", "dtype": "f16"}
    algos, remark = product(tmp_path, 600, **where)
    chosen, others = remark.split("(")
    least = int(re.search(r"(\d+) cycles", chosen)[1])
    assert algos == {"cyclic_shift"}
    for other in others.split("; "):
        fewer = int(re.search(r"(\d+) cycles", other)[1]) < least
        assert ("natural order" in other) == fewer, other
    assert "switch tables" in remark
    _, remark = product(tmp_path, 600, **where, algo=("gemm=cyclic_shift",))
    assert "natural order" not in remark


def test_a_device_without_a_limit_takes_what_scales(tmp_path):
    algos, _ = product(tmp_path, 32, device="ideal", mesh="4x4")
    assert algos == {"cyclic_shift"}


def test_heads_need_no_skew():
    """Heads and their lanes share an axis as one dim, which may lie straight."""
    options = {"device": "wse2", "mesh": "2x2", "seq": 8}
    source = EXAMPLES / "attention.mesh"
    assert "summa" in compiled(source, **options, algo=("gemm=summa",))[0]


def test_weights_that_a_loop_hands_on_lie_straight_behind_it_too(tmp_path):
    """The loop's own product is dead, and its weights stay among what it carries."""
    source = tmp_path / "dead.mesh"
    source.write_text(
        """model dead(M=8, N=7, K=2, layers=2) {
  param w[N, K], v[K, N]
  main(x[M, N]) {
    y = (x @ w) @ v
    repeat layers {
      x = (y @ w) @ v
      x = y + y
    }
    return x
  }
}
"""
    )
    random = np.random.default_rng(1)
    x, w, v = (random.normal(size=shape) for shape in ((8, 7), (7, 2), (2, 7)))
    found = meshc.compile(source, mesh="4x4", algo=("gemm=allgather",))
    (result,) = found.load({"w": w, "v": v}).run({"x": x}).values()
    np.testing.assert_allclose(result, 2 * (x @ w @ v), atol=1e-5)
