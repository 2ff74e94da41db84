"""Ring buffers, masks, RoPE and selected lanes on the simulator: against interpreter and NumPy."""

import json

import numpy as np
import pytest
from csl_runs import emit, emitted, run_files, tile_text
from reduced import crossed, each

from meshc.interp.tile import TileMachine
from meshc.ir.ops.tile import Compute
from meshc.passes.resources.csl.select_functions import SelectCslFunctions
from meshc.support.diagnostics import MeshcError

ARCHS = pytest.mark.parametrize("arch", ["wse2", "wse3"])


def program(buffers, ports, body, scalars="pos = 0..32767"):
    """A tile module of two by two cores, of which the first gives the results."""
    lines = ["module @t level(tile) holds(channels_matched) {"]
    dims = sorted({n for _, shape, _ in buffers for n in shape})
    lines.append(f"  dims {', '.join(f'N{n} = {n}' for n in dims)}")
    lines += [f"  scalars {scalars}", "  mesh y = 2, x = 2"]
    for name, shape, dtype in buffers:
        role = ports.get(name, "")
        extents = ", ".join(map(str, shape))
        lines.append(
            f"  buffer %{name} : {dtype}[{extents}]{f' {{role = {role}}}' if role else ''}"
        )
    for name, shape, dtype in buffers:
        if name in ports:
            way = "out" if ports[name] == "out" else "in"
            lanes = ", ".join("ijkl"[: len(shape)])
            where = ', where = "x = 0 and y = 0"' if way == "out" else ""
            kinds = ", ".join(f"N{n}" for n in shape)
            lines.append(
                f"  port @{name} {way} {dtype}[{kinds}] : %{name} "
                f"{{lanes = [{lanes}], element = [{lanes}]{where}}}"
            )
    return "\n".join([*lines, "  program @main {", body.rstrip(), "  }", "}"]) + "\n"


def both(text, arch, tensors, folder, monkeypatch, pos=0):
    """Outputs on the simulator and those of the interpreter."""
    module = tile_text(text, arch)
    options = ("--pos", str(pos))
    found, _ = run_files(emit({"main": module}), tensors, folder, monkeypatch, options=options)
    machine = TileMachine(module)
    for name, tensor in tensors.items():
        machine.load(name, tensor)
    return found, machine.run({"pos": pos})


@pytest.mark.parametrize(
    ("arch", "dtype", "turns"),
    crossed(["wse2", "wse3"], ["f32", "f16"], [(0, 2), (0, 5), (3, 1), (0, 0)]),
)
def test_rings(arch, dtype, turns, tmp_path, monkeypatch):
    """Entries that wrap around, the oldest dropped; then the mask of what is empty."""
    start, rounds = turns
    capacity = 5
    buffers = [
        ("new", (2, 3), "f32"),
        ("ring", (2, capacity, 3), dtype),
        ("state", (2,), "i32"),
        ("oldest", (2, 3), dtype),
        ("scores", (2, 2, capacity), dtype),
    ]
    ports = {"new": "in", "ring": "out", "oldest": "out", "scores": "out"}
    body = f"    tile.ring_set %state {{count = {start}}}\n"
    body += "    tile.fill %ring {value = 0.0}\n    tile.fill %scores {value = 1.0}\n"
    for _ in range(rounds):
        body += "    tile.add %new, %new, %new\n    tile.ring_push %ring, %new, %state\n"
        body += "    tile.ring_grow %state\n"
    if start + rounds > 3:
        body += f"    tile.ring_drop %state {{capacity = {capacity}}}\n" * 3
        body += "    tile.ring_push %ring, %new, %state\n    tile.ring_grow %state\n"
    body += "    tile.ring_oldest %oldest, %ring, %state\n    tile.mask_slots %scores, %state\n"
    new = np.random.default_rng(0).integers(-4, 5, (2, 3)).astype(np.float32)
    text = program(buffers, ports, body)
    found, wanted = both(text, arch, {"new": new}, tmp_path, monkeypatch)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, name)
    assert np.isneginf(found["scores"]).sum() == 4 * (capacity - held(start, rounds))


def held(start, rounds):
    """Entries in the ring at the end."""
    return start + rounds - (2 if start + rounds > 3 else 0)


@ARCHS
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("position", each([127, 0, 1, 32767, 128, 4095], 3))
def test_rope_turns_by_exact_angles(arch, dtype, position, tmp_path, monkeypatch):
    """Angles of up to 5,000 turns: sines and cosines in f32 are off by 1e-6 at most, and results by
    the rounding of the type."""
    buffers = [("a", (3, 1, 8), dtype), ("f", (4,), "f32"), ("b", (3, 1, 8), dtype)]
    body = '    tile.rope %b, %a, %f {position = "pos", step = 1}\n'
    text = program(buffers, {"a": "in", "f": "in", "b": "out"}, body)
    rng = np.random.default_rng(position)
    a = rng.uniform(-1, 1, (3, 1, 8)).astype({"f32": np.float32, "f16": np.float16}[dtype])
    f = (10000.0 ** (-np.arange(4) / 4)).astype(np.float32)
    tensors = {"a": a, "f": f}
    files = emitted({"main": tile_text(text, arch)}, SelectCslFunctions(accuracy="single"))
    found, _ = run_files(files, tensors, tmp_path, monkeypatch, options=("--pos", str(position)))
    off = np.abs(found["b"] - turned_exactly(a, position, f)).max()
    assert off <= {"f32": 2e-6, "f16": 1e-3}[dtype]


