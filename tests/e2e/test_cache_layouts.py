"""Prefill and decode agree on where the KV cache lies, whatever moves the operands of products."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from reduced import each, only

from meshc.backends.meshes import ALGORITHMS_OF
from meshc.backends.python import load_program
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.interp.inputs import random_inputs
from meshc.ir.ops.mesh import CACHE_POLICIES
from meshc.support.diagnostics import Diagnostics
from meshc.support.output import write_directory

MODEL = Path(__file__).parents[2] / "examples" / "tiny_llama.mesh"
LAYERS, SEQ = 2, 14
PROMPT = (3, 17, 200, 5, 9)
MESHES = ("1x4", "4x1", "4x4", "3x3", "2x3", "8x8")


@cache
def tensors() -> dict[str, np.ndarray]:
    graph = load_any(str(MODEL), Diagnostics()).graph("decode", SEQ, LAYERS)
    return {name: array.astype(np.float32) for name, array in random_inputs(graph, 1).items()}


def generated(
    folder: Path,
    mesh: str,
    kv: str,
    algo: str,
    align: str = "",
    seq: int = SEQ,
    prompt: tuple[int, ...] = PROMPT,
    result: str = "",
) -> tuple[list[int], np.ndarray]:
    """Tokens, as many as the cache takes, and their logits."""
    choice = CompileRequest(mesh=mesh, kv=kv, algo=(f"gemm={algo}",), align=align, result=result)
    request = replace(choice, seq=seq, layers=LAYERS, dtype="f32")
    found = compile_loaded(load_any(str(MODEL), Diagnostics()), request)
    write_directory(folder, found.files, found.facts)
    model = load_program(folder).load(tensors())
    logits: list[np.ndarray] = []
    count = seq - len(prompt) + 1
    tokens = model.generate(list(prompt), count, lambda token, row: logits.append(row.copy()))
    return list(tokens), np.array(logits)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one core, whose cache can lie in one place only, generates."""
    return generated(tmp_path_factory.mktemp("alone") / "out", "1x1", "shift", "auto")


def check_alike(found, alone):
    assert found[0] == alone[0]
    np.testing.assert_allclose(found[1], alone[1], atol=2e-5)


@pytest.mark.parametrize(
    ("mesh", "kv", "algo"),
    each(
        [
            ("2x3", "shift", "transposed"),
            ("4x1", "concat", "cannon"),
            ("3x3", "concat", "summa"),
            ("4x4", "shift", "cannon"),
            ("1x4", "cyclic", "cyclic_shift"),
            ("3x3", "cyclic", "cannon"),
            ("2x3", "cyclic", "allgather"),
        ],
        2,
    ),
)
def test_the_choice_of_products_leaves_the_answer(mesh, kv, algo, alone, tmp_path):
    check_alike(generated(tmp_path / "out", mesh, kv, algo), alone)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("kv", CACHE_POLICIES)
@pytest.mark.parametrize("algo", ALGORITHMS_OF["gemm"])
def test_all_products_on_all_meshes_leave_the_answer(mesh, kv, algo, alone, tmp_path):
    check_alike(generated(tmp_path / "out", mesh, kv, algo), alone)


@pytest.mark.parametrize(("mesh", "algo"), [("3x5", "cyclic_shift"), ("4x4", "cannon")])
def test_cores_that_skew_the_weights_leave_the_answer(mesh, algo, alone, tmp_path):
    check_alike(generated(tmp_path / "out", mesh, "shift", algo, align="device"), alone)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("algo", ALGORITHMS_OF["gemm"])
def test_cores_that_skew_the_weights_leave_the_answer_on_all_meshes(mesh, algo, alone, tmp_path):
    check_alike(generated(tmp_path / "out", mesh, "shift", algo, align="device"), alone)


@pytest.mark.parametrize("kv", only(CACHE_POLICIES, "cyclic"))
def test_logits_may_stay_on_the_first_cores(kv, alone, tmp_path):
    check_alike(generated(tmp_path / "out", "2x3", kv, "auto", result="roots"), alone)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The token that one core generates behind a prompt of one, for a cache of one."""
    folder = tmp_path_factory.mktemp("one") / "out"
    return generated(folder, "1x1", "shift", "auto", seq=1, prompt=PROMPT[:1])


@pytest.mark.parametrize("kv", CACHE_POLICIES)
def test_a_cache_of_one_token_takes_a_prompt_of_one(kv, one, tmp_path):
    several = generated(tmp_path / "out", "3x2", kv, "auto", seq=1, prompt=PROMPT[:1])
    assert len(one[0]) == 1
    check_alike(several, one)
