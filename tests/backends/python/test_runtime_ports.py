"""Packing and gathering by ports against the interpreter's element-by-element maps."""

import tracemalloc

import numpy as np
import pytest
from emitted_texts import program_of, tile_module
from meshes import runtime_wafer

from meshc.backends.python.runtime import Fabric, Phase, PortError, element
from meshc.backends.python.runtime import ports as runtime_ports
from meshc.interp.ports import PortMap

RANDOM = np.random.default_rng(12)

# dims of the tensor; shape of the buffer; what the port says
PORTS = {
    "blocks": ("A = 10, B = 9", "[3, 2]", 'lanes = [i, j], element = ["3*y + i", "2*x + j"]'),
    "transposed": ("A = 10, B = 9", "[2, 3]", 'lanes = [j, i], element = ["3*y + i", "2*x + j"]'),
    "cyclic": ("A = 10, B = 9", "[3, 2]", 'lanes = [i, j], element = ["y + 4*i", "x + 5*j"]'),
    "ring": ("A = 10", "[3]", 'lanes = [i], element = ["3*rank_y + i"], pad = 5.0'),
    "flattened heads": (
        "A = 6, H = 5, D = 4",
        "[2, 4]",
        "lanes = [k, f], element = "
        '["2*y + k", "xh*2 + floor(f/2)", "2*rank_xd + f mod 2"], where = "f < 4"',
    ),
    "pairs": (
        "A = 6, D = 8",
        "[2, 4]",
        'lanes = [k, f], lets = ["p = 4*xd + f"], element = '
        '["2*y + k", "floor(p/2) + 4*(p mod 2)"], where = "p < 8"',
    ),
    "apart": (
        "H = 3, A = 6, D = 2",
        "[2, 6]",
        'lanes = [k, f], element = ["floor(f/2)", "2*y + k", "f mod 2"]',
    ),
    "coupled": (
        "A = 12, B = 9",
        "[3, 4]",
        'lanes = [i, j], element = ["3*y + (i + j) mod 3", "j + 2*x"], where = "i + j <= 4"',
    ),
    "one of many": (
        "A = 8",
        "[2, 3]",
        'lanes = [i, j], element = ["2*y + i"], where = "x = 1 or j = 2 and x = 0"',
    ),
    "spread": ("A = 3, B = 2", "[2, 2, 3]", 'lanes = [r_, c, i], element = [i, "(x + y) mod 2"]'),
    "chunks": (
        "A = 12, B = 5",
        "[2, 2, 2]",
        'lanes = [s, q, f], lets = ["k = (rank_y + 2*rank_x + s) mod 6", "home = core_x(k)"], '
        'element = ["2*home + q", "2*rank_x + f"], where = "q < 2"',
    ),
    "constant": ("O = 1, A = 4", "[4]", 'lanes = [i], element = [0, i], where = "y < 2"'),
}


def module_with(name, direction="in", role="weight"):
    dims, shape, port = PORTS[name]
    tensor = ", ".join(part.split(" = ")[0] for part in dims.split(", "))
    header = f"""dims {dims}
      buffer %t : f32{shape} {{role = {role}}}
      port @t {direction} f32[{tensor}] : %t {{{port}}}"""
    if direction == "in":
        header += f"""
      buffer %o : f32{shape} {{role = out}}
      port @o out f32[{tensor}] : %o {{{port}}}"""
    mesh = {"segments": 3, "interleaved": ("y", "x", "xd")}
    return tile_module(4, 6, header, "tile.copy %o, %t" if direction == "in" else "", **mesh)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("role", ["weight", "in"])
@pytest.mark.parametrize("name", PORTS)
def test_packing(name, role, ordered, tmp_path, monkeypatch):
    module = module_with(name, role=role)
    port = module.ports[0]
    tensor = RANDOM.standard_normal(port.tensor.shape(module.dims)).astype(np.float32)
    order = None if ordered else RANDOM.permutation(24)
    program = program_of(tmp_path, module, {"t": tensor} if role == "weight" else {}, order)
    phase = program.phase
    if role == "in":
        phase._inlets[0].load({"t": tensor})
    buffer = phase._roles[0][0]
    expected = np.zeros((24, *buffer.shape), np.float32)
    PortMap(port, module.mesh).spread(tensor, expected, {})
    np.testing.assert_array_equal(buffer.memory.array[phase.fabric.lane_of_core], expected)


