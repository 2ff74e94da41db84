"""The event model of steps beside the recorded ones; the changes that benchmarks print."""

import pytest
import step_changes
import step_fit
from recorded_steps import FITTED, HELD_OUT, predicted

from meshc.cost.tasks.work import LoopWork, Meeting, PhaseWork
from meshc.devices import device


def us(step, **options):
    return predicted(step, **options).seconds * 1e6


@pytest.fixture(scope="module")
def first():
    return FITTED[0]


def test_the_device_has_the_numbers_that_were_fitted():
    found = step_fit.numbers(step_fit.STALL, step_fit.READY_NS)
    assert {name: device("h200").value(name) for name in found} == found


@pytest.mark.parametrize("step", [*FITTED, *HELD_OUT], ids=str)
def test_recorded_steps(step):
    """Those of Llama-3-8B are held out: none of its times is in a number of the device."""
    assert us(step) == pytest.approx(step.us, rel=0.01 if step in FITTED else 0.05)


def test_bytes_are_those_of_the_recorded_steps(first):
    """13751.6 MB (docs/performance.md), and what threads read themselves."""
    assert predicted(first).bytes == pytest.approx(13751.6e6, rel=1e-4)


def test_more_tiles_on_their_way_take_longer(first):
    found = [us(first, flying=flying) for flying, _ in step_fit.FLYING]
    assert found == sorted(found)
    recorded = [time for _, time in step_fit.FLYING]
    assert found == pytest.approx(recorded, rel=0.02)


def test_asking_ahead_into_l2_takes_longer(first):
    found = [us(first, flying=11, ahead=ahead) for ahead, _ in step_fit.AHEAD]
    assert found == sorted(found)
    assert found == pytest.approx([time for _, time in step_fit.AHEAD], rel=0.1)


def test_an_even_division_takes_longer():
    whole, even = step_fit.divided()
    assert whole < even


# -- changes --------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def llama():
    return step_changes.setting("llama-3-8b", 1024)


def phases(stages):
    for stage in stages:
        if isinstance(stage, LoopWork):
            yield from phases(stage.body)
        else:
            yield stage


def brought(setting):
    return sum(p.bytes for p in phases(setting.stages) if isinstance(p, PhaseWork))


@pytest.mark.parametrize(
    "change",
    [step_changes.merged, step_changes.halved, step_changes.parted(4)],
    ids=["merged", "halved", "parted"],
)
def test_changes_bring_the_same_bytes(llama, change):
    assert brought(change(llama)) == brought(llama)


@pytest.mark.parametrize(
    ("change", "name", "read"),
    [
        # Records of 8 key heads, 16 splits, 4 query heads and 130 values, over 128 tasks.
        (step_changes.merged, "merge", 4 * 8 * 16 * 4 * 130 // 128),
        # Four parts and the residual of 4096 values, over 256 tasks.
        (step_changes.parted(4), "sum y", 5 * 4 * 4096 // 256),
    ],
)
def test_a_phase_that_is_added_meets(llama, change, name, read):
    found = [*phases(change(llama).stages)]
    place = next(n for n, p in enumerate(found) if getattr(p, "name", "") == name)
    around = (found[place - 1], found[place + 1])
    assert isinstance(around[0], Meeting) and isinstance(around[1], Meeting)
    (family,) = found[place].families
    assert {t.own for t in family.tasks} == {read}
    assert len(found) == len([*phases(llama.stages)]) + 2


def test_a_placement_by_bytes_has_all_tiles(llama):
    usual, other = llama.time(), step_changes.by_bytes(llama).time()
    assert other.bytes == usual.bytes
    assert other.spent.computing == pytest.approx(usual.spent.computing)
    assert other.seconds != usual.seconds


def test_tags_save_the_signal(llama):
    assert step_changes.tags(llama).time().spent.meeting < llama.time().spent.meeting
