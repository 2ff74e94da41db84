"""The capacity of KV caches that ``meshc estimate --kv`` predicts is where the emitted program on
the fabric simulator overflows: at that token, on that core, and not before."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from csl_prompts import MODEL
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import meshc.devices
from meshc.driver import CompileRequest, compile_loaded, graph_module, load_any
from meshc.driver.capacity import capacities, capacity
from meshc.driver.core_fit import planned
from meshc.driver.remedies import NO_ROOM
from meshc.interp.check import random_trace
from meshc.sim.emitted_runs import compile_folder, host_names
from meshc.sim.machine.run_options import Options
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.output import write_directory

DEVICES = Path(meshc.devices.__file__).parent / "data"
SIZES = {"E": 6, "H": 4, "G": 2, "D": 4, "F": 6, "layers": 2, "dtype": "f16"}
FULL = 49152


def small_device(folder, arch, memory):
    """The device ``arch`` with cores of ``memory`` bytes."""
    text = (DEVICES / f"{arch}.toml").read_text()
    text, found = re.subn(
        r"memory_bytes = {value = 49_152", f"memory_bytes = {{value = {memory}", text
    )
    assert found == 1
    path = folder / f"{arch}_{memory}.toml"
    path.write_text(text)
    return str(path)


def twin(folder, arch, mesh, kv, slack, **sizes):
    """A small model, and a request for cores that have ``slack`` bytes more than a program for one
    token takes."""
    path = folder / "twin.mesh"
    path.write_text(MODEL.format(**SIZES | sizes))
    loaded = load_any(str(path), Diagnostics())
    request = CompileRequest("csl", arch, mesh=mesh, phase="decode", kv=kv)
    spare = planned(loaded, "decode", CompileRequest("csl", arch, mesh=mesh, kv=kv, seq=1)).spare
    return loaded, request, small_device(folder, arch, FULL - spare + slack)


class Steps:
    """The decode step for caches of ``tokens`` on the simulator; the host can be told to let
    positions through that it would refuse."""

    def __init__(self, loaded, request, tokens, folder):
        asked = CompileRequest(**{**vars(request), "seq": tokens})
        compiled = compile_loaded(loaded, asked)
        write_directory(folder / "program", compiled.files, compiled.facts)
        compile_folder(folder / "program", folder / "out")
        options = Options(strict_queues=True, files=False)
        self.names = host_names(folder / "program" / "run.py", options)
        graph = graph_module(loaded, "decode", asked)
        self.weights = random_trace(graph, 1).constant
        self.model = self.names["Model"](str(folder / "out"), self.weights.__getitem__)
        (self.state,) = (n for n, _, dtype in self.names["KEPT"] if np.dtype(dtype).kind == "i")

    def step(self, position):
        """Run one step, of any token."""
        return self.model.step(position % len(self.weights["embedding"]), position)

    def let_through(self):
        """Let the host refuse no position."""
        self.names["Program"].run.__globals__["SCALARS"]["pos"] = (0, 1 << 14)

    def held(self):
        """The entries of the cache of the first layer, for each core by region, row and column."""
        state = self.model.program.kept()[self.state]
        layers = state.reshape(*state.shape[: state.ndim - 2], -1, 2)
        counts = layers[..., 0, 1]
        return counts if counts.ndim == 3 else counts[None]


def check_overflow(loaded, request, found, folder):
    """The program for as many tokens as were predicted takes them all, the host refuses one more
    and leaves the caches as they were; on PEs that run it all the same, the predicted core and none
    before it has more entries than slots."""
    tokens, overflow = found.tokens, found.overflow
    steps = Steps(loaded, request, tokens, folder)
    logits = [steps.step(position) for position in range(tokens)]
    assert np.isfinite(logits).all()
    assert all((one != other).any() for one, other in pairwise(logits[:3]))
    assert steps.held().max() <= overflow.slots
    before = steps.model.program.kept()
    with pytest.raises(SystemExit, match=f"--pos is {tokens}, not 0 to {tokens - 1}"):
        steps.step(tokens)
    with pytest.raises(SystemExit, match=f"do not fit a cache of {tokens}"):
        steps.model.generate([1, 2], tokens)
    for name, array in steps.model.program.kept().items():
        np.testing.assert_array_equal(array, before[name])
    steps.let_through()
    steps.step(tokens)
    full = np.argwhere(steps.held() > overflow.slots)
    region, row, column = full[0]
    core = overflow.core
    assert (core.get("r", 0), core["y"], core["x"]) == (region, row, column)
    assert len(full) == overflow.cores


@pytest.mark.parametrize(
    ("kv", "arch", "mesh"),
    [
        pytest.param("concat", "wse2", "2x3", marks=pytest.mark.slow),
        pytest.param("shift", "wse2", "2x3", marks=pytest.mark.slow),
        pytest.param("cyclic", "wse3", "3x2", marks=pytest.mark.slow),
        pytest.param("shift", "wse3", "3x4", marks=pytest.mark.slow),
        pytest.param("concat", "wse3", "1x4", marks=pytest.mark.slow),
    ],
)
def test_the_simulated_run_overflows_where_it_is_predicted(kv, arch, mesh, tmp_path):
    loaded, request, device = twin(tmp_path, arch, mesh, kv, 600)
    request = CompileRequest(**{**vars(request), "device": device})
    found = capacity(loaded, request)
    rows = int(mesh.split("x")[1])
    assert found.tokens > 2 * rows and found.refused.code in NO_ROOM
    assert found.overflow.core["y"] == (0 if kv != "concat" else 1)  # the ring's last row is at 1
    with pytest.raises(MeshcError) as refusal:
        compile_loaded(loaded, CompileRequest(**{**vars(request), "seq": found.tokens + 1}))
    assert refusal.value.diagnostics[0].code == found.refused.code
    check_overflow(loaded, request, found, tmp_path)


@pytest.mark.slow
def test_shifted_caches_hold_as_many_times_more_as_there_are_rows(tmp_path):
    """Shift against concat as in Table 5 of WaferLLM: one row of cores holds what all could."""
    loaded, request, device = twin(tmp_path, "wse2", "2x5", "shift", 300, layers=1)
    request = CompileRequest(device=device, mesh=request.mesh_name)
    found = {policy: one for one in capacities(loaded, request) for policy in one.policies}
    assert found.keys() == {"shift", "cyclic", "concat"}
    for one in found.values():
        assert sum(one.fit.uses.values()) == device_memory(device)
        rows = 1 if one.policies == ("concat",) else 5
        assert one.tokens == one.overflow.slots * rows and one.tokens > 0


def device_memory(path):
    """Bytes of a core of the device in ``path``."""
    return int(re.search(r"memory_bytes = {value = (\d+)", Path(path).read_text())[1])


@pytest.mark.slow
def test_regions_overflow_together(tmp_path):
    loaded, request, device = twin(tmp_path, "wse3", "r=2,y=2,x=2", "shift", 300)
    request = CompileRequest(**{**vars(request), "device": device})
    found = capacity(loaded, request)
    assert found.overflow.core == {"r": 0, "y": 0, "x": 0}
    assert found.overflow.cores == 4
    check_overflow(loaded, request, found, tmp_path)


@st.composite
def twins(draw):
    """Sizes of a model, the mesh, the policy and the bytes that are left to caches."""
    groups = draw(st.integers(1, 2))
    sizes = {
        "E": draw(st.integers(2, 8)),
        "H": groups * draw(st.integers(1, 2)),
        "G": groups,
        "D": 2 * draw(st.integers(1, 3)),
        "F": draw(st.integers(2, 8)),
        "layers": draw(st.integers(1, 3)),
        "dtype": draw(st.sampled_from(["f32", "f16"])),
    }
    return {
        "arch": draw(st.sampled_from(["wse2", "wse3"])),
        "mesh": f"{draw(st.integers(1, 3))}x{draw(st.integers(2, 4))}",
        "kv": draw(st.sampled_from(["shift", "cyclic", "concat"])),
        "slack": draw(st.integers(0, 900)),
        **sizes,
    }


def check_any_twin(folder, drawn):
    """A drawn model overflows where it is predicted; those whose queues do not suffice are drawn
    again."""
    try:
        loaded, request, device = twin(folder, **drawn)
    except MeshcError as refusal:
        assert refusal.diagnostics[0].code in {"too-many-queues", "csl-queues"}, refusal
        assume(False)
    request = CompileRequest(**{**vars(request), "device": device})
    found = capacity(loaded, request)
    assert found.tokens and found.refused.code in NO_ROOM
    check_overflow(loaded, request, found, folder)


@settings(max_examples=1, derandomize=True)
@given(twins())
def test_any_twin(tmp_path_factory, drawn):
    check_any_twin(tmp_path_factory.mktemp("twin"), drawn)


@pytest.mark.slow
@settings(max_examples=100, suppress_health_check=[*HealthCheck])
@given(twins())
def test_many_twins(tmp_path_factory, drawn):
    check_any_twin(tmp_path_factory.mktemp("twin"), drawn)