def turned_exactly(a, position, f):
    """Pairs of lanes turned in f64."""
    pairs = a.astype(np.float64).reshape(*a.shape[:-1], -1, 2)
    turned = np.exp(1j * position * f.astype(np.float64)) * (pairs[..., 0] + 1j * pairs[..., 1])
    return np.stack([turned.real, turned.imag], -1).reshape(a.shape)


@ARCHS
@pytest.mark.parametrize("source", ["f16", "f32"])
@pytest.mark.parametrize("position", each([127, 32767, 4095], 2))
def test_lanes_turned_in_half_miss_less_than_two_units(
    arch, source, position, tmp_path, monkeypatch
):
    """Of what f16 resolves at the length of the pair, and 0.5 in the mean."""
    shape, kind = (3, 1, 128), {"f16": np.float16, "f32": np.float32}[source]
    buffers = [("a", shape, source), ("f", (64,), "f32"), ("b", shape, "f16")]
    body = '    tile.rope %b, %a, %f {position = "pos", step = 1}\n'
    text = program(buffers, {"a": "in", "f": "in", "b": "out"}, body)
    rng = np.random.default_rng(position)
    a = (rng.standard_normal(shape) * 10.0 ** rng.uniform(-2, 3, shape)).astype(kind)
    f = (500000.0 ** (-np.arange(64) / 64)).astype(np.float32)
    module = tile_text(text, arch)
    files = emitted({"main": module})
    (op,) = (op for op in module.walk() if getattr(op, "kernel", "") == "rope")
    assert op.way == "angles_half_turns"
    options = ("--pos", str(position))
    found, _ = run_files(files, {"a": a, "f": f}, tmp_path, monkeypatch, options=options)
    given = a.astype(np.float16)
    lengths = np.hypot(*np.moveaxis(given.astype(np.float64).reshape(-1, 2), -1, 0)).repeat(2)
    unit = np.spacing(lengths.astype(np.float16)).astype(np.float64)
    off = np.abs(found["b"] - turned_exactly(given, position, f)).reshape(-1) / unit
    assert off.max() <= 2 and off.mean() <= 0.5


@ARCHS
@pytest.mark.parametrize("position", each([32766, 5119, 259], 3))
def test_sines_and_cosines_of_any_frequency(arch, position, tmp_path, monkeypatch):
    """Of frequencies from 1 down to 2^-30, those by which trained models turn among them."""
    rng = np.random.default_rng(position)
    any_ = np.concatenate([[1.0], 2.0 ** -rng.uniform(0, 30, 31), 5e5 ** -(np.arange(32) / 32)])
    f = any_.astype(np.float32)
    buffers = [("a", (1, 1, 128), "f32"), ("f", (64,), "f32"), ("b", (1, 1, 128), "f32")]
    body = '    tile.rope %b, %a, %f {position = "pos", step = 1}\n'
    text = program(buffers, {"a": "in", "f": "in", "b": "out"}, body)
    files = emit({"main": tile_text(text, arch)})
    assert "turned" in files["main.csl"]  # by vector operations
    tensors = {"a": np.tile(np.float32([1, 0]), 64).reshape(1, 1, 128), "f": f}
    found, _ = run_files(files, tensors, tmp_path, monkeypatch, options=("--pos", str(position)))
    turned = np.exp(1j * position * f.astype(np.float64))
    off = np.abs(found["b"].reshape(-1, 2) - np.stack([turned.real, turned.imag], -1)).max()
    assert off <= 1e-6


@ARCHS
def test_rope_row_by_row_in_a_loop(arch, tmp_path, monkeypatch):
    """Positions that depend on a loop and on the row."""
    buffers = [("a", (2, 3, 4), "f32"), ("f", (2,), "f32"), ("b", (2, 3, 4), "f32")]
    body = """\
    tile.copy %b, %a
    tile.for {var = n, count = 3} {
      tile.rope %b, %b, %f {position = "pos + 2*n", step = 3}
    }
"""
    text = program(buffers, {"a": "in", "f": "in", "b": "out"}, body)
    a = np.random.default_rng(1).uniform(-1, 1, (2, 3, 4)).astype(np.float32)
    f = np.array([1.0, 0.01], np.float32)
    found, wanted = both(text, arch, {"a": a, "f": f}, tmp_path, monkeypatch, 7)
    np.testing.assert_allclose(found["b"], wanted["b"], 0, 2e-6)


