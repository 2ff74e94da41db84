"""Mixtures of experts on the Python target, against transformers: tokens and logits of tiny random
models, on square and other meshes, alone and in batches, with every form of the experts."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from recorded_models import check, check_batch
from reduced import crossed, only

import meshc
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics

pytestmark = pytest.mark.models

TINY = Path(__file__).parents[1] / "data" / "tiny_experts"
FIXTURES = sorted(folder.name for folder in TINY.iterdir())
MESHES = ("1x1", "2x2", "3x2", "2x5")
MORE_MESHES = ("1x4", "5x1", "3x3", "4x6")
PREFILL_FORMS = {
    "features": ("g=gemm",),
    "experts": ("g=gemm_experts",),
    "whole experts": ("x=whole", "g=expert_parallel"),
    "dispatched": ("g=dispatch",),
    "dispatched in parts": ("g=dispatch", "x_15=combine_parts"),
}
DECODE_FORMS = ("gemv_y", "gemv_x", "experts_y", "experts_x", "dispatch_y", "dispatch_x")


@pytest.mark.every_case
@pytest.mark.parametrize(("name", "mesh"), crossed(FIXTURES, MESHES))
def test_tokens_and_logits_equal_those_of_transformers(
    name: str, mesh: str, tmp_path: Path
) -> None:
    check(TINY / name, mesh, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MORE_MESHES)
@pytest.mark.parametrize("name", FIXTURES)
def test_tokens_on_more_meshes(name: str, mesh: str, tmp_path: Path) -> None:
    check(TINY / name, mesh, tmp_path)


def pins(*forms: str) -> dict[str, str]:
    """Passes that compute results by these forms."""
    names = ",".join(f'"{form}"' for form in forms)
    return {"partition": f"partition{{forms=[{names}]}}"}


@pytest.mark.parametrize(("form", "mesh"), crossed([*PREFILL_FORMS], ["2x2", "3x2"]))
def test_experts_of_prompts_lie_as_is_asked(form: str, mesh: str, tmp_path: Path) -> None:
    decode = pins("g=experts_y")
    check(TINY / "mixtral-5x2", mesh, tmp_path, passes=pins(*PREFILL_FORMS[form]), decode=decode)


def single_rows() -> list[Any]:
    """Forms and meshes; in CI those that no test above has."""
    chosen = [("gemv_y", "2x2"), ("experts_x", "4x3"), ("dispatch_y", "2x2"), ("dispatch_x", "4x3")]
    return only(product(DECODE_FORMS, ["2x2", "4x3"]), *chosen)


@pytest.mark.parametrize(("form", "mesh"), single_rows())
def test_experts_of_single_rows_lie_as_is_asked(form: str, mesh: str, tmp_path: Path) -> None:
    check(TINY / "qwen2-moe-6x2", mesh, tmp_path, decode=pins(f"g={form}"))


BATCHES = [(batch, mesh) for batch in range(2, 7) for mesh in ("2x2", "3x2")]


@pytest.mark.parametrize(
    ("batch", "mesh"),
    [
        pytest.param(batch, mesh, marks=() if number % 6 == 0 else pytest.mark.slow)
        for number, (batch, mesh) in enumerate(BATCHES)
    ],
)
def test_a_batch_gives_each_prompt_what_it_gets_alone(
    batch: int, mesh: str, tmp_path: Path
) -> None:
    check_batch(TINY / FIXTURES[batch % len(FIXTURES)], batch, mesh, tmp_path)


def test_a_remark_says_that_all_experts_are_computed() -> None:
    report = Diagnostics()
    loaded = load_any(str(TINY / "qwen3-moe-7x3"), Diagnostics())
    request = CompileRequest(mesh="2x2", seq=8, phase="decode")
    compile_loaded(loaded, request, report=report)
    (found,) = (d for d in report.messages if d.code == "experts")
    assert found.message.startswith("a row goes to 3 of the 7 experts of X")


KERNEL_SIZES = """
use blocks
model sized(E=64, H=2, G=1, D=64, X=4, K=2, F=64, V=96, layers=2) {
  weights f16  accumulate f32
  param embedding[V, E], final_norm[E], lm_head[E, V]
  main(tokens[B, L]) -> [B, L, V] {
    x = embed(tokens, embedding)
    repeat layers {
      param attn_norm[E], wq[E, H, D], wk[E, G, D], wv[E, G, D], wo[H, D, E]
      param ffn_norm[E], router[E, X], w_gate[E, X, F], w_up[E, X, F], w_down[X, F, E]
      x = llama_attention(x, attn_norm, wq, wk, wv, wo)
      h = rms_norm(x, ffn_norm)
      x = x + experts(h, top_k(softmax(h @ router), K), w_gate, w_up, w_down)
    }
    return x when prefill
    return rms_norm(x, final_norm) @ lm_head
  }
}
"""


def test_many_tokens_at_once_have_no_kernels_of_experts(tmp_path: Path) -> None:
    """Of sizes that all other kernels of ``--chunk`` take; tasks read prompts."""
    (tmp_path / "sized.mesh").write_text(KERNEL_SIZES, encoding="utf-8")
    made = meshc.compile(tmp_path / "sized.mesh", target="cuda", seq=16, chunk=8)
    assert {"step.cu", "prompt.cu"} <= made.files.keys()


def test_experts_of_odd_widths_read_fewer_tokens_than_are_asked_for(tmp_path: Path) -> None:
    odd = KERNEL_SIZES.replace(" F=64,", " F=72,")
    (tmp_path / "odd.mesh").write_text(odd, encoding="utf-8")
    made = meshc.compile(tmp_path / "odd.mesh", target="cuda", seq=32, chunk=24)
    (told,) = (m for m in made.report.messages if m.code == "chunk-of-fewer")
    assert told.severity == "warning" and "no tasks read 24 tokens" in told.message
    assert "prompt.cu" in made.files
