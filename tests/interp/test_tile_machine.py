"""Whole tile programs, core by core: every timing of transfers, every order of cores."""

import numpy as np
import pytest
from interp_tile_texts import mesh_gemm, split_token, tile_module, tree_all_reduce

from meshc.interp.tile import TileMachine
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source

EXECUTORS = [
    (transfers, schedule)
    for transfers in ("early", "late")
    for schedule in ("round-robin", "depth-first", "random(1)", "random(2)")
]
RANDOM = np.random.default_rng(11)


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (2, 2), (3, 3), (1, 4), (3, 1), (4, 6), (5, 3)]
)
def test_mesh_gemm_on_square_and_other_meshes(rows, columns):
    module = mesh_gemm(rows, columns, 13, 17, 11)
    a, b = RANDOM.standard_normal((13, 17)), RANDOM.standard_normal((17, 11))
    for transfers, schedule in EXECUTORS:
        machine = TileMachine(module, transfers, schedule)
        machine.load("A", a)
        machine.load("B", b)
        np.testing.assert_allclose(machine.run()["C"], a @ b, rtol=1e-4, atol=1e-5)


def test_receiving_into_a_slot_in_use_shows_in_the_results():
    """Without a spare slot the incoming chunk overwrites the one that is being multiplied."""
    module = mesh_gemm(3, 3, 6, 6, 6, spare=0)
    a, b = RANDOM.standard_normal((6, 6)), RANDOM.standard_normal((6, 6))
    results = []
    for transfers, schedule in EXECUTORS:
        machine = TileMachine(module, transfers, schedule)
        machine.load("A", a)
        machine.load("B", b)
        results.append(machine.run()["C"])
    assert any(not np.allclose(r, a @ b, atol=1e-3) for r in results)


def test_the_texts_survive_printing():
    module = split_token(2, 3, 4, 8)
    text = print_module(module)
    assert print_module(parse_module(Source("again", text))) == text


@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (2, 1), (5, 2), (7, 3), (9, 1), (16, 1)])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_k_tree_all_reduce(rows, columns, depth):
    part = RANDOM.standard_normal((rows, columns, 3))
    for combine, reduce in (("add", np.sum), ("max", np.max)):
        module = tree_all_reduce(rows, columns, depth, combine)
        expected = np.broadcast_to(reduce(part, 0, keepdims=True), part.shape)
        for transfers, schedule in EXECUTORS:
            machine = TileMachine(module, transfers, schedule)
            machine.load("part", part)
            np.testing.assert_allclose(machine.run()["sums"], expected, rtol=1e-5, atol=1e-6)


def dense_attention(q, keys, values):
    scores = np.einsum("hd,shd->hs", q, keys)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return np.einsum("hs,shd->hd", weights / weights.sum(1, keepdims=True), values)


@pytest.mark.parametrize("cores", [1, 2, 3, 5])
def test_split_token_attention_keeps_its_cache(cores):
    module = split_token(2, cores, 4, 7)
    machines = [TileMachine(module, *executor) for executor in EXECUTORS]
    keys, values = np.zeros((0, 2, 4)), np.zeros((0, 2, 4))
    for pos in range(7):
        q, k, v = RANDOM.standard_normal((3, 2, 4))
        keys, values = np.r_[keys, k[None]], np.r_[values, v[None]]
        for machine in machines:
            for name, array in (("q", q), ("kn", k), ("vn", v)):
                machine.load(name, array)
            got = machine.run({"pos": pos})["o"]
            np.testing.assert_allclose(got, dense_attention(q, keys, values), rtol=1e-4, atol=1e-5)


def test_a_second_machine_continues_with_the_state_of_the_first():
    module = split_token(2, 3, 4, 7)
    first, second = TileMachine(module), TileMachine(module, "late", "depth-first")
    q, k, v = RANDOM.standard_normal((3, 2, 2, 4))
    for pos, machine in enumerate((first, second)):
        if pos:
            machine.adopt_state(first)
        for name, array in (("q", q[pos]), ("kn", k[pos]), ("vn", v[pos])):
            machine.load(name, array)
        got = machine.run({"pos": pos})["o"]
    np.testing.assert_allclose(got, dense_attention(q[1], k, v), rtol=1e-4, atol=1e-5)
    assert sorted(second.state) == ["k", "v"]
    assert second.state["k"].shape == (6, 3, 4)


