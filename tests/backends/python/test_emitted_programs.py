"""Emitted tile programs against NumPy and against the core-by-core interpreter."""

import numpy as np
import pytest
from emitted_texts import program_of, relayed_sum, ring_gemm, shift_cache, tile_module, tree_sum

from meshc.interp.tile import TileMachine

RANDOM = np.random.default_rng(3)
MESHES = [(1, 1), (1, 4), (3, 1), (2, 2), (3, 3), (4, 6), (5, 3)]


def interpreted(module, inputs, **scalars):
    machine = TileMachine(module)
    for name, array in inputs.items():
        machine.load(name, array)
    return machine.run(scalars)


@pytest.mark.parametrize(("rows", "columns"), MESHES)
def test_ring_gemm(rows, columns, tmp_path):
    module = ring_gemm(rows, columns, 13, 17, 11)
    a, b = RANDOM.standard_normal((13, 17)), RANDOM.standard_normal((17, 11))
    program = program_of(tmp_path, module, {"B": b})
    for _ in range(2):  # the weights stay in place
        np.testing.assert_allclose(program.run({"A": a})["C"], a @ b, rtol=1e-4, atol=1e-5)
    wanted = interpreted(module, {"A": a, "B": b})["C"]
    np.testing.assert_allclose(program.run({"A": a})["C"], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("rows", "columns"), [(2, 1), (5, 2), (7, 3), (9, 2), (16, 1)])
@pytest.mark.parametrize("combine", ["add", "max"])
def test_tree_sum_with_sweeps(rows, columns, combine, tmp_path):
    module = tree_sum(rows, columns, 3, combine=combine)
    part = RANDOM.standard_normal((rows, columns, 5)).astype(np.float32)
    reduce = {"add": np.sum, "max": np.max}[combine]
    expected = np.broadcast_to(reduce(part, 0, keepdims=True), part.shape)
    got = program_of(tmp_path, module).run({"part": part})["sums"]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got, interpreted(module, {"part": part})["sums"])


@pytest.mark.parametrize(("rows", "columns"), [(2, 1), (5, 2), (9, 3)])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("order", [False, True])
def test_relays_leave_what_they_pass_on_alone(rows, columns, dtype, order, tmp_path):
    """Also with cores numbered at random, where memory is no grid."""
    module = relayed_sum(rows, columns, dtype)
    part = RANDOM.standard_normal((rows, columns, 4)).astype(np.float16).astype(np.float32)
    numbers = RANDOM.permutation(rows * columns) if order else None
    got = program_of(tmp_path, module, order=numbers).run({"part": part})
    wanted = interpreted(module, {"part": part})
    np.testing.assert_array_equal(got["sums"], wanted["sums"])
    np.testing.assert_array_equal(got["most"], wanted["most"])


def shifted(entries, rows):
    """Share of each row: as even as can be, in order, the longer ones first."""
    counts = [(len(entries) + rows - 1 - y) // rows for y in range(rows)]
    ends = np.cumsum(counts)
    return [entries[end - count : end] for count, end in zip(counts, ends, strict=True)]


@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (2, 1), (3, 2), (4, 1)])
def test_cache_shift_keeps_order_and_balance(rows, columns, tmp_path):
    slots, lanes = 3, 2
    module = shift_cache(rows, columns, slots, lanes)
    program = program_of(tmp_path, module)
    machine = TileMachine(module)
    entries = RANDOM.standard_normal((rows * slots, columns, lanes)).astype(np.float32)
    for pos, entry in enumerate(entries):
        out = program.run({"entry": entry}, pos=pos)
        machine.load("entry", entry)
        wanted = machine.run({"pos": pos})
        np.testing.assert_array_equal(out["held"], wanted["held"])
        np.testing.assert_array_equal(out["counts"], wanted["counts"])
        for y, share in enumerate(shifted(entries[: pos + 1], rows)):
            head, count = out["counts"][y, 0].astype(int)
            order = [(head + i) % slots for i in range(count)]
            np.testing.assert_array_equal(out["held"][y, :, order], share)


GUARDED = """dims Y = 3, X = 4, I = 2
  buffer %v : f32[2] {role = in}
  buffer %w : f32[2] {role = out}
  port @v in f32[Y, X, I] : %v {lanes = [i], element = [y, x, i]}
  port @w out f32[Y, X, I] : %w {lanes = [i], element = [y, x, i]}
  scalars n = 0..5"""


@pytest.mark.parametrize("n", [0, 3, 5])
def test_guards_of_every_kind(n, tmp_path):
    """On all cores, some, none; on scalars, loop variables and coordinates; around loops."""
    body = """
      tile.copy %w, %v
      tile.scale %w, %w {factor = 2.0, when = "y >= 0"}
      tile.scale %w, %w {factor = 3.0, when = "x mod 2 = 1 and y >= 1"}
      tile.scale %w, %w {factor = 5.0, when = "n >= 3"}
      tile.scale %w, %w {factor = 7.0, when = "x = 9"}
      tile.for {var = t, count = n, when = "x + y = 3 or x = 0"} {
        tile.add %w, %w, %v {when = "t <= y"}
        tile.fill %w[t mod 2] {value = -1.0, when = "t = 4 and y = 2"}
      }
      tile.for {var = u, count = 2, when = "n > 4"} { tile.add %w, %w, %v {when = "u < x"} }"""
    module = tile_module(3, 4, GUARDED, body)
    v = RANDOM.standard_normal((3, 4, 2)).astype(np.float32)
    got = program_of(tmp_path, module).run({"v": v}, n=n)["w"]
    np.testing.assert_array_equal(got, interpreted(module, {"v": v}, n=n)["w"])


