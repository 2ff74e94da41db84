"""Prefill and decode agree on where the KV cache lies, whatever moves the operands of products."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from meshc.backends.python import load_program
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.interp.inputs import random_inputs
from meshc.passes.mesh.shift_kv_cache import POLICIES
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.files import write_directory

MODEL = Path(__file__).parents[2] / "examples" / "tiny_llama.mesh"
LAYERS, SEQ = 2, 14
PROMPT = (3, 17, 200, 5, 9)
MESHES = ("1x4", "4x1", "4x4", "3x3", "2x3", "8x8")
WHOLE_LAYERS = ("cyclic_shift", "cannon", "transposed")
OTHERS = ("summa", "allgather")


def compiled(mesh: str, kv: str, algo: str, **options: str):
    request = CompileRequest(
        mesh=mesh, kv=kv, algo=(f"gemm={algo}",), seq=SEQ, layers=LAYERS, dtype="f32", **options
    )
    return compile_loaded(load_any(str(MODEL), Diagnostics()), request)


@cache
def tensors() -> dict[str, np.ndarray]:
    graph = load_any(str(MODEL), Diagnostics()).graph("decode", SEQ, LAYERS)
    return {name: array.astype(np.float32) for name, array in random_inputs(graph, 1).items()}


def generated(folder: Path, *choice: str, **options: str) -> tuple[list[int], np.ndarray]:
    """Tokens, as many as the cache takes, and their logits."""
    found = compiled(*choice, **options)
    write_directory(folder, found.files, found.facts)
    model = load_program(folder).load(tensors())
    logits: list[np.ndarray] = []
    count = SEQ - len(PROMPT) + 1
    tokens = model.generate(list(PROMPT), count, lambda token, row: logits.append(row.copy()))
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
    [
        ("4x4", "shift", "cannon"),
        ("4x1", "concat", "cannon"),
        ("3x3", "cyclic", "cannon"),
        ("2x3", "shift", "transposed"),
        ("1x4", "cyclic", "cyclic_shift"),
    ],
)
def test_the_choice_of_products_leaves_the_answer(mesh, kv, algo, alone, tmp_path):
    check_alike(generated(tmp_path / "out", mesh, kv, algo), alone)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("kv", POLICIES)
@pytest.mark.parametrize("algo", WHOLE_LAYERS)
def test_all_products_on_all_meshes_leave_the_answer(mesh, kv, algo, alone, tmp_path):
    check_alike(generated(tmp_path / "out", mesh, kv, algo), alone)


@pytest.mark.parametrize("algo", OTHERS)
def test_products_that_cannot_take_a_layer_are_refused(algo):
    with pytest.raises(MeshcError, match=r"skewed-product.*dims H and D lie over one axis"):
        compiled("4x4", "shift", algo)
