"""Predicted steps of task programs: what they are made of, and what they follow from."""

import json
from dataclasses import fields, replace
from math import inf
from pathlib import Path

import pytest
from test_task_work import tasks_of

import meshc
from meshc.cost.tasks import phase_times
from meshc.cost.tasks.blocks import Ring, Run, Spent, Tile
from meshc.cost.tasks.phase_times import joined, step_time, time_of_work
from meshc.cost.tasks.stages import LoopWork, Meeting, Piece, TaskWork
from meshc.cost.tasks.tile_times import TileTimes
from meshc.cost.tasks.work import work_of
from meshc.devices import Number, device
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.support.diagnostics import MeshcError

H200 = device("h200")
TINY = Path(__file__).parents[1] / "data" / "tiny" / "llama-3h1"


def with_number(name, value):
    numbers = {**H200.numbers, name: Number(value, "assumed", "here")}
    return replace(H200, numbers=numbers)


@pytest.fixture(scope="module")
def small():
    return tasks_of("smollm2-135m", "expand-tasks", seq=1025)


def test_parts_make_up_the_step(small):
    found = step_time(small, {"pos": 1024})
    assert found.seconds == pytest.approx(sum(p.spent.seconds for p in found.phases))
    assert found.cost.total == found.seconds > found.ceiling
    assert found.bytes == sum(p.bytes for p in found.phases)
    assert found.limit == "meeting"  # 30 layers of 10 MB: blocks mostly wait for each other
    assert [(p.name, p.times) for p in found.phases] == [
        ("x", 1),
        *((name, 30) for name in ("q_k_v", "attend", "o", "gate_up", "y")),
        ("result", 1),
    ]
    assert set(found.inputs) == {"datasheet", "published", "calibrated", "assumed"}
    assert "shared_bytes_per_second" in found.inputs["calibrated"]


def test_bytes_are_those_of_weights_and_cached_tokens(small):
    """All weights once, but the embedding that is looked up; keys and values of 1024 tokens."""
    found = step_time(small, {"pos": 1024})
    weights = [b.type.bytes for b in small.buffers if b.role == "weight"]
    cached = 2 * 30 * 1024 * 3 * 64 * 2
    # Frequencies of rotations are read by threads.
    assert found.bytes == pytest.approx(sum(weights) + cached, rel=1e-5)


def test_meetings_that_are_found_are_those_that_are_assumed(small):
    placed = PassManager(parse_pipeline("place-tasks,meet,fold-scratch")).run(
        tasks_of("smollm2-135m", "expand-tasks", seq=1025)
    )
    found, assumed = (step_time(m, {"pos": 700}) for m in (placed, small))
    assert (found.phases, found.ring) == (assumed.phases, assumed.ring)


def test_rounds_that_are_not_followed_are_like_the_last_one(small, monkeypatch):
    work = work_of(small, {"pos": 1024})
    some = time_of_work(work, TileTimes(H200))
    monkeypatch.setattr(phase_times, "ROUNDS", 1000)
    every = time_of_work(work, TileTimes(H200))
    assert some.seconds == pytest.approx(every.seconds, rel=1e-3)
    assert [(p.times, p.bytes) for p in some.phases] == [(p.times, p.bytes) for p in every.phases]


def test_the_round_in_the_middle_stands_for_others_where_the_last_meets_nothing(small, monkeypatch):
    """As in a chunk of a prompt, whose last layer is behind its last meeting."""
    work = work_of(small, {"pos": 1024})
    loop = next(n for n, stage in enumerate(work) if isinstance(stage, LoopWork))
    work = [*work[: loop + 1], *(s for s in work[loop + 1 :] if not isinstance(s, Meeting))]
    followed, simulate = [], phase_times.simulate
    monkeypatch.setattr(
        phase_times,
        "simulate",
        lambda runs, *how: followed.append(len(runs)) or simulate(runs, *how),
    )
    some = time_of_work(work, TileTimes(H200))
    monkeypatch.setattr(phase_times, "ROUNDS", 1000)
    every = time_of_work(work, TileTimes(H200))
    assert some.seconds == pytest.approx(every.seconds, rel=1e-3)
    assert [(p.times, p.bytes) for p in some.phases] == [(p.times, p.bytes) for p in every.phases]
    assert followed[0] < followed[1] / 5


