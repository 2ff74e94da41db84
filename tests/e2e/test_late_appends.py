"""Models that append values behind the scores, or values first: each cache is read as itself."""

import pytest

from meshc.driver import CompileRequest, graph_module, load_any
from meshc.interp.check import check_same
from meshc.passes.manager import PassManager
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import Diagnostics

VALUES_LATE = """model m(E=8, H=4, G=2, D=4) {
  weights f32  accumulate f32
  heads H share G
  param wq[E, H, D], wk[E, G, D], wv[E, G, D], wo[H, D, E]
  main(x[B, L, E]) -> [B, L, E] {
    k = append(cache.k, x @ wk)
    s = softmax((x @ wq) @ transpose(k) / sqrt(D), mask = causal)
    return x + (s @ append(cache.v, x @ wv)) @ wo
  }
}
"""


VALUES_FIRST = VALUES_LATE.replace("    k = ", "    v = append(cache.v, x @ wv)\n    k = ").replace(
    "s @ append(cache.v, x @ wv)", "s @ v"
)


@pytest.mark.parametrize("model", [VALUES_LATE, VALUES_FIRST], ids=["late", "first"])
@pytest.mark.parametrize("mesh", ["1x1", "2x2", "4x3"])
def test_each_product_reads_its_own_cache(tmp_path, mesh, model):
    path = tmp_path / "m.mesh"
    path.write_text(model)
    loaded = load_any(str(path), Diagnostics())
    for phase in loaded.phases():
        request = CompileRequest(mesh=mesh, seq=7)
        graph, before = (graph_module(loaded, phase, request) for _ in range(2))
        tile = PassManager(pipeline_to("tile", request.settings())).run(graph)
        assert check_same(before, tile).agrees
