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

from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.frontend.models import find_packaged_weights
from meshc.support.diagnostics import Diagnostics

PROMPTS = json.loads((Path(__file__).parents[1] / "data" / "smollm2_oracle.json").read_text())
MODEL = "smollm2-135m"
NEW_TOKENS = 24
NEAR_TIE = 1e-3


pytestmark = [
    pytest.mark.models,
    pytest.mark.smollm2,
]


@cache
def tensors() -> Mapping[str, np.ndarray]:
    """The weights as float32, read once for all meshes."""
    found = compiled("1x1", 8).tensors
    return {name: np.asarray(found[name], np.float32) for name in found}


def compiled(mesh: str, seq: int) -> MeshProgram:
    return mesh_program(MODEL, mesh, seq, find_packaged_weights(MODEL))


def check(mesh: str, prompts: list[dict[str, Any]], count: int, folder: Path) -> None:
    """Tokens of each prompt, from one program that is loaded once."""
    seq = max(len(p["prompt_ids"]) for p in prompts) + count
    program = compiled(mesh, seq)
    program.tensors = tensors()
    write(folder, program.files())
    model = load_program(folder).load(program.tensors)
    for prompt in prompts:
        found = model.generate(prompt["prompt_ids"], count)
        at = next((i for i in range(count) if found[i] != prompt["tokens"][i]), None)
        if at is not None:
            gap = prompt["best_logits"][at] - prompt["second_logits"][at]
            assert gap <= NEAR_TIE and found[at] == prompt["second_tokens"][at], prompt["prompt"]


def test_first_tokens_on_8x8(tmp_path: Path) -> None:
    check("8x8", PROMPTS[:2], 8, tmp_path)


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
