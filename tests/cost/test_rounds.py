"""Rounds of a loop that do the same are predicted once, in the order in which they come."""

from pathlib import Path

import pytest

import meshc
from meshc.cost.tasks.rounds import repeated
from meshc.cost.tasks.stages import LoopWork, PhaseWork
from meshc.cost.tasks.work import work_of

GPT_OSS = Path(__file__).parents[1] / "data" / "tiny_gpt_oss" / "gpt-oss-5x2-yarn"


@pytest.mark.parametrize(
    ("kinds", "wanted"),
    [
        ("", []),
        ("a", [(1, "a")]),
        ("aaaa", [(4, "a")]),
        ("abababa", [(3, "ab"), (1, "a")]),
        ("aabaabaab", [(3, "aab")]),
        ("aaabb", [(3, "a"), (2, "b")]),
        ("abcb", [(1, "a"), (1, "b"), (1, "c"), (1, "b")]),
    ],
)
def test_pieces_that_repeat(kinds, wanted):
    found = [(times, "".join(piece)) for times, piece in repeated([*kinds])]
    assert found == wanted
    assert "".join(piece * times for times, piece in found) == kinds


def test_layers_with_and_without_a_window_take_turns():
    """Layers of two kinds, of which each is read once."""
    graph = meshc.compile(
        str(GPT_OSS), dtype="f16", compile_to="graph", phase="decode", seq=64, device="h200",
    ).modules["decode"]  # fmt: skip
    graph.dims["layers"] = 7
    passes = meshc.parse_pipeline("expand-tasks{tokens=4},place-tasks,meet,fold-scratch")
    stages = work_of(meshc.PassManager(passes).run(graph), {"pos": 63})
    (loop,) = (stage for stage in stages if isinstance(stage, LoopWork))
    names = [stage.name for stage in loop.body if isinstance(stage, PhaseWork)]
    assert loop.count == 3 and names.count("attend") == 2
    rest = stages[stages.index(loop) + 1 :]
    seventh = [stage for stage in rest if isinstance(stage, PhaseWork)]
    first = [stage for stage in loop.body if isinstance(stage, PhaseWork)][: len(names) // 2]
    assert [id(one) for one in seventh[: len(first)]] == [id(one) for one in first]
    windowed, whole = (
        sum(task.brought for family in stage.families for task in family.tasks)
        for stage in loop.body
        if isinstance(stage, PhaseWork) and stage.name == "attend"
    )
    assert windowed < whole