@pytest.mark.parametrize(("step", "bound"), [(2, 0.002), (4, 0.002), (8, 0.004)])
def test_some_blocks_stand_for_all(small, step, bound, monkeypatch):
    """Of very many tiles: the parts of the time stay what they were, and bytes are those of all."""
    every = step_time(small, {"pos": 1024})
    count = sum(len(tiles) for run in _runs(small, monkeypatch) for tiles in run.tiles)
    monkeypatch.setattr(phase_times, "MOST_FOLLOWED", count // step)
    monkeypatch.setattr(phase_times, "MOST_SKIPPED", step)
    some = step_time(small, {"pos": 1024})
    assert some.bytes == every.bytes and some.blocks == every.blocks
    assert some.seconds == pytest.approx(every.seconds, rel=bound)
    assert some.seconds != every.seconds


def _runs(module, monkeypatch):
    """What blocks do in each phase that is followed."""
    found = []
    with monkeypatch.context() as patched:
        patched.setattr(
            phase_times, "simulate", lambda runs, *_: found.extend(runs) or [Spent()] * len(runs)
        )
        step_time(module, {"pos": 1024})
    return found


def test_all_rounds_are_followed_where_blocks_do_not_meet(small):
    """A loop without meetings is one phase with what stands around it."""

    def apart(stages):
        for stage in stages:
            if isinstance(stage, LoopWork):
                yield replace(stage, body=tuple(apart(stage.body)))
            elif not isinstance(stage, Meeting):
                yield stage

    work = work_of(small, {"pos": 64})
    found = time_of_work([*apart(work)], TileTimes(H200))
    assert len(found.phases) == 1 and found.phases[0].times == 1
    assert found.bytes == time_of_work(work, TileTimes(H200)).bytes


def test_phases_between_meetings_are_one():
    tile = Tile(1, 0, 2)
    one = Run([[tile], []], [3, 0], 4, 10, first=3)
    assert joined([one]) is one
    other = replace(one, at_once=5)
    assert joined([one, other]) == Run([[tile, tile], []], [6, 0], 8, 5, first=6)


def test_fewer_blocks_have_more_each(small):
    few = PassManager(parse_pipeline("place-tasks{blocks=20}")).run(
        tasks_of("smollm2-135m", "expand-tasks", seq=1025)
    )
    found = step_time(few, {"pos": 1024})
    assert found.blocks == 20
    assert found.spent.computing > 5 * step_time(small, {"pos": 1024}).spent.computing


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("product_tile_ns", "8:5000,16:5000", "computing"),
        ("attention_tile_ns", 9000, "computing"),
        ("product_task_ns", 9000, "computing"),
        ("attention_task_ns", 90000, "computing"),
        ("attention_asking_ns", 90000, "memory"),
        ("signal_ns", 9000, "meeting"),
        ("ready_ns", 9000, "meeting"),
        ("prepare_ns", 900, "meeting"),
        ("stream_latency_ns", 9000, "memory"),
        ("shared_latency_ns", 9000, "meeting"),
        ("shared_bytes_per_second", 1e11, "meeting"),
        ("stream_bytes_per_second", 4e11, "memory"),
    ],
)
def test_each_number_of_the_device_is_heeded(small, name, value, part):
    work = work_of(small, {"pos": 1024})
    usual = time_of_work(work, TileTimes(H200))
    worse = time_of_work(work, TileTimes(with_number(name, value)))
    assert worse.seconds > 1.05 * usual.seconds
    assert getattr(worse.spent, part) > 1.2 * getattr(usual.spent, part)


def test_choosing_takes_longer_among_more_experts():
    """Each of 32 layers chooses among eight experts, while memory waits."""
    work = work_of(tasks_of("mixtral-8x7b", "expand-tasks", seq=1025), {"pos": 1024})
    usual, worse = (
        time_of_work(work, TileTimes(d)) for d in (H200, with_number("choice_ns", "1:900,17:16900"))
    )
    longer = 32 * 7 * (1000 - 450 / 127) * 1e-9
    assert worse.seconds - usual.seconds == pytest.approx(longer, rel=0.1)


@pytest.mark.parametrize("name", ["signal_waits", "shared_waits"])
def test_what_goes_to_l2_waits_where_memory_is_busy(small, name):
    work = work_of(small, {"pos": 1024})
    for rate, waits in ((4e11, True), (4e15, False)):
        slow = with_number("stream_bytes_per_second", rate)
        numbers = {**slow.numbers, name: Number(900, "assumed", "here")}
        usual, worse = (
            time_of_work(work, TileTimes(d)).spent for d in (slow, replace(slow, numbers=numbers))
        )
        assert (worse.meeting > 1.2 * usual.meeting) is waits


def test_a_device_without_such_numbers_is_refused(small):
    numbers = {name: n for name, n in H200.numbers.items() if name != "signal_ns"}
    with pytest.raises(MeshcError) as caught:
        time_of_work(work_of(small, {"pos": 0}), TileTimes(replace(H200, numbers=numbers)))
    assert caught.value.diagnostics[0].code == "device-number"
    assert "'signal_ns'" in caught.value.diagnostics[0].message


def test_the_ring_is_what_columns_leave():
    times = TileTimes(H200)
    assert times.ring(44032 + 8192) == Ring(10, 3, early=1)  # as the step of Llama-2-7B has
    assert times.ring(0) == Ring(14, 3, early=1)
    assert times.fits(140_000) and not times.fits(183_000)
    assert times.ring(190_000) == Ring(4, 3, early=1)


