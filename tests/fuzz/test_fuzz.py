"""A short campaign of the fuzzer; ``fuzz_campaign.py`` is the long one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from random import Random

import pytest
from fuzz_campaign import campaign, minimised
from fuzz_limits import Child
from fuzz_mutations import damaged_bytes, damaged_json, damaged_text
from fuzz_orders import OPTIONS, ROOT, Fault, judged_order
from fuzz_subjects import SUBJECTS, Case

from meshc.ir.module import Module
from meshc.ir.ops.graph import RmsNorm
from meshc.ir.parser import parse_module
from meshc.passes.base import Pass
from meshc.passes.registry import PASSES, parse_pipeline
from meshc.passes.tile.schedule_tasks import ScheduleTasks
from meshc.support.diagnostics import Diagnostics
from meshc.support.spans import Source

needs_limits = pytest.mark.skipif(sys.platform != "linux", reason="bounds are those of Linux")


@needs_limits
def test_no_input_ends_in_a_fault() -> None:
    report = campaign(150, seed=20, smallest=False)
    assert not report.failures, report.text()
    assert sum(report.outcomes.values()) == 150
    assert {"fine", "refused"} <= {outcome for _, outcome in report.outcomes}
    assert len(report.codes) > 20


def test_every_option_of_a_pass_is_drawn() -> None:
    known = {cls.NAME: set(cls().options()) for cls in PASSES if cls().options()}
    assert {name: set(options) for name, options in OPTIONS.items()} == known


def test_a_claim_that_a_pass_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that waits keeps a word for where it goes on."""
    text = (ROOT / "tests/passes/schedule_tasks/example.meshir").read_text().split("# ---")[0]
    order = parse_pipeline("plan-csl-words,schedule-tasks")
    assert judged_order(parse_module(Source("m", text)), order) == 2
    forgetful = ScheduleTasks.INVALIDATES - {"csl_words"}
    monkeypatch.setattr(ScheduleTasks, "INVALIDATES", forgetful)
    with pytest.raises(Fault, match="schedule-tasks leaves a false claim"):
        judged_order(parse_module(Source("m", text)), order)


def test_a_pass_that_changes_the_meaning_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "examples/mlp.meshir").read_text()
    (order,) = parse_pipeline("canonicalize")

    def wrong(self: Pass, module: Module, report: Diagnostics) -> Module:
        op = next(op for op in module.walk() if isinstance(op, RmsNorm))
        op.eps += 0.5
        return module

    monkeypatch.setattr(type(order), "run", wrong)
    with pytest.raises(Fault, match="canonicalize changes the meaning"):
        judged_order(parse_module(Source("m", text)), [order])


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    found = Child()
    yield found
    found.close()


@needs_limits
@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("memory", "traceback"),
        ("raise", "traceback"),
        ("internal", "internal"),
        ("die", "killed"),
        ("none", "fine"),
    ],
)
def test_the_judge_sees_faults(child: Child, fault: str, outcome: str) -> None:
    assert child.ask({"subject": "bounds", "arguments": [fault], "files": {}}).outcome == outcome
    assert child.ask({"subject": "bounds", "arguments": ["none"], "files": {}}).outcome == "fine"


@needs_limits
@pytest.mark.parametrize(
    ("worker", "outcome"), [("busy", "slow"), pytest.param("judge", "fine", marks=pytest.mark.slow)]
)
def test_the_time_of_an_input_is_not_that_of_its_judge(worker: str, outcome: str) -> None:
    child = Child(seconds=1)
    verdict = child.ask({"subject": "bounds", "arguments": [worker], "files": {}})
    child.close()
    assert verdict.outcome == outcome


@needs_limits
def test_a_failing_input_is_made_small(child: Child) -> None:
    case = Case({"a.txt": b"one\ntwo BAD three\n" + b"four\n" * 30}, ("none",))
    verdict = child.ask({"subject": "bounds", "arguments": ["raise"], "files": {}})
    assert minimised(child, "bounds", case, verdict).files["a.txt"] == b"BAD"


def test_numbers_name_inputs() -> None:
    for subject in SUBJECTS.values():
        assert subject.case(5) == subject.case(5)


@pytest.mark.parametrize("number", range(30))
def test_damage_is_a_function_of_the_generator(number: int) -> None:
    def both(make: Callable[[Random], object]) -> None:
        assert make(Random(number)) == make(Random(number))

    both(lambda random: damaged_text(random, "a = 1\nb = 2", ["c"]))
    both(lambda random: damaged_bytes(random, b"abc", 2))
    both(lambda random: damaged_json(random, '{"a": [1, 2]}'))