def test_state_of_another_type_is_not_adopted():
    with pytest.raises(MeshcError, match=r"interp-state.*%k"):
        TileMachine(split_token(2, 3, 4, 7)).adopt_state(TileMachine(split_token(2, 3, 4, 11)))


RING = 'channel @ring "{ [y, x] -> [y, (x + 1) mod 3] }"\nbuffer %v : f32[2]\nbuffer %w : f32[2]'


def error_of(body, header=RING, columns=3, **executor):
    machine = TileMachine(tile_module(1, columns, body, header), **executor)
    with pytest.raises(MeshcError) as caught:
        machine.run()
    return str(caught.value)


def test_a_ring_that_waits_before_it_sends_is_a_deadlock_with_its_cycle():
    body = """%r = tile.recv @ring, %v : token
      tile.wait %r
      %s = tile.send @ring, %w : token"""
    for transfers, schedule in EXECUTORS:
        text = error_of(body, transfers=transfers, schedule=schedule)
        assert "error[interp-deadlock]: no core can go on: 3 of 3 wait" in text
        assert "core (y=0, x=0) waits for 7: tile.recv @ring from core (y=0, x=2)" in text
        assert (
            "cycle: core (y=0, x=0) -> core (y=0, x=2) -> core (y=0, x=1) -> core (y=0, x=0)"
            in text
        )


def test_a_message_that_never_comes_names_the_sender_that_has_ended():
    text = error_of(
        """%s = tile.send @ring, %w {when = "x = 0"} : token
      %r = tile.recv @ring, %v : token"""
    )
    assert "no core can go on: 2 of 3" in text
    assert "core (y=0, x=0) waits" in text
    assert "core (y=0, x=2)" in text and "which has ended" not in text.split("x=0) waits")[1][:60]


def test_an_ended_sender_is_named():
    text = error_of('%r = tile.recv @ring, %v {when = "x = 1"} : token')
    assert "from core (y=0, x=0) (which has ended)" in text


def test_messages_that_nobody_receives():
    text = error_of("%s = tile.send @ring, %w : token")
    assert "error[interp-unconsumed]" in text
    assert "1 on @ring at core (y=0, x=1)" in text


def test_send_and_recv_without_partner():
    chain = RING.replace("[y, (x + 1) mod 3]", "[y, x + 1]")
    sends = error_of("%s = tile.send @ring, %w : token", chain)
    assert "interp-partner" in sends and "core (y=0, x=2) sends on @ring" in sends
    receives = error_of("%s = tile.recv @ring, %w : token", chain)
    assert "core (y=0, x=0) receives on @ring, but it has no sender" in receives


def test_ends_of_a_transfer_with_different_numbers_of_elements():
    text = error_of("%s = tile.send @ring, %w : token\n%r = tile.recv @ring, %v[0] : token")
    assert "interp-shape" in text and "a message of 2 elements on @ring meets a view of []" in text


def test_operands_that_do_not_go_together():
    text = error_of("tile.add %v, %v, %b", "buffer %v : f32[2]\nbuffer %b : f32[3]")
    assert "tile.add: operands could not be broadcast" in text
    assert "operands: [2], [2], [3]" in text
    text = error_of("tile.row_sum %v, %b", "buffer %v : f32[2]\nbuffer %b : f32[2]")
    assert "nothing to reduce" in text
    text = error_of("tile.copy %v, %b", "buffer %v : f32[2]\nbuffer %b : f32[3]")
    assert "shape [3] stored to a view of [2]" in text


@pytest.mark.parametrize(
    ("view", "message"),
    [
        ("%v[x]", "index 2 is outside 0 .. 1"),
        ("%v[x +: 2]", "index 2 is outside 0 .. 1"),
        ("%v[-1]", "index -1 is outside"),
        ("%v[0 +: 2 by 2]", "index 2 is outside"),
        ("%v[0, 0]", "2 indices for 1 dims"),
        ("%v as [3]", r"[2] cannot be seen as [3]"),
        ("%v order [1]", "[1] is no order of 1 dims"),
        ("%v[0 +: -1]", "the extent -1 is -1"),
    ],
)
def test_views_outside_their_buffer(view, message):
    text = error_of(f"tile.fill {view} {{value = 0.0}}", "buffer %v : f32[2]")
    assert "interp-view" in text and message in text