@pytest.mark.parametrize(
    ("options", "tiles", "size"),
    [
        ({"batch": 1}, 13, 16384),
        ({"batch": 8}, 9, 16384),
        # Vectors come beside weights, codes in whole blocks, scales beside rows of caches.
        ({"batch": 8, "keep_quantised": ("all=int4_128",)}, 7, 19968),
        ({"batch": 1, "kv_dtype": "fp8_e4m3"}, 12, 16896),
    ],
)
def test_the_ring_is_that_of_the_kernel(options, tiles, size):
    """A layer of Llama-2-7B, whose vectors leave so many tiles."""
    asked = {"phase": "decode", "seq": 256, "dtype": "f16", "layers": 1, **options}
    made = meshc.compile("llama-2-7b", target="cuda", device="h200", **asked)
    found = step_time(made.modules["decode"], {"pos": 255})
    text = made.files["step.cu"]
    assert f"constexpr int STAGES = {tiles};" in text
    assert f"constexpr int TILE_BYTES = {size};" in text
    assert found.ring.tiles == tiles


def test_memory_gives_what_was_measured_of_it():
    """Of the rate: 2761, 4208, 4634, 4668 and 4648 GB/s for 1, 2, 3, 4 and 12 tiles of 16 KiB
    (``benchmarks/recorded/h200_rates.json``)."""
    times = TileTimes(H200)
    found = [times.memory(flying).rate / 1e9 for flying in (1, 2, 3, 4, 12)]
    assert found == pytest.approx([2761, 4208, 4634, 4668, 4648], rel=0.06)
    assert found[2:] == pytest.approx([4634, 4668, 4648], rel=0.01)


def test_columns_that_do_not_fit_are_read_for_each_task():
    """Two tasks of a block, of which each reads what one of a smaller width is read once for."""
    small = tasks_of("tests/data/tiny/llama-3h1")
    (phase,) = [s for s in work_of(small, {"pos": 3}) if getattr(s, "name", "") == "result"]
    few = replace(phase, blocks=2)
    usual = phase_times.shared_evenly(few, TileTimes(H200), 2)
    (family,) = phase.families
    wide = replace(few, families=(replace(family, held=10**6),))
    crowded = phase_times.shared_evenly(wide, TileTimes(H200), 2)
    alike = sum(family.waited.values())
    tasks = len(family.tasks) // 2
    assert crowded.read[0] - usual.read[0] == (tasks - 1) * alike > 0
    assert time_of_work([wide], TileTimes(H200)).crowded == ("result",)


def test_times_of_tiles_by_kernel_and_form():
    times = TileTimes(H200)
    ns = {
        piece: round(times.piece(piece) * 1e9)
        for piece in (
            Piece(1, "product", 1),
            Piece(1, "product", 8),
            Piece(1, "product", 12),
            Piece(1, "product", 1, 0.5),
            Piece(1, "attention", 1),
            Piece(1, "attention", 8),
            Piece(1, "attention", 9),
            Piece(1),
        )
    }
    assert [*ns.values()] == [113, 113, 134, 226, 125, 125, 250, 0]
    assert round(TileTimes(H200, packed=True).piece(Piece(1, "product", 1, 0.5)) * 1e9) == 113
    assert round(TileTimes(H200, packed=True).piece(Piece(1, "product", 8, 0.5)) * 1e9) == 226


def test_times_between_and_beyond_known_sizes():
    """A size that is given twice counts once, and no time is below 0."""
    times = TileTimes(with_number("product_tile_ns", "8:100,8:100,10:50"))
    found = [round(times.piece(Piece(1, "product", rows)) * 1e9) for rows in (1, 8, 9, 10, 11, 15)]
    assert found == [100, 100, 75, 50, 25, 0]


def test_a_program_without_phases_takes_no_time():
    found = time_of_work([], TileTimes(H200))
    assert (found.seconds, found.phases, found.ratio) == (0.0, (), inf)


def test_a_task_is_cut_into_tiles():
    times = TileTimes(H200)
    tiles = times.tiles(TaskWork((Piece(40_000, "product", 1),)))
    assert [tile.bytes for tile in tiles] == [16384, 16384, 7232]
    assert tiles[0].computing == pytest.approx(113e-9)
    assert tiles[2].computing == pytest.approx(113e-9 * 7232 / 16384 + 84e-9)
    assert [tile.asking for tile in tiles] == [0, 0, 0]
    (tokens,) = times.tiles(TaskWork((Piece(16384, "attention", 1),)))
    assert tokens.asking == pytest.approx(503e-9)
    assert times.tiles(TaskWork((), 64)) == []


def test_sums_of_times_have_all_parts():
    found = Spent()
    phase_times._add(found, Spent(*range(1, 7)), 2)
    assert [getattr(found, part.name) for part in fields(Spent)] == [2, 4, 6, 8, 10, 12]


def test_weights_of_32_bits_are_stored_and_read_in_the_type_of_the_program(tmp_path):
    """The files of GPT-2 and OLMo-2 have f32; a GPU has f16, and reads half the bytes."""
    times = []
    for kind in ("float16", "float32"):
        config = json.loads((TINY / "config.json").read_text())
        place = tmp_path / f"{kind}.json"
        place.write_text(json.dumps(config | {"dtype": kind}))
        compiled = meshc.compile(str(place), dtype="f16", target="cuda", phase="decode", seq=64)
        times.append(step_time(compiled.modules["decode"], {"pos": 63}))
    assert times[0].bytes == times[1].bytes and times[0].seconds == times[1].seconds