@pytest.mark.parametrize(
    ("arch", "shift"), crossed(["wse2", "wse3"], ["pos", "pos - 4", "2*x + 1", "0"])
)
def test_selected_lanes(arch, shift, tmp_path, monkeypatch):
    buffers = [("a", (5, 2), "f32"), ("b", (4, 2), "f16")]
    body = f'    tile.select_lanes %b, %a {{shift = "{shift}"}}\n'
    text = program(buffers, {"a": "in", "b": "out"}, body)
    a = np.arange(10, dtype=np.float32).reshape(5, 2) + 1
    for pos in (0, 2, 6):
        place = tmp_path / str(pos)
        place.mkdir()
        found, wanted = both(text, arch, {"a": a}, place, monkeypatch, pos)
        np.testing.assert_array_equal(found["b"], wanted["b"])


def test_positions_beyond_16_bits_are_refused():
    text = program(
        [("a", (4,), "f32")], {"a": "in"}, "    tile.fill %a {value = 0.0}\n", "pos = 0..32768"
    )
    with pytest.raises(MeshcError, match="'pos' grows to 32768") as caught:
        emit({"main": tile_text(text, "wse3")})
    assert caught.value.diagnostics[0].code == "csl-extent"


@pytest.mark.parametrize(("arch", "dtype"), crossed(["wse2", "wse3"], ["f16", "f32"]))
@pytest.mark.parametrize("head", [0, 3])
def test_masks_and_maxima_go_across_rows(head, dtype, arch, tmp_path, monkeypatch):
    """Empty slots, from the middle on and around the end, and maxima of what is left: lane by lane
    for twelve rows at once, and row by row where that is said."""
    capacity, count = 6, 3
    buffers = [
        ("state", (2,), "i32"),
        ("scores", (3, 4, capacity), dtype),
        ("most", (3, 4), "f32"),
    ]
    body = f"    tile.ring_set %state {{count = {head + count}}}\n"
    body += f"    tile.ring_drop %state {{capacity = {capacity}}}\n" * head
    body += "    tile.mask_slots %scores, %state\n    tile.row_max %most, %scores\n"
    text = program(buffers, {"scores": "in", "most": "out"}, body)
    scores = np.random.default_rng(head).normal(size=(3, 4, capacity))
    tensors = {"scores": scores.astype({"f32": np.float32, "f16": np.float16}[dtype])}
    kept = [(head + n) % capacity for n in range(count)]
    cycles = {}
    for across in (True, False):
        module = tile_text(text, arch)
        files = emitted({"main": module}, SelectCslFunctions(across=across))
        ways = {op.way for op in module.walk() if isinstance(op, Compute)}
        assert ("across" in ways) == across
        folder = tmp_path / str(across)
        folder.mkdir()
        options = ("--pos", "0")
        found, cycles[across] = run_files(files, tensors, folder, monkeypatch, options=options)
        np.testing.assert_array_equal(found["most"], tensors["scores"][..., kept].max(-1))
        if across:
            predicted = json.loads(files["report.json"])["predicted_cycles"]
            assert predicted == pytest.approx(cycles[across], rel=0.1)
    assert cycles[True] < cycles[False]


@pytest.mark.parametrize(
    ("arch", "dtype", "summed"),
    [
        ("wse2", "f16", "f32"),
        ("wse3", "f16", "f16"),
        ("wse2", "f32", "f32"),
        ("wse3", "bf16", "f32"),
    ],
)
def test_sums_go_across_rows(arch, dtype, summed, tmp_path, monkeypatch):
    """Sums of ten rows of four lanes, in the order of these and in the type of the sum: lane by
    lane for all rows at once, and row by row where that is said."""
    buffers = [("values", (2, 5, 4), dtype), ("sums", (2, 5), summed)]
    body = "    tile.row_sum %sums, %values\n"
    text = program(buffers, {"values": "in", "sums": "out"}, body)
    values = np.random.default_rng(3).normal(size=(2, 5, 4)).astype(np.float32)
    if dtype == "bf16":
        values = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    kinds = {"f16": np.float16, "f32": np.float32}
    values = values.astype(kinds.get(dtype, np.float32))
    expected = np.zeros((2, 5), kinds[summed])
    for lane in range(4):
        expected = expected + values[..., lane].astype(kinds[summed])
    cycles = {}
    for across in (True, False):
        module = tile_text(text, arch)
        files = emitted({"main": module}, SelectCslFunctions(across=across))
        (call,) = (op for op in module.walk() if isinstance(op, Compute))
        assert call.way == "across" * across
        folder = tmp_path / str(across)
        folder.mkdir()
        found, cycles[across] = run_files(
            files, {"values": values}, folder, monkeypatch, options=("--pos", "0")
        )
        np.testing.assert_array_equal(found["sums"], expected)
        if across:
            predicted = json.loads(files["report.json"])["predicted_cycles"]
            assert predicted == pytest.approx(cycles[across], rel=0.1)
    assert cycles[True] < cycles[False]