def test_views_that_differ_between_cores(tmp_path):
    header = """dims Y = 2, X = 3, A = 3, B = 4
      mesh_ buffer %v : f32[3, 4] {role = in}
      buffer %w : f32[3, 4] {role = out}
      buffer %t : f32[2, 2]
      port @v in f32[Y, X, A, B] : %v {lanes = [a, b], element = [y, x, a, b]}
      port @w out f32[Y, X, A, B] : %w {lanes = [a, b], element = [y, x, a, b]}""".replace(
        "mesh_ ", ""
    )
    body = """
      tile.copy %w, %v
      tile.copy %w[x], %v[(x + y) mod 3]
      tile.copy %t, %v[x mod 2 +: 2, 2*y +: 2] order [1, 0]
      tile.copy %w[1 +: 2, y +: 2 by 2], %t
      tile.for {var = i, count = 3} {
        tile.add %w[(i + x) mod 3, y], %w[(i + x) mod 3, y], %v[i, 3 - x] {when = "x >= i"}
      }
      tile.copy %w[x, 0 +: 4] as [2, 2] order [1, 0], %w[x, 0 +: 4] as [2, 2] {when = "y = 1"}
      tile.rotate %w {by = "x + 2*y"}"""
    module = tile_module(2, 3, header, body)
    v = RANDOM.standard_normal((2, 3, 3, 4)).astype(np.float32)
    got = program_of(tmp_path, module).run({"v": v})["w"]
    np.testing.assert_array_equal(got, interpreted(module, {"v": v})["w"])


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_half_types_are_rounded_at_each_store(dtype, tmp_path):
    header = f"""dims Y = 2, X = 2, I = 6
      options dtype = {dtype}
      buffer %v : {dtype}[6] {{role = in}}
      buffer %k : {dtype}[6] {{role = weight}}
      buffer %sum : f32[6] {{role = out}}
      buffer %w : {dtype}[6] {{role = out}}
      channel @ring "{{ [y, x] -> [y, (x + 1) mod 2] }}"
      port @v in {dtype}[Y, X, I] : %v {{lanes = [i], element = [y, x, i]}}
      port @k in {dtype}[I] : %k {{lanes = [i], element = [i]}}
      port @w out {dtype}[Y, X, I] : %w {{lanes = [i], element = [y, x, i]}}
      port @sum out f32[Y, X, I] : %sum {{lanes = [i], element = [y, x, i]}}"""
    body = """
      tile.mul %w, %v, %k
      %s = tile.send @ring, %v : token
      %r = tile.recv @ring, %w {combine = add} : token
      tile.wait %s, %r
      tile.silu %w, %w {when = "x = 1"}
      tile.add %sum, %w, %v"""
    module = tile_module(2, 2, header, body)
    v = RANDOM.standard_normal((2, 2, 6)).astype(np.float32)
    v[0, 0] = [1e-7, 70000.0, -0.0, 3.14159, -6.1e-5, 1e30]
    k = np.abs(RANDOM.standard_normal(6)).astype(np.float32)
    got = program_of(tmp_path, module, {"k": k}).run({"v": v})
    wanted = interpreted(module, {"v": v, "k": k})
    np.testing.assert_array_equal(got["w"], wanted["w"])
    np.testing.assert_array_equal(got["sum"], wanted["sum"])
    assert not np.array_equal(got["sum"], v)


def test_prompt_rows_beyond_the_length_are_padding(tmp_path):
    header = """dims L = 6, I = 2
      scalars len = 1..6
      buffer %v : f32[3, 2] {role = in}
      buffer %w : f32[3, 2] {role = out}
      port @v in f32[L, I] : %v {lanes = [l, i], element = ["2*l + y", i], pad = 7.0}
      port @w out f32[L, I] : %w {lanes = [l, i], element = ["2*l + y", i]}"""
    module = tile_module(2, 1, header, "tile.scale %w, %v {factor = 2.0}")
    program = program_of(tmp_path, module)
    v = RANDOM.standard_normal((4, 2)).astype(np.float32)
    np.testing.assert_array_equal(program.run({"v": v}, len=4)["w"], 2 * v)
    np.testing.assert_array_equal(program.run({"v": v[:3]})["w"], 2 * v[:3])
    assert program.phase.scalars == {"len": (1, 6)}


def test_regions_run_one_after_the_other(tmp_path):
    """A value passes through all regions; each adds what it holds."""
    header = """dims R = 3, X = 2, I = 2
      buffer %v : f32[2] {role = in}
      buffer %k : f32[2] {role = weight}
      channel @next "{ [r, y, x] -> [r + 1, y, x] : r <= 1 }"
      port @v in f32[X, I] : %v {lanes = [i], element = [x, i], where = "r = 0"}
      port @k in f32[R, I] : %k {lanes = [i], element = [r, i]}
      port @w out f32[X, I] : %v {lanes = [i], element = [x, i], where = "r = 2"}"""
    body = """
      tile.sweep {rank = r, count = 3} {
        %got = tile.recv @next, %v {when = "r >= 1"} : token
        tile.wait %got
        tile.add %v, %v, %k
        %sent = tile.send @next, %v {when = "r <= 1"} : token
      }"""
    module = tile_module(1, 2, header, body, regions=3)
    v, k = RANDOM.standard_normal((2, 2)), RANDOM.standard_normal((3, 2))
    got = program_of(tmp_path, module, {"k": k}).run({"v": v})["w"]
    np.testing.assert_allclose(got, v + k.sum(0), rtol=1e-6)
