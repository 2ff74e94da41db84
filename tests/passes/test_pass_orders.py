"""Passes in orders that no pipeline has: right, or refused in words."""

from pathlib import Path

import numpy as np
import pytest

import meshc
from meshc.driver import CompileRequest, load_any
from meshc.driver.compiling import graph_module
from meshc.interp.check import random_trace, run_trace
from meshc.support.diagnostics import Diagnostics

DATA = Path(__file__).parents[1] / "data"
TO_MESH = "canonicalize,eliminate-transpose,partition{grid=2x2}"


def graph(model, phase="decode", **options):
    loaded = load_any(str(DATA / model), Diagnostics())
    request = CompileRequest(mesh="1x1", seq=6, dtype="f32", layers=2, **options)
    return graph_module(loaded, phase, request)


def ran(module, passes):
    return meshc.PassManager(meshc.parse_pipeline(passes)).run(module)


def test_layers_are_dealt_to_regions_once():
    passes = f"{TO_MESH},place-interleave,select-collective,split-regions{{regions=2}}"
    module = ran(graph("tiny/llama-3h1", device="wse3"), passes)
    text = meshc.print_module(module)
    for again in ("split-regions", "split-regions{regions=2}"):
        module = ran(module, again)
        assert meshc.print_module(module) == text
    with pytest.raises(meshc.MeshcError, match="dealt to 2 regions already, not to 1"):
        ran(module, "split-regions{regions=1}")


def test_reductions_are_selected_beside_dispatches():
    module = ran(graph("tiny_experts/mixtral-5x2"), f"{TO_MESH},place-interleave")
    with pytest.raises(meshc.MeshcError, match=r"a dispatch over . has no algorithm"):
        ran(module, "select-collective")
    held = ran(module, "select-dispatch,place-interleave,select-collective").holds
    assert "collectives_selected" in held


def test_ranks_choose_the_token_of_one():
    module = graph("tiny/llama-3h1")
    trace = random_trace(module, 3)
    wanted = [logits.argmax(-1) for logits in run_trace(module, trace)]
    found = run_trace(ran(module, "choose-token,tensor-parallel{ranks=2}"), trace)
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_tasks_are_of_steps_whose_requests_are_all_there():
    module = graph("tiny/llama-3h1", device="h200")
    passes = "chunk-prompts,canonicalize,eliminate-transpose,expand-tasks"
    with pytest.raises(meshc.MeshcError, match="absent requests"):
        ran(module, passes)
    ran(graph("tiny/llama-3h1", device="h200"), passes.removeprefix("chunk-prompts,"))
