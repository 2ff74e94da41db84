"""Weights that stream from memory that cores share, rings of a torus, and energy."""

from math import prod
from pathlib import Path

import numpy as np
import pytest

from meshc.cli import main
from meshc.cost.mesh_modules import searched
from meshc.cost.mesh_streams import Streams
from meshc.devices import device
from meshc.driver import CompileRequest, load_any
from meshc.driver.planning.best_mesh import best_mesh, rectangles_around
from meshc.driver.planning.plans import PlanRequest, plan
from meshc.driver.planning.wafers import MeshPhase
from meshc.ir.core import tensor_type
from meshc.support.diagnostics import Diagnostics, MeshcError

DATA = Path(__file__).parents[2] / "data"
TINY = DATA / "tiny" / "llama-9h3-tied"
TORUS = device("blackhole")


def loaded(model):
    return load_any(str(model), Diagnostics())


def planned(model, mesh="14x10", phase="decode", wafer=TORUS, **fields):
    request = CompileRequest(device=wafer, mesh=mesh, phase=phase, **fields)
    return plan(loaded(model), PlanRequest(request))


def matrices():
    """Elements of the matrices of Llama-3-8B that a step reads."""
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    return 32 * layer + 128_256 * 4096


def test_a_step_takes_as_long_as_its_weights_take_to_come():
    """Nearly all ops of Blackhole wait for memory: 15 GB at 512 GB/s."""
    (step,) = planned("llama-3-8b").phases
    read = 2 * matrices()
    assert step.fits and step.stream.uses["weights"] == pytest.approx(read, rel=1e-3)
    least = read / TORUS.global_bytes_per_second
    assert least < step.prediction.seconds < 1.02 * least
    assert step.joules == pytest.approx(300 * step.prediction.seconds)
    assert {"watts", "global_bytes_per_second"} <= {one.name for one in step.prediction.inputs}
    assert step.room.left > 0 and "weights" not in step.room.uses
    of_token = 2 * 32 * 8 * 128 * 2
    assert step.kv_tokens == pytest.approx((32e9 - read) / of_token, rel=1e-3)


def test_caches_stream_where_cores_have_no_room_for_them():
    (near,) = planned("llama-3-8b", seq=1024).phases
    (far,) = planned("llama-3-8b", seq=16_384).phases
    assert "caches" not in near.stream.uses
    assert far.stream.uses["caches"] == 16_384 * 2 * 32 * 8 * 128 * 2
    more = far.stream.uses["caches"] / TORUS.global_bytes_per_second
    assert more < far.prediction.seconds - near.prediction.seconds < 1.25 * more


def test_weights_of_prompts_go_from_core_to_core_in_tiles():
    """A core's part of gate and up alone, of one layer, is larger than all of its memory."""
    (short,) = planned("llama-3-8b", phase="prefill", seq=512).phases
    tiles = 2 * TORUS.whole("tile_bytes")
    assert short.fits and short.stream.uses["weights"] < 2 * matrices()
    assert short.room.uses["tiles of weights on their way to other cores"] == tiles
    assert not any("weight" in name for name in short.room.buffers)
    assert short.prediction.seconds > short.stream.uses["weights"] / TORUS.global_bytes_per_second
    (longer,) = planned("llama-3-8b", phase="prefill", seq=1024).phases
    assert not longer.fits and "--seq 512" in longer.cures


def test_what_fits_cores_is_held_by_them():
    (step,) = planned(TINY, seq=64).phases
    assert step.fits and step.stream is None and step.room.uses["weights"] > 0


def test_memory_that_has_no_room_is_no_cure():
    (step,) = planned("llama-3.3-70b").phases
    assert not step.fits and step.stream is None


def test_phases_that_stream_move_nothing():
    found = planned("llama-3-8b", "90x90", "both", device("dojo"))
    assert found.fits and found.transition.amount == 0
    prompt, step = found.phases
    assert prompt.joules == pytest.approx(15_000 * prompt.prediction.seconds / prompt.tokens)
    assert step.stream.uses == {"weights": pytest.approx(2 * matrices(), rel=1e-3)}