def test_a_wait_for_a_transfer_that_ended_with_its_loop():
    body = """tile.for {var = t, count = 2} {
        %s = tile.send @ring, %w : token
        %r = tile.recv @ring, %v : token
      }
      tile.wait %s"""
    with pytest.raises(MeshcError, match=r"interp-token.*no transfer that %s names is open"):
        TileMachine(tile_module(1, 3, body, RING))


def test_a_wait_ignores_what_the_core_has_not_started():
    body = """%s = tile.send @ring, %w {when = "x < 0"} : token
      tile.wait %s"""
    assert TileMachine(tile_module(1, 3, body, RING)).run() == {}


OUT = """dims X = 3
  buffer %v : f32[2] {role = out}
  port @o out f32[X] : %v {lanes = [i], element = [x], where = "i = 0"}"""


def test_an_output_read_from_unset_memory():
    text = error_of('tile.fill %v {value = 1.0, when = "x != 1"}', OUT)
    assert "interp-uninitialised" in text and "port @o: element [1]" in text


def test_an_output_that_no_core_provides():
    text = error_of("tile.fill %v {value = 1.0}", OUT.replace("X = 3", "X = 4"))
    assert "interp-port" in text and "no core provides element [3]" in text


def test_cores_that_disagree_on_an_output():
    text = error_of(
        'tile.fill %v {value = 1.0}\ntile.fill %v {value = 2.0, when = "x = 2"}',
        OUT.replace("[x]", "[0]").replace("X = 3", "X = 1"),
    )
    assert "interp-port" in text and "core (y=0, x=2) disagrees" in text


def test_unknown_names_and_schedules():
    module = tile_module(1, 1, "tile.fill %v[z] {value = 0.0}", "buffer %v : f32[2]")
    with pytest.raises(MeshcError, match=r"affine-unbound.*'z'"):
        TileMachine(module)
    empty = tile_module(1, 1, "")
    with pytest.raises(MeshcError, match="interp-schedule"):
        TileMachine(empty, schedule="breadth-first")
    with pytest.raises(MeshcError, match="no in-port 'q'"):
        TileMachine(empty).load("q", np.zeros(1))


def test_a_machine_that_is_too_large_is_refused_at_once():
    module = tile_module(4000, 4000, "", "buffer %v : f32[100000]")
    with pytest.raises(MeshcError, match="interp-limit"):
        TileMachine(module)


def test_inputs_must_be_loaded_and_may_have_fewer_rows():
    header = """dims L = 4
      buffer %v : f32[2] {role = in}
      buffer %w : f32[2] {role = out}
      port @x in f32[L] : %v {lanes = [i], element = ["2*x + i"], pad = 7.0}
      port @o out f32[L] : %w {lanes = [i], element = ["2*x + i"]}"""
    machine = TileMachine(tile_module(1, 2, "tile.copy %w, %v", header))
    with pytest.raises(MeshcError, match="'x' has not been loaded"):
        machine.run()
    with pytest.raises(MeshcError, match=r"'x' has shape \[5\]"):
        machine.load("x", np.zeros(5))
    machine.load("x", np.arange(3.0))
    np.testing.assert_array_equal(machine.run()["o"], np.arange(3.0))
    assert machine._memory[0][1].tolist() == [2.0, 7.0]


def test_regions_have_routes_of_their_own():
    header = """dims R = 2, X = 2
      channel @next "{ [y, x] -> [y, 1] : x = 0 }"
      channel @over "{ [r, y, x] -> [r + 1, y, x] }"
      buffer %v : f32[1]
      buffer %w : f32[1] {role = out}
      port @o out f32[R, X] : %w {lanes = [i], element = [r, x]}"""
    body = """tile.fill %v {value = 3.0, when = "r = 0 and x = 0"}
      tile.fill %v {value = 5.0, when = "r = 1 and x = 0"}
      tile.fill %w {value = 0.0}
      %s = tile.send @next, %v {when = "x = 0"} : token
      %r = tile.recv @next, %v {when = "x = 1"} : token
      tile.wait %s, %r
      %a = tile.send @over, %v {when = "r = 0"} : token
      %b = tile.recv @over, %w {combine = add, when = "r = 1"} : token
      tile.wait %a, %b
      tile.add %w, %w, %v"""
    module = tile_module(1, 2, body, header, regions=2)
    for executor in EXECUTORS:
        assert TileMachine(module, *executor).run()["o"].tolist() == [[3, 3], [8, 8]]
