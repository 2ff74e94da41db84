"""The squared ReLU on every target that has it, against sums written out here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from csl_runs import run_files
from tensor_programs import assert_close, graph_of, random_tensors, results

import meshc
from meshc.backends import cuda
from meshc.backends.cuda.chunk_launches import chunk_of
from meshc.ir.module import Module
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source

TEXT = """
model squares(M=3, E=6, F=10) {
  param w[E, F], v[F, E]
  main(x[M, E]) -> [M, E] { return relu2(x @ w) @ v + relu2(x) }
}
"""


def wanted(x: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
    """``relu2(x w) v + relu2(x)``, element by element."""
    rows, inner, features = len(x), w.shape[1], x.shape[1]
    found = np.zeros((rows, features))
    for m in range(rows):
        for e in range(features):
            total = x[m, e] ** 2 if x[m, e] > 0 else 0.0
            for f in range(inner):
                hidden = sum(x[m, k] * w[k, f] for k in range(features))
                total += hidden * hidden * v[f, e] if hidden > 0 else 0.0
            found[m, e] = total
    return found


@pytest.mark.parametrize("mesh", ["1x1", "2x3", "4x4"])
def test_on_python(tmp_path: Path, mesh: str) -> None:
    tensors = random_tensors(graph_of(TEXT, mesh))
    found = results(tmp_path, TEXT, mesh, tensors)
    assert_close(found, [wanted(tensors["x"], tensors["w"], tensors["v"])])


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_on_csl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    (tmp_path / "m.mesh").write_text(TEXT)
    found = meshc.compile(tmp_path / "m.mesh", target="csl", device="wse2", mesh="2x2", dtype=dtype)
    tensors = random_tensors(graph_of(TEXT, "2x2"))
    (tmp_path / "out").mkdir()
    given, _ = run_files(found.files, tensors, tmp_path / "out", monkeypatch)
    (got,) = given.values()
    exact = wanted(*(tensors[name].astype(dtype.replace("f", "float")) for name in "xwv"))
    unit = 2.0**-10 if dtype == "f16" else 2.0**-22
    assert np.abs(got - exact).max() <= 16 * unit * np.abs(exact).max()


def fused(function: str) -> Module:
    """A decode step whose feed-forward layer has ``function`` at its gate, in kernels of a GPU."""
    path = Path(__file__).parents[1] / "passes/fuse_chunk/feed_forward_by_gelu.meshir"
    text, _, _ = path.read_text(encoding="utf-8").partition("# ---")
    module = parse_module(Source(path.name, text.replace("graph.gelu", f"graph.{function}")))
    return PassManager(parse_pipeline("fuse-chunk")).run(module)


def test_refused_by_kernels_of_chunks() -> None:
    """No kernel of a chunk computes it, so a prompt that needs it is not read by these."""
    assert "ffn_block" in print_module(fused("gelu"))
    module = fused("relu2")
    assert "ffn_block" not in print_module(module)
    with pytest.raises(MeshcError) as refusal:
        chunk_of(cuda.ChunkGraph(module, 8), 16, "multimem")
    assert [d.code for d in refusal.value.diagnostics] == ["cuda-graph"]
    assert "is part of no kernel" in str(refusal.value)
