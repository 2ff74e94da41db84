"""What each of several GPUs has of a model, and what their machines tell and refuse."""

from __future__ import annotations

from math import ceil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rank_programs import rank_program

from meshc.backends.cuda import CpuMachine, CpuNode, LanguageModel
from meshc.backends.cuda.executor import CXX
from meshc.backends.cuda.gpu_shares import DealtAxis, RankShare
from meshc.backends.cuda.ranks import RankTensors
from meshc.driver import CompileRequest, graph_module, load_any, open_weights
from meshc.interp.check import Session
from meshc.ir.module import Module
from meshc.passes.manager import PassManager
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import Diagnostics, MeshcError

TINY = Path(__file__).parents[2] / "data" / "tiny_cuda"
PROMPT, STEPS = [5, 17, 3, 40, 11], 4

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


def graph_of(model: str) -> Module:
    request = CompileRequest(device="h200", seq=32, dtype="f16", target="cuda")
    loaded = load_any(str(TINY / model), Diagnostics())
    return PassManager(pipeline_to("graph")).run(graph_module(loaded, "decode", request))


def tensors_of(model: str) -> dict[str, np.ndarray]:
    place, loaded = TINY / model, load_any(str(TINY / model), Diagnostics())
    opened = open_weights(place, loaded.config, None, Diagnostics())
    return {name: np.asarray(opened[name]) for name in opened}


def decoded(model: LanguageModel, prompt: list[int] = PROMPT) -> tuple[list[int], np.ndarray]:
    logits: list[np.ndarray] = []
    tokens = list(model.generate(prompt, STEPS, lambda _, row: logits.append(row)))
    return tokens, np.array(logits)


def interpreted(
    module: Module, tensors: dict, tokens: list[int], prompt: list[int] = PROMPT
) -> np.ndarray:
    """Logits of the whole graph behind the prompt and behind all but the last of ``tokens``."""
    session = Session(module, tensors)
    rows = []
    for position, token in enumerate([*prompt, *tokens[:-1]]):
        (logits,) = session.step({"tokens": np.array([[token]])}, {"pos": position})
        rows.append(logits.reshape(-1))
    return np.array(rows[len(prompt) - 1 :])


@given(
    whole=st.integers(1, 40),
    ranks=st.integers(1, 9),
    multiple=st.integers(1, 4),
    axis=st.integers(0, 2),
)
def test_every_element_of_a_tensor_has_one_rank(whole, ranks, multiple, axis) -> None:
    """Parts side by side are the tensor with zeros behind it."""
    own = ceil(ceil(whole / ranks) / multiple) * multiple
    shape = tuple(whole if n == axis else 2 for n in range(3))
    tensor = np.arange(1, np.prod(shape) + 1).reshape(shape)
    share = RankShare(ranks, "peers", {"w": (DealtAxis(axis, whole, own, 0, 1),)})
    parts = [RankTensors(share, {"w": tensor}, rank)["w"] for rank in range(ranks)]
    assert {part.shape[axis] for part in parts} == {own}
    joined = np.moveaxis(np.concatenate(parts, axis), axis, 0)
    np.testing.assert_array_equal(joined[:whole], np.moveaxis(tensor, axis, 0))
    assert not joined[whole:].any()


def test_ranks_of_a_team_share_elements() -> None:
    """Six query heads of two key heads over four ranks: three of each team, two and one."""
    queries, keys = DealtAxis(0, 6, 2, 3, 2), DealtAxis(0, 2, 1, 0, 2)
    share = RankShare(4, "peers", {"q": (queries,), "k": (keys,)})
    tensors = {"q": np.arange(1, 7), "k": np.arange(1, 3)}
    parts = [RankTensors(share, tensors, rank) for rank in range(4)]
    assert [part["q"].tolist() for part in parts] == [[1, 2], [3, 0], [4, 5], [6, 0]]
    assert [part["k"].tolist() for part in parts] == [[1], [1], [2], [2]]


def test_a_gpu_that_holds_other_values_is_told() -> None:
    node = CpuNode({}, {}, 2)
    node.store("logits", np.zeros(4, np.float32))
    node.store_of(1, "logits", np.ones(4, np.float32))
    with pytest.raises(MeshcError, match="hold different values in logits"):
        node.read("logits")


def test_what_one_machine_does_not_run_is_refused() -> None:
    program, texts = rank_program(graph_of("llama-4h2"), 2)
    with pytest.raises(MeshcError, match="run-refused"):
        LanguageModel(program, CpuMachine({}, texts), {})
