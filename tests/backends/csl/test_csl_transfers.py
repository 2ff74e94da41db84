"""Transfers: faults that random programs found, each as the least program that shows it."""

import numpy as np
import pytest
from csl_runs import emit, run_files, tile_text
from reduced import crossed

from meshc.interp.tile import TileMachine
from meshc.ir.parser import parse_module
from meshc.support.spans import Source

HEAD = """\
module @t level(tile) holds(channels_matched, deadlock_free, guards_cover) {
  dims Y = 1, X = 3, N = 4
  scalars pos = 0..2
  mesh y = 1, x = 3
  buffer %a : f32[4] {role = in}
  buffer %b : f32[4] {role = in}
  buffer %c : f32[4] {role = in}
  channel @cast_x "{ [y, x] -> [y, _x] : _x >= 1 and _x <= 2 and x = 0 }" {multicast = true}
  channel @chain_x_1 "{ [y, x] -> [y, x - 1] : x >= 1 }"
  port @a in f32[Y, X, N] : %a {lanes = [i], element = [y, x, i]}
  port @b in f32[Y, X, N] : %b {lanes = [i], element = [y, x, i]}
  port @c in f32[Y, X, N] : %c {lanes = [i], element = [y, x, i]}
  port @b_after out f32[Y, X, N] : %b {lanes = [i], element = [y, x, i]}
  port @c_after out f32[Y, X, N] : %c {lanes = [i], element = [y, x, i]}
  program @main {
"""

TWO_MESSAGES = """\
    %s1 = tile.send @cast_x, %a[0 +: 1] {when = "x = 0"} : token
    %r1 = tile.recv @cast_x, %b[0 +: 1] {when = "x >= 1"} : token
    %s2 = tile.send @cast_x, %a[1 +: 3] {when = "x = 0"} : token
    %r2 = tile.recv @cast_x, %b[1 +: 3] {when = "x >= 1"} : token
    tile.wait %s1, %r1, %s2, %r2
"""

GUARDED_BY_SCALARS = """\
    %s1 = tile.send @cast_x, %a {when = "x = 0"} : token
    %r1 = tile.recv @cast_x, %b {when = "x >= 1"} : token
    tile.wait %s1, %r1
    %s2 = tile.send @chain_x_1, %a {when = "x >= 1 and pos >= 1"} : token
    %r2 = tile.recv @chain_x_1, %c {combine = add, when = "x <= 1 and pos >= 1"} : token
    tile.wait %s2, %r2
"""

LOOPS_OF_ONE_NAME = """\
    tile.for {var = t, count = 3} {
      %s1 = tile.send @chain_x_1, %a[0 +: 1] {when = "x >= 1"} : token
      %r1 = tile.recv @chain_x_1, %b[0 +: 1] {when = "x <= 1"} : token
      %s2 = tile.send @chain_x_1, %a[(x - t) mod 4 +: 1] {when = "x >= 1"} : token
      %r2 = tile.recv @chain_x_1, %b[t +: 1] {combine = add, when = "x <= 1"} : token
      tile.wait %s1, %r1, %s2, %r2
    }
    tile.for {var = t, count = 1} {
      tile.copy %c[t], %a[t]
    }
"""

CASES = {
    "loops of one name": LOOPS_OF_ONE_NAME,
    "two messages of some cores": TWO_MESSAGES,
    "queues shared by place": GUARDED_BY_SCALARS,
}


@pytest.mark.parametrize(
    ("name", "pos", "arch"), crossed([*CASES], [0, 2], ["wse2", "wse3"], times=2)
)
def test_transfers(name, pos, arch, tmp_path, monkeypatch):
    text = HEAD + CASES[name] + "  }\n}\n"
    rng = np.random.default_rng(0)
    tensors = {n: rng.integers(-9, 9, (1, 3, 4)).astype(np.float32) for n in "abc"}
    machine = TileMachine(parse_module(Source("t.meshir", text)))
    for name, tensor in tensors.items():
        machine.load(name, tensor)
    expected = machine.run({"pos": pos})
    files = emit({"main": tile_text(text, arch)})
    found, _ = run_files(files, tensors, tmp_path, monkeypatch, options=["--pos", str(pos)])
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