@pytest.mark.parametrize("name", PORTS)
def test_large_inputs_are_packed_without_an_index(name, tmp_path):
    module = module_with(name, role="in")
    tensor = RANDOM.standard_normal(module.ports[0].tensor.shape(module.dims)).astype(np.float32)
    program = program_of(tmp_path, module)
    (inlet,) = program.phase._inlets
    inlet.load({"t": tensor})
    memory = program.phase._roles[0][0].memory.array
    before = memory.copy()
    memory.fill(np.nan)
    type(inlet).load.__globals__["_INDEXED"] = 0
    inlet.load({"t": tensor})
    np.testing.assert_array_equal(memory, before)


@pytest.mark.parametrize("name", sorted(set(PORTS) - {"apart", "spread"}))
def test_gathering_gives_back_what_was_packed(name, tmp_path):
    module = module_with(name)
    tensor = RANDOM.standard_normal(module.ports[0].tensor.shape(module.dims)).astype(np.float32)
    program = program_of(tmp_path, module, {"t": tensor})
    covered = np.zeros(tensor.shape, bool)
    places = PortMap(module.ports[1], module.mesh)
    for core in range(24):
        covered[places.lanes(core, tensor.shape, {})[2]] = True
    if covered.all():
        np.testing.assert_array_equal(program.run({})["o"], tensor)
    else:
        with pytest.raises(Exception, match="no core provides all of the output 'o'"):
            program.run({})


def test_several_ports_fill_one_buffer(tmp_path):
    header = """dims A = 3, B = 5, X = 2, F = 8
      buffer %w : f32[8] {role = weight}
      buffer %o : f32[8] {role = out}
      port @a in f32[A] : %w {lanes = [f], element = [f], where = "f < 3", pad = 9.0}
      port @b in f32[B] : %w {lanes = [f], element = ["f - 3 + x"], where = "f >= 3 and f < 7"}
      port @o out f32[X, F] : %o {lanes = [f], element = [x, f]}"""
    module = tile_module(1, 2, header, "tile.copy %o, %w")
    a, b = np.arange(3.0), np.arange(10.0, 15.0)
    got = program_of(tmp_path, module, {"a": a, "b": b}).run({})["o"]
    np.testing.assert_array_equal(got, [[0, 1, 2, 10, 11, 12, 13, 0], [0, 1, 2, 11, 12, 13, 14, 0]])


def phases_that_load(*lanes):
    """Phases on one fabric, each with a buffer of constants loaded from the tensor t."""
    fabric = Fabric(runtime_wafer(2, 3))
    found = []
    for number, function in enumerate(lanes):
        phase = Phase(fabric, str(number))
        buffer = phase.buffer("w", "f32", 4, role="weight")
        phase.port("in", "t", {"A": 8}, buffer, function(phase.core))
        phase.load({"t": np.arange(8.0)})
        found.append(buffer.memory.array)
    return found


def test_equal_packings_share_their_memory():
    def halves(core):
        return lambda i: element(4 * (core.x % 2) + i)

    def the_same(core):
        return lambda i: element(i + 4 * (core.x - 2 * (core.x // 2)))

    def other(core):
        return lambda i: element(4 * (core.y % 2) + i)

    first, second, third = phases_that_load(halves, the_same, other)
    assert first is second and first is not third


def test_tensors_that_do_not_fit():
    phase = Phase(Fabric(runtime_wafer(1, 1)), "p")
    weight = phase.buffer("w", "f32", 2, role="weight")
    phase.port("in", "t", {"A": 2}, weight, lambda i: element(i))
    with pytest.raises(PortError, match="no tensor 't'"):
        phase.load({})
    with pytest.raises(PortError, match=r"'t' has shape \(3,\), not \(2,\)"):
        phase.load({"t": np.zeros(3)})
    assert phase.load({"t": np.zeros(2)}) is phase
    with pytest.raises(ValueError, match="the phase p is loaded already"):
        phase.load({"t": np.ones(2)})
    with pytest.raises(PortError, match="has 2 indices for 1"):
        runtime_ports.Packing(
            phase.fabric,
            runtime_ports.Port("t", {"A": 2}, weight, lambda i: element(i, i)),
        )


def test_packing_needs_little_memory_beside_the_tensor(tmp_path):
    """Index vectors, not an index per element."""
    header = """dims N = 8, A = 256, B = 512
      buffer %t : f32[8, 64, 128] {role = weight}
      port @t in f32[N, A, B] : %t
        {lanes = [n, i, j], element = [n, "64*y + i", "128*rank_x + j"]}
      port @o out f32[N, A, B] : %t
        {lanes = [n, i, j], element = [n, "64*y + i", "128*rank_x + j"]}"""
    module = tile_module(4, 4, header, "", interleaved=["x"])
    tensor = np.zeros((8, 256, 512), np.float32)
    program_of(tmp_path, module, {"t": tensor})  # imports
    tracemalloc.start()
    program_of(tmp_path, module, {"t": tensor})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.3 * tensor.nbytes
