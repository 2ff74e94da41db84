"""``--check`` of programs that choose by size: rounding turns what nearly ties, and no pass is to
blame for that."""

from pathlib import Path

import numpy as np
import pytest

from meshc.driver import Check, CompileRequest, compile_loaded, load_any
from meshc.interp.check import Session, random_trace
from meshc.interp.gating import top_k
from meshc.interp.nearness import watched_choices
from meshc.support.diagnostics import Diagnostics

MODEL = Path(__file__).parents[1] / "data" / "tiny_experts" / "mixtral-5x2"


def checked(**options):
    check = Check()
    request = CompileRequest(mesh="2x2", seq=32, dtype="f16", phase="prefill", **options)
    compile_loaded(load_any(str(MODEL), Diagnostics()), request, [check])
    return check


def nearest(module, trace):
    with watched_choices() as choices:
        session = Session(module, trace.constant)
        for given, scalars in trace.steps:
            session.step(given, scalars)
    return choices.nearest


@pytest.mark.parametrize("batch", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_choices_of_a_trace_do_not_hang_on_rounding(batch):
    check = checked(batch=batch)
    assert check.compared > 5
    module = check.stages[0].module
    taken = nearest(module, check.trace)
    others = [nearest(module, random_trace(module, seed)) for seed in range(0, 6000, 1000)]
    assert taken == max(others) > min(others)


@pytest.mark.parametrize(
    ("scores", "options", "wanted"),
    [
        ([[8, 1, 6, 2], [4, 3, 1, 0]], {"count": 1}, 0.25),
        ([[8, 1, 6, 2], [4, 3, 1, 0]], {"count": 2}, 0.5),
        ([[8, 1, 6, 2]], {"count": 4}, np.inf),
        ([[8, 1, 7, 3]], {"count": 1, "groups": 2, "group_top": 2, "kept_groups": 1}, 0.1),
    ],
)
def test_how_near_is_what_is_left(scores, options, wanted):
    usual = {"groups": 1, "group_top": 0, "kept_groups": 0, "normalise": False}
    with watched_choices() as choices:
        top_k(np.array(scores, np.float64), None, usual | options)
    assert choices.nearest == pytest.approx(wanted)
