"""Channels with turns: messages arrive in the order of turns, whenever they were sent."""

import numpy as np
import pytest
from turn_texts import all_gather

from meshc.interp.tile import TileMachine
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source
from meshc.verify import check_claims

EXECUTORS = [
    (transfers, schedule)
    for transfers in ("early", "late")
    for schedule in ("round-robin", "depth-first", "random(1)", "random(2)")
]

# Every core sends at once; only turns put the messages in order.
AT_ONCE = """\
module @at_once level(tile) {
  dims Y = 2, X = 4, P = 4
  mesh y = 2, x = 4
  buffer %own : f32[1] {role = in}
  buffer %all : f32[4] {role = out}
  channel @up "{ [y, x] -> [y, _x] : x < _x and _x <= 3 }" {multicast = true, turns = 1}
  channel @down "{ [y, x] -> [y, _x] : _x >= 0 and _x <= x }" {multicast = true, turns = 1}
  port @own in f32[Y, X] : %own {lanes = [i], element = [y, x]}
  port @all out f32[Y, X, P] : %all {lanes = [i], element = [y, x, i]}
  program @main {
    %su = tile.send @up, %own {when = "x <= 2"} : token
    %sd = tile.send @down, %own : token
    tile.for {var = t, count = 4} {
      %ru = tile.recv @up, %all[t] {when = "x > t"} : token
      %rd = tile.recv @down, %all[t] {when = "x <= t"} : token
      tile.wait %ru, %rd
    }
    tile.wait %su, %sd
  }
}
"""


def ran(text, executor, **inputs):
    module = parse_module(Source("turns.meshir", text))
    check_claims(module)
    assert print_module(module) == print_module(parse_module(Source("again", print_module(module))))
    machine = TileMachine(module, *executor)
    for name, value in inputs.items():
        machine.load(name, value)
    return machine.run()


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("rows", "columns", "axis"), [(1, 4, "x"), (3, 2, "x"), (5, 2, "y")])
@pytest.mark.parametrize("each", [1, 2])
def test_all_cores_of_a_line_give_what_they_have(rows, columns, axis, each, executor):
    given = np.random.default_rng(3).standard_normal((rows, columns, each)).astype(np.float32)
    found = ran(all_gather(rows, columns, axis, each, rounds=2), executor, own=given)["all"]
    lined = given if axis == "x" else given.transpose(1, 0, 2)
    lines = lined.reshape(lined.shape[0], -1)
    for y in range(rows):
        for x in range(columns):
            line = lines[y if axis == "x" else x]
            np.testing.assert_array_equal(found[y, x], np.stack([line, line]))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_messages_wait_for_their_turns(executor):
    given = np.arange(8.0).reshape(2, 4)
    found = ran(AT_ONCE, executor, own=given)["all"]
    np.testing.assert_array_equal(found, np.broadcast_to(given[:, None], (2, 4, 4)))


def test_a_message_whose_turn_never_comes_is_reported():
    text = AT_ONCE.replace(
        "%own : token\n    tile.for", '%own {when = "x >= 1"} : token\n    tile.for'
    )
    text = text.replace("x <= t", "x > 9")
    with pytest.raises(MeshcError, match="messages that nobody has received"):
        ran(text, ("early", "round-robin"), own=np.zeros((2, 4)))