def test_experts_stream_that_are_asked():
    """Of the experts of Mixtral two of eight, where rows go to the cores of their experts."""
    request = CompileRequest(device=TORUS, mesh="8x10", phase="decode", layers=2)
    module = MeshPhase(loaded("mixtral-8x7b"), "decode", request).chosen
    streams = Streams(module, caches=False)
    weights = sum(
        2 * prod(tensor_type(p.value).shape(module.dims))
        for p in module.function.params
        if p.role == "weight"
    )
    read = sum(streams.bytes_of(op) * (2 if op in [*walked(module)] else 1) for op in module.walk())
    sent = any(op.NAME == "mesh.expert_gemv" for op in module.walk())
    experts = 2 * 2 * 8 * 3 * 4096 * 14336
    assert read == pytest.approx(weights - (experts * 3 / 4 if sent else 0), rel=1e-6)


def walked(module):
    """Ops of a layer."""
    for op in module.function.body.ops:
        if op.NAME == "mesh.repeat":
            yield from op.regions[0].walk()


def test_nothing_waits_where_memory_is_fast():
    request = CompileRequest(device=TORUS, mesh="14x10", phase="decode", seq=64)
    module = MeshPhase(loaded(TINY), "decode", request).chosen
    fast = module.the_device().with_numbers(global_bytes_per_second=1e15)
    module.device = fast
    assert searched(module, 1, Streams(module, False)).total == pytest.approx(
        searched(module).total
    )


def test_whole_rings_stay_in_natural_order():
    request = CompileRequest(device=TORUS, mesh="14x10", phase="prefill", seq=140)
    closed = MeshPhase(loaded(TINY), "prefill", request).chosen
    assert not {*closed.the_mesh().interleaved} & {"x", "y"}
    part = CompileRequest(device=TORUS, mesh="7x5", phase="prefill", seq=140)
    assert set(MeshPhase(loaded(TINY), "prefill", part).chosen.the_mesh().interleaved) >= {"x", "y"}


def test_a_torus_is_tried_whole():
    request = CompileRequest(device=TORUS, phase="decode", seq=64)
    tried = []
    best_mesh(loaded(TINY), "decode", request, tried.append)
    assert any("on 14x10" in one for one in tried)


def test_a_device_without_tiles_is_told_so():
    numbers = {n: v for n, v in TORUS.numbers.items() if n != "tile_bytes"}
    with pytest.raises(MeshcError, match="tile_bytes"):
        planned("llama-3-8b", wafer=type(TORUS)(TORUS.facts, numbers, TORUS.sources))


@pytest.mark.slow
def test_energy_of_a_wafer_is_its_power_over_its_time():
    wafer = device("wse2")
    (step,) = planned(TINY, "4x4", wafer=wafer, seq=64).phases
    assert step.joules == pytest.approx(15_000 * step.prediction.seconds)
    (silent,) = planned(TINY, "4x4", wafer=device("toy"), seq=64, dtype="f32").phases
    assert silent.joules is None


def test_programs_of_a_torus_give_what_those_of_a_mesh_do(tmp_path):
    found = []
    for name in ("ideal", "blackhole"):
        out = tmp_path / f"{name}.npy"
        words = [str(TINY), "--device", name, "--mesh", "14x10", "--dtype", "f32", "--seq", "140"]
        words += ["--prompt-ids", "1,2,3,4,5", "--max-tokens", "3", "--logits", str(out)]
        assert main(["run", *words]) == 0
        found.append(np.load(out))
    np.testing.assert_allclose(*found, atol=1e-4)


def test_a_mesh_has_no_more_cores_than_the_device():
    few = TORUS.with_numbers(cores=130)
    with pytest.raises(MeshcError, match="more than the 130 cores"):
        planned(TINY, wafer=few, seq=64)
    assert planned(TINY, "13x10", wafer=few, seq=64).fits


def test_rectangles_lie_around_a_mesh_of_other_sides():
    """The whole of a device is tried, whatever its sides."""
    sides = [2, 4, 8, 10]
    found = rectangles_around([(14, 10), (4, 4)], sides)
    assert (10, 10) in found and (8, 8) in found and (4, 4) in found
    assert {side for mesh in found for side in mesh} <= {*sides}
