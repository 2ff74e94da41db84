"""tile.relay: messages passed on element by element, under every timing and order of cores."""

import numpy as np
import pytest
from interp_tile_texts import relay_sum, tile_module

from meshc.interp.tile import TileMachine
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.ir.verifier import verify_module
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source
from meshc.verify import check_claims

EXECUTORS = [
    (transfers, schedule)
    for transfers in ("early", "late")
    for schedule in ("round-robin", "depth-first", "random(1)", "random(2)")
]
RANDOM = np.random.default_rng(5)


def sums_of(part, combine, rounds=1):
    """Row 0 collects, time after time; the other rows only lend what they hold."""
    expected = part.copy()
    for _ in range(rounds):
        expected[0] = (np.sum if combine == "add" else np.max)(expected, 0)
    return expected


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("rows", "columns"), [(2, 1), (3, 2), (5, 3), (17, 1)])
@pytest.mark.parametrize("combine", ["add", "max"])
def test_a_chain_of_relays_reduces_and_leaves_the_members_alone(rows, columns, combine, executor):
    module = relay_sum(rows, columns, combine, rounds=2)
    check_claims(module)
    part = RANDOM.standard_normal((rows, columns, 3))
    machine = TileMachine(module, *executor)
    machine.load("part", part)
    np.testing.assert_allclose(
        machine.run()["sums"], sums_of(part, combine, 2), rtol=1e-5, atol=1e-5
    )


def test_what_a_relay_sends_is_rounded_like_a_store():
    """1 + 3 ulp/4 three times: rounding at each core is not rounding the sum."""
    part = np.full((4, 1, 3), 1.0)
    part[1:] = 0.75 * 2.0**-10
    expected = np.float16(0)
    for value in part[::-1, 0, 0]:
        expected = np.float16(expected + np.float16(value))
    machine = TileMachine(relay_sum(4, 1, dtype="f16"))
    machine.load("part", part)
    np.testing.assert_array_equal(machine.run()["sums"][0, 0], np.full(3, expected))


def test_a_relay_is_in_the_text_what_it_was():
    text = print_module(relay_sum(3, 1, "max"))
    assert "tile.relay @up, @up, %v {combine = max" in text
    assert print_module(parse_module(Source("again", text))) == text


RING = """channel @on "{ [y, x] -> [y, (x + 1) mod 3] }" buffer %v : f32[2]"""


@pytest.mark.parametrize("transfers", ["early", "late"])
def test_relays_in_a_circle_are_a_deadlock_with_its_cycle(transfers):
    body = "tile.fill %v {value = 1.0} %p = tile.relay @on, @on, %v : token"
    module = tile_module(1, 3, body, RING)
    with pytest.raises(MeshcError, match="no core can go on") as error:
        TileMachine(module, transfers).run()
    notes = error.value.diagnostics[0].notes
    assert any("tile.relay @on" in note for note in notes)
    assert any("form a cycle" in note for note in notes)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("%p = tile.relay @on, %v : token", "takes 3 operands"),
        ("%p = tile.relay @on, %v, @on : token", "takes two channels and a view"),
        ("%p = tile.relay @on, @off, %v : token", "channel @off is not declared"),
        ("%p = tile.relay @on, @on, %v {combine = store} : token", "one of add, max"),
    ],
)
def test_a_relay_that_cannot_be_is_refused(body, words):
    with pytest.raises(MeshcError, match=words):
        verify_module(tile_module(1, 3, body, RING))


def test_a_relay_without_a_sender_or_a_receiver_is_refused():
    header = """channel @on "{ [y, x] -> [y, x + 1] }" buffer %v : f32[2]"""
    for x, words in ((0, "no sender"), (2, "no receiver")):
        body = f"""tile.fill %v {{value = 0.0}}
          %p = tile.relay @on, @on, %v {{when = "x = {x}"}} : token"""
        with pytest.raises(MeshcError, match=words):
            TileMachine(tile_module(1, 3, body, header)).run()


def test_sizes_along_a_chain_must_agree():
    header = """channel @on "{ [y, x] -> [y, x + 1] }" buffer %v : f32[2] buffer %w : f32[3]"""
    body = """tile.fill %v {value = 0.0} tile.fill %w {value = 0.0}
      %s = tile.send @on, %v {when = "x = 0"} : token
      %p = tile.relay @on, @on, %w {when = "x = 1"} : token
      %r = tile.recv @on, %w {when = "x = 2"} : token"""
    for transfers in ("early", "late"):
        with pytest.raises(MeshcError, match="a message of 2 elements"):
            TileMachine(tile_module(1, 3, body, header), transfers).run()
