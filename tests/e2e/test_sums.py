"""Models in f16 with ``accumulate f32`` add up in f32, prompts too, whoever takes the sum: emitted
CSL on the simulator, and emitted NumPy.

The sums of these tests have a first term of 1 and others of 2^-12, all of them numbers of f16. In
f32, or added up exactly, they come to what is asked for; in f16 some are lost, as half of what f16
resolves at 1 is 2^-11."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from csl_runs import emit as emit_csl
from csl_runs import run_files
from mesh_programs import write

from meshc.backends.python import HostFacts, emit, load_program
from meshc.driver import CompileRequest, graph_module, load_any
from meshc.passes.manager import PassManager
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import Diagnostics

TERMS = 33
SUM = 1 + (TERMS - 1) * 2.0**-12

PRODUCTS = """\
model products(L=4, E=33, F=6, N=4) {
  weights f16  accumulate SUMS
  param w[E, F], v[F, N]
  main(x[L, E]) -> [L, N] {
    hidden = x @ w
    return hidden @ v
  }
}
"""
LOOP = """\
model loop(L=4, E=33, F=33, layers=2) {
  weights f16  accumulate f32
  main(x[L, E]) -> [L, E] {
    repeat layers {
      param w[E, F], v[F, E]
      x = (x @ w) @ v
    }
    return x
  }
}
"""
EXPERTS = """\
model experts(L=4, E=33, X=4, F=6, N=4) {
  weights f16  accumulate f32
  param router[E, X], up[E, X, F], down[X, F, N]
  main(x[L, E]) -> [L, N] {
    gates = top_k(softmax(x @ router), 2)
    hidden = x @ up
    return (hidden * gates) @ down
  }
}
"""
ATTENTION = """\
model attention(E=33, H=1, D=36) {
  weights f16  accumulate f32
  param wq[E, H, D], wk[E, H, D], wv[E, H, D]
  main(x[B, L, E]) -> [B, L, H, D] {
    k = append(cache.k, x @ wk)
    v = append(cache.v, x @ wv)
    return softmax(x @ wq @ transpose(k), mask = causal) @ v
  }
}
"""


def results(
    text: str,
    target: str,
    mesh: str,
    tensors: dict[str, np.ndarray],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    forms: str = "",
    prompt: int = 0,
) -> list[np.ndarray]:
    """What the emitted program gives on ``mesh``, perhaps for a ``prompt`` of so many tokens, with
    ``forms`` pinned."""
    (folder / "model.mesh").write_text(text)
    loaded = load_any(str(folder / "model.mesh"), Diagnostics())
    phase, asked = ("prefill", prompt) if prompt else ("main", None)
    request = CompileRequest(device="wse3", mesh=mesh, dtype="f16", phase=phase, seq=asked)
    graph = graph_module(loaded, phase, request)
    settings = {"partition": f"partition{{grid={mesh},forms=[{forms}]}}"}
    module = PassManager(pipeline_to("tile", settings)).run(graph)
    if target == "csl":
        options = ["--len", str(prompt)] if prompt else []
        files = emit_csl({phase: module})
        found, _ = run_files(files, tensors, folder, monkeypatch, options=options)
        return list(found.values())
    write(folder, emit({phase: module}, HostFacts("model")))
    inputs = {p.value.name for p in graph.function.params if p.role == "in"}
    program = load_program(folder).load({n: a for n, a in tensors.items() if n not in inputs})
    given = {n: a for n, a in tensors.items() if n in inputs}
    return list(program.run(given, **({"len": prompt} if prompt else {})).values())


def terms(*shape: int) -> np.ndarray:
    """Rows of terms: 1, then 2^-12."""
    found = np.full((*shape, TERMS), 2.0**-12, np.float16)
    found[..., 0] = 1
    return found


def tensors_of_products() -> dict[str, np.ndarray]:
    """Each element of the hidden product is the sum, each result one of these elements."""
    return {
        "x": terms(4),
        "w": np.ones((TERMS, 6), np.float16),
        "v": np.eye(6, 4, dtype=np.float16),
    }


@pytest.mark.parametrize("target", ["csl", "python"])
@pytest.mark.parametrize(
    ("mesh", "forms"),
    [("1x1", ""), ("2x2", ""), ("3x1", ""), ("2x1", '"hidden=column_parallel"')],
)
def test_a_product_that_another_one_takes(target, mesh, forms, tmp_path, monkeypatch):
    tensors, text = tensors_of_products(), PRODUCTS.replace("SUMS", "f32")
    (found,) = results(text, target, mesh, tensors, tmp_path, monkeypatch, forms)
    np.testing.assert_array_equal(found, np.full((4, 4), SUM))


def test_sums_are_in_f16_where_the_model_says_so(tmp_path, monkeypatch):
    tensors, text = tensors_of_products(), PRODUCTS.replace("SUMS", "f16")
    (found,) = results(text, "csl", "1x1", tensors, tmp_path, monkeypatch)
    assert found.dtype == np.float16 and np.all(found < SUM)


@pytest.mark.parametrize("mesh", ["1x1", "2x2"])
def test_products_that_a_loop_carries(mesh, tmp_path, monkeypatch):
    """Each layer adds up the terms into the first column, and lays them out again."""
    spread = np.zeros((2, TERMS, TERMS), np.float16)
    spread[:, 0] = terms(1)
    first = np.zeros((2, TERMS, TERMS), np.float16)
    first[:, :, 0] = 1
    tensors = {"x": terms(4), "w": first, "v": spread}
    (found,) = results(LOOP, "csl", mesh, tensors, tmp_path, monkeypatch)
    rounded = np.float16(terms(1).astype(np.float64) * SUM).astype(np.float64)
    wanted = np.float16(rounded.sum(-1)).astype(np.float64)[:, None] * terms(1)
    np.testing.assert_allclose(found, np.broadcast_to(wanted, (4, TERMS)), rtol=2.0**-11)


@pytest.mark.parametrize("target", ["csl", "python"])
@pytest.mark.parametrize(("mesh", "forms"), [("1x1", ""), ("2x1", '"hidden=dispatch"')])
def test_products_of_experts(target, mesh, forms, tmp_path, monkeypatch):
    """Two of four experts have a gate of a quarter each."""
    tensors = {
        "x": terms(4),
        "router": np.zeros((TERMS, 4), np.float16),
        "up": np.ones((TERMS, 4, 6), np.float16),
        "down": np.broadcast_to(np.eye(6, 4, dtype=np.float16), (4, 6, 4)).copy(),
    }
    (found,) = results(EXPERTS, target, mesh, tensors, tmp_path, monkeypatch, forms)
    np.testing.assert_array_equal(found, np.full((4, 4), SUM / 2))


def tensors_of_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> dict[str, np.ndarray]:
    """What makes token t have the queries, keys and values ``[t]``."""
    given = {"wq": q, "wk": k, "wv": v}
    return {"x": np.eye(TERMS, dtype=np.float16)[None], **given}


@pytest.mark.parametrize("target", ["csl", "python"])
@pytest.mark.parametrize("mesh", ["1x1", "2x2", "3x1"])
def test_scores_of_a_prompt(target, mesh, tmp_path, monkeypatch):
    """The second token sees two keys, one with the score ``8 * SUM`` and one with 8."""
    q, k, v = np.zeros((3, TERMS, 1, 36), np.float16)
    q[1, 0, :TERMS], k[0], k[1, 0, 0], v[0] = 8 * terms(), 1, 1, 1
    tensors = tensors_of_attention(q, k, v)
    (found,) = results(ATTENTION, target, mesh, tensors, tmp_path, monkeypatch, prompt=TERMS)
    wanted = 1 / (1 + np.exp(8 - 8 * SUM))
    np.testing.assert_allclose(found[0, 1, 0], np.full(36, wanted), rtol=2.0**-10)


@pytest.mark.parametrize("target", ["csl", "python"])
@pytest.mark.parametrize("mesh", ["1x1", "2x2", "1x3"])
def test_weighted_values_of_a_prompt(target, mesh, tmp_path, monkeypatch):
    """The last token sees all keys alike."""
    q, k, v = np.zeros((3, TERMS, 1, 36), np.float16)
    v[:, 0] = terms()[:, None]
    tensors = tensors_of_attention(q, k, v)
    (found,) = results(ATTENTION, target, mesh, tensors, tmp_path, monkeypatch, prompt=TERMS)
    np.testing.assert_allclose(found[0, -1, 0], np.full(36, SUM / TERMS), rtol=2.0**-11)
