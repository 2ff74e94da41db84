"""SmolLM2-135M through the emitted program: the tokens of transformers on the same weights.

Only where the oracle's two best logits lie within 1e-3 may a token be its second best; from there
on the texts differ, so the comparison of that prompt ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mesh_programs import MeshProgram, load_program, mesh_program, write

from meshc.driver import CompileRequest, compile_loaded, load_any, open_weights
from meshc.frontend.checkpoints import find_packaged_weights
from meshc.support.diagnostics import Diagnostics

PROMPTS = json.loads((Path(__file__).parents[1] / "data" / "smollm2_oracle.json").read_text())
MODEL = "smollm2-135m"
NEW_TOKENS = 24
NEAR_TIE = 1e-3
MERGED = 'forms=["s=merged"]'
"""The maximum of a softmax travels with the weighted values."""


pytestmark = [
    pytest.mark.models,
    pytest.mark.smollm2,
]


@cache
def tensors() -> Mapping[str, np.ndarray]:
    """The weights as float32, read once for all meshes."""
    report = Diagnostics()
    source = find_packaged_weights(MODEL)
    found = open_weights(source, load_any(MODEL, report).config, None, report)
    return {name: np.asarray(found[name], np.float32) for name in found}


def compiled(
    mesh: str, seq: int, batch: int = 1, decode: str = "", device: str = ""
) -> MeshProgram:
    """``decode`` are the settings of partition in that phase."""
    settings = {"partition": f"partition{{{decode}}}"} if decode else None
    weights = find_packaged_weights(MODEL)
    return mesh_program(MODEL, mesh, seq, weights, device=device, batch=batch, decode=settings)


def check(
    mesh: str,
    prompts: list[dict[str, Any]],
    count: int,
    folder: Path,
    decode: str = "",
    device: str = "",
) -> None:
    """Tokens of each prompt, from one program that is loaded once."""
    seq = max(len(p["prompt_ids"]) for p in prompts) + count
    program = compiled(mesh, seq, decode=decode, device=device)
    assert ("merge_softmax" in program.files()["decode.py"]) == (decode == MERGED)
    program.tensors = tensors()
    write(folder, program.files())
    model = load_program(folder).load(program.tensors)
    for prompt in prompts:
        check_tokens(prompt, model.generate(prompt["prompt_ids"], count))


def check_tokens(prompt: dict[str, Any], found: list[int]) -> None:
    """The tokens of the oracle, as far as its choice is clear."""
    at = next((i for i, token in enumerate(found) if token != prompt["tokens"][i]), None)
    if at is not None:
        gap = prompt["best_logits"][at] - prompt["second_logits"][at]
        assert gap <= NEAR_TIE and found[at] == prompt["second_tokens"][at], prompt["prompt"]


def check_batch(mesh: str, prompts: list[dict[str, Any]], count: int, folder: Path) -> None:
    """All prompts at once: the tokens of the oracle, and those that each prompt gets alone."""
    lengths = [len(p["prompt_ids"]) for p in prompts]
    assert len(set(lengths)) == len(lengths), "prompts of different lengths"
    program = compiled(mesh, max(lengths) + count, batch=len(prompts))
    program.tensors = tensors()
    write(folder, program.files())
    model = load_program(folder).load(program.tensors)
    together = model.generate_all([p["prompt_ids"] for p in prompts], count)
    for prompt, found in zip(prompts, together, strict=True):
        assert len(found) == count
        check_tokens(prompt, found)
        assert model.generate(prompt["prompt_ids"], count) == found


def test_first_tokens_on_8x8(tmp_path: Path) -> None:
    check("8x8", PROMPTS[:1], 2, tmp_path)


@pytest.mark.slow
def test_more_tokens_on_8x8(tmp_path: Path) -> None:
    check("8x8", PROMPTS[:2], 8, tmp_path)


@pytest.mark.slow
def test_first_tokens_with_merged_softmaxes(tmp_path: Path) -> None:
    check("3x5", PROMPTS[2:4], 6, tmp_path, MERGED)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["4x4", "8x8", "6x10", "24x24"])
def test_all_prompts_with_merged_softmaxes(mesh: str, tmp_path: Path) -> None:
    check(mesh, PROMPTS, NEW_TOKENS, tmp_path, MERGED)


@pytest.mark.slow
def test_first_tokens_on_three_gpus(tmp_path: Path) -> None:
    """One of three key heads and three of nine query heads on each."""
    check("gpu=3", PROMPTS[:2], 8, tmp_path, device="h100x8")


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["gpu=2", "gpu=4"])
def test_first_tokens_on_gpus_that_do_not_divide_the_heads(mesh: str, tmp_path: Path) -> None:
    """Neither divides nine query heads or three key heads: GPUs have lanes of each head."""
    check(mesh, PROMPTS[:2], 8, tmp_path, device="h100x8")


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["gpu=3", "gpu=8"])
def test_all_prompts_on_a_node(mesh: str, tmp_path: Path) -> None:
    check(mesh, PROMPTS, NEW_TOKENS, tmp_path, device="h100x8")


def of_different_lengths(count: int) -> list[dict[str, Any]]:
    """The first recorded prompts whose lengths differ."""
    found = {len(p["prompt_ids"]): p for p in reversed(PROMPTS)}
    return sorted(found.values(), key=PROMPTS.index)[:count]


@pytest.mark.slow
def test_first_tokens_of_a_batch_on_4x4(tmp_path: Path) -> None:
    check_batch("4x4", of_different_lengths(4), 4, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["1x1", "4x4", "6x10"])
def test_a_batch_of_prompts(mesh: str, tmp_path: Path) -> None:
    check_batch(mesh, of_different_lengths(4), NEW_TOKENS, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["1x1", "4x4", "8x8", "6x10", "24x24"])
def test_all_prompts(mesh: str, tmp_path: Path) -> None:
    check(mesh, PROMPTS, NEW_TOKENS, tmp_path)


def test_the_driver_compiles_the_same_program() -> None:
    """What `meshc run` emits is what the tests above run."""
    request = CompileRequest(mesh="8x8", seq=64)
    driven = compile_loaded(load_any(MODEL, Diagnostics()), request).files
    files = compiled("8x8", 64).files()
    assert driven["decode.py"] == files["decode.py"]
    assert driven["prefill.py"] == files["prefill.py"]
