"""Emitted programs in tt-lang-sim, the maker's functional simulator, beside NumPy in float64."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from ttlang_cases import Case, drawn, functions, heads, llama

SIMULATOR = Path(sys.executable).with_name("tt-lang-sim")
pytestmark = pytest.mark.skipif(
    find_spec("ttl") is None or not SIMULATOR.exists(), reason="the extra ttlang is not installed"
)
HERE = Path(__file__).parent
BOUND = 5e-6
"""Of the largest element: what f32 and other orders of sums explain."""
TINY = {"E": 128, "H": 2, "G": 1, "D": 64, "F": 256, "layers": 2}
PROMPTS = {
    "2x2, 64 tokens": (TINY, "2x2", 64),
    "1x1, 32 tokens": (TINY | {"H": 4, "G": 2, "D": 32}, "1x1", 32),
    "1x1, 64 tokens": (TINY | {"layers": 1}, "1x1", 64),
    "2x2, 64 tokens, a key for each head": (TINY | {"G": 2, "layers": 1}, "2x2", 64),
    "2x2, 64 tokens, of which 16 are seen": (TINY | {"layers": 1, "window": 16}, "2x2", 64),
    "4x4, 128 tokens": (TINY | {"D": 128, "layers": 1}, "4x4", 128),
    "2x2, 64 tokens, of SmolLM2's sizes": (
        {"E": 576, "H": 9, "G": 3, "D": 64, "F": 1536, "layers": 30}, "2x2", 64,
    ),
}  # fmt: skip


def check(cases: dict[str, Case], folder: Path) -> None:
    """All results of all cases are NumPy's."""
    places = {name: folder / str(i) for i, name in enumerate(cases)}
    for name, case in cases.items():
        places[name].mkdir()
        case.compiled(places[name])
    command = [SIMULATOR, HERE / "in_simulator.py", *places.values()]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for name, case in cases.items():
        with np.load(places[name] / "results.npz") as results:
            for result, wanted in case.wanted.items():
                found = results[result]
                assert found.shape == wanted.shape, name
                error = np.abs(found - wanted).max() / np.abs(wanted).max()
                assert error < BOUND, f"{name}, {result}: {error}"


@pytest.mark.parametrize("first", [0, pytest.param(12, marks=pytest.mark.slow),
                                   pytest.param(36, marks=pytest.mark.slow)])  # fmt: skip
def test_drawn_programs_are_numpys(first, tmp_path):
    count = 12 if first == 0 else 24
    check({f"drawn({seed})": drawn(seed) for seed in range(first, first + count)}, tmp_path)


@pytest.mark.parametrize("name", [next(iter(PROMPTS)), *(
    pytest.param(name, marks=pytest.mark.slow) for name in list(PROMPTS)[1:])])  # fmt: skip
def test_prompts_of_a_llama_are_numpys(name, tmp_path):
    sizes, mesh, tokens = PROMPTS[name]
    check({name: llama(1, mesh, tokens, **sizes)}, tmp_path)


def test_functions_and_heads_are_numpys(tmp_path):
    check(functions() | heads(), tmp_path)


def test_a_wrong_program_is_noticed(tmp_path):
    """The judge sees results that are off by one in 10,000."""
    case = drawn(0)
    wrong = {name: wanted * 1.0001 for name, wanted in case.wanted.items()}
    with pytest.raises(AssertionError, match="result"):
        check({"wrong": Case(case.text, case.mesh, case.tensors, wrong, case.flags)}, tmp_path)


@pytest.mark.parametrize(("name", "tensor", "words"), [
    ("w", None, "there is no tensor 'w'"),
    ("x", np.zeros((64, 3)), "x is [64, 3], not ["),
])  # fmt: skip
def test_the_host_says_what_is_wrong(name, tensor, words, tmp_path):
    case = drawn(0)
    tensors = {known: value for known, value in case.tensors.items() if known != name}
    tensors |= {} if tensor is None else {name: tensor}
    Case(case.text, case.mesh, tensors, {}, {}).compiled(tmp_path)
    command = [SIMULATOR, "run.py", "tensors.npz", "results.npz"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 1 and f"error: {words}" in ran.stderr
