"""A core reaches its own memory and what arrived on its channels; nothing else works."""

import numpy as np
import pytest
from emitted_texts import program_of, ring_gemm, tile_module, tree_sum
from hypothesis import given, settings
from hypothesis import strategies as st
from meshes import runtime_wafer

from meshc.backends.python.runtime import (
    ChannelError,
    Fabric,
    Hop,
    IsolationError,
    Phase,
    wait,
)
from meshc.backends.python.runtime.kernels import add, copy, fill

RANDOM = np.random.default_rng(8)


def small_phase():
    phase = Phase(Fabric(runtime_wafer(2, 3)), "p")
    return phase, phase.buffer("v", "f32", 4), phase.buffer("w", "f32", 4)


def test_buffers_and_coordinates_do_not_show_the_other_cores():
    phase, v, _ = small_phase()
    phase.load({})
    for access in (
        lambda: np.asarray(v),
        lambda: np.roll(v, 1),
        lambda: list(v),
        lambda: v[0].__array__(),
        lambda: np.add(v[0], 1),
        lambda: np.asarray(phase.core.x),
        lambda: phase.core.x.__array__(),
        lambda: bool(phase.core.x == 0),
        lambda: np.asarray(phase.fabric),
    ):
        with pytest.raises((IsolationError, TypeError)):
            access()
    with pytest.raises(TypeError):
        v + v
    with pytest.raises(TypeError):
        phase.core.x[0]


@pytest.mark.parametrize("seed", range(3))
def test_results_do_not_depend_on_how_cores_are_numbered(seed, tmp_path):
    order = np.random.default_rng(seed).permutation(24)
    part = RANDOM.standard_normal((12, 2, 5)).astype(np.float32)
    a, b = RANDOM.standard_normal((13, 17)), RANDOM.standard_normal((17, 11))
    for module, weights, inputs, out in (
        (ring_gemm(4, 6, 13, 17, 11), {"B": b}, {"A": a}, "C"),
        (tree_sum(12, 2, 3), {}, {"part": part}, "sums"),
    ):
        plain = program_of(tmp_path, module, weights).run(inputs)[out]
        mixed = program_of(tmp_path, module, weights, order).run(inputs)[out]
        np.testing.assert_array_equal(plain.view(np.uint32), mixed.view(np.uint32))


def test_no_permutation_is_refused():
    with pytest.raises(ValueError, match="no permutation"):
        Fabric(runtime_wafer(2, 2), [0, 1, 2, 2])


def mixing(statement):
    """An edit of an emitted program that slips a statement in before the first copy."""
    return lambda text: text.replace(
        "        copy(w, v)", f"        {statement}\n        copy(w, v)"
    )


def test_a_program_that_mixes_cores_is_found_out_by_the_numbering(tmp_path):
    """Going behind the runtime's back gives other results for other orders of the cores."""
    module = tree_sum(4, 3, 2)
    part = RANDOM.standard_normal((4, 3, 5)).astype(np.float32)

    def results(edit):
        orders = [None, *(np.random.default_rng(s).permutation(12) for s in range(3))]
        return [
            program_of(tmp_path / str(n), module, order=order, edit=edit).run({"part": part})[
                "sums"
            ]
            for n, order in enumerate(orders)
        ]

    honest = results(lambda text: text + "\n")
    assert all(np.array_equal(honest[0], other) for other in honest[1:])
    slip = "v.memory.array[:] = v.memory.array[::-1] * [1, 2, 3, 4, 5]"
    shared = "v.memory.array[:] = v.memory.array.mean(0) + 0 * v.memory.array[0]"
    rolled = mixing(f"{slip}; __import__('numpy').copyto(v.memory.array, v.memory.array + 0)")
    cheating = results(rolled)
    assert any(not np.array_equal(honest[0], other) for other in cheating)
    assert any(not np.array_equal(honest[0], other) for other in results(mixing(shared)))


def test_rolling_the_hidden_axis_depends_on_the_numbering(tmp_path):
    header = """dims Y = 3, X = 3, I = 2
      buffer %v : f32[2] {role = in}
      buffer %w : f32[2] {role = out}
      port @v in f32[Y, X, I] : %v {lanes = [i], element = [y, x, i]}
      port @w out f32[Y, X, I] : %w {lanes = [i], element = [y, x, i]}"""
    module = tile_module(3, 3, header, "tile.copy %w, %v")
    v = RANDOM.standard_normal((3, 3, 2)).astype(np.float32)
    roll = mixing("v.memory.array[:] = __import__('numpy').roll(v.memory.array, 1, axis=0)")
    orders = [None, RANDOM.permutation(9), RANDOM.permutation(9)]
    got = [
        program_of(tmp_path / str(n), module, order=order, edit=roll).run({"v": v})["w"]
        for n, order in enumerate(orders)
    ]
    assert not np.array_equal(got[0], got[1]) and not np.array_equal(got[0], got[2])


def test_a_program_cannot_write_its_constants(tmp_path):
    header = """dims I = 2
      buffer %k : f32[2] {role = weight}
      buffer %w : f32[2] {role = out}
      port @k in f32[I] : %k {lanes = [i], element = [i]}
      port @w out f32[I] : %w {lanes = [i], element = [i]}"""
    module = tile_module(1, 1, header, "tile.copy %w, %k")
    wrong = program_of(
        tmp_path, module, {"k": np.ones(2)}, edit=lambda t: t.replace("copy(w, k)", "copy(k, w)")
    )
    with pytest.raises(ValueError, match="read-only"):
        wrong.run({})


def test_scratch_is_poisoned_before_every_run(tmp_path):
    """What an earlier run left behind cannot be used."""
    header = """dims I = 2
      buffer %v : f32[2] {role = in}
      buffer %t : f32[2]
      buffer %w : f32[2] {role = out}
      scalars n = 0..1
      port @v in f32[I] : %v {lanes = [i], element = [i]}
      port @w out f32[I] : %w {lanes = [i], element = [i]}"""
    body = """
      tile.copy %t, %v {when = "n = 0"}
      tile.add %w, %t, %v"""
    program = program_of(tmp_path, tile_module(1, 1, header, body))
    v = np.array([1.0, 2.0])
    np.testing.assert_array_equal(program.run({"v": v}, n=0)["w"], [2.0, 4.0])
    assert np.isnan(program.run({"v": v}, n=1)["w"]).all()
    assert not np.isnan(program.run({"v": v}, n=0)["w"]).any()


def shift_phase():
    """Cores 0 and 1 may send to the core on their right."""
    phase, v, w = small_phase()
    right = phase.channel("right", Hop(to=(phase.core.y, phase.core.x + 1)))
    senders, receivers = phase.where(phase.core.x <= 1), phase.where(phase.core.x >= 1)
    return phase, v, w, right, senders, receivers


def run(phase, step):
    phase.runs(step).load({})
    phase.run({})


def test_a_send_without_a_receive():
    phase, v, w, right, senders, receivers = shift_phase()

    def step():
        fill(v, value=1.0)
        right.send(v, on=senders)
        wait(right.recv(w, on=phase.where(phase.core.x == 2)))

    with pytest.raises(ChannelError, match=r"'right' was not received by cores \(y=0, x=1\)"):
        run(phase, step)
    assert receivers.count == 4


def test_a_receive_without_a_message():
    phase, v, w, right, senders, receivers = shift_phase()

    def step():
        fill(v, value=1.0)
        wait(right.recv(w, on=receivers), right.send(v, on=senders))
        right.recv(w, on=receivers)

    with pytest.raises(
        ChannelError, match=r"a receive on 'right' got no message on cores \(y=0, x=1\)"
    ):
        run(phase, step)


def test_waiting_before_the_message_is_sent():
    phase, v, w, right, senders, receivers = shift_phase()

    def step():
        fill(v, value=1.0)
        wait(right.recv(w, on=receivers))
        right.send(v, on=senders)

    with pytest.raises(
        ChannelError, match=r"no message on 'right' was sent to cores .* before the wait"
    ):
        run(phase, step)


def test_sends_to_nobody_and_receives_from_nobody():
    phase, v, w, right, _, _ = shift_phase()
    with pytest.raises(ChannelError, match=r"'right' leads nowhere from cores \(y=0, x=2\)"):
        run(phase, lambda: right.send(v))
    phase, v, w, right, _, _ = shift_phase()
    with pytest.raises(ChannelError, match=r"'right' does not lead to cores \(y=0, x=0\)"):
        run(phase, lambda: right.recv(w))


def test_a_message_of_another_size():
    phase, v, w, right, senders, receivers = shift_phase()

    def step():
        fill(v, value=1.0)
        right.send(v, on=senders)
        wait(right.recv(w[0:2], on=receivers))

    with pytest.raises(ChannelError, match="cannot fill"):
        run(phase, step)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_messages_are_matched_in_order_on_each_core(data):
    """Sends and receives in any grouping of the cores: the n-th is the n-th."""
    rows, count = 4, data.draw(st.integers(1, 4))
    fabric = Fabric(runtime_wafer(rows, 1), data.draw(st.permutations(range(rows))))
    phase = Phase(fabric, "p")
    v = phase.buffer("v", "f32", 1)
    got = phase.buffer("got", "f32", count, role="state")
    down = phase.channel("down", Hop(to=(phase.core.y + 1, phase.core.x)))
    groups = st.lists(st.integers(0, 2), min_size=rows - 1, max_size=rows - 1)
    sends, receives = (
        [data.draw(groups) for _ in range(count)],
        [data.draw(groups) for _ in range(count)],
    )

    def members(group, part, offset):
        found = phase.core.y == -1
        for y in range(rows - 1):
            if group[y] == part:
                found = found | (phase.core.y == y + offset)
        return phase.where(found)

    def step():
        tokens = []
        for n in range(count):
            for part in range(3):
                on = members(sends[n], part, 0)
                fill(v, value=float(n), on=on)
                wait(down.send(v, on=on))  # the buffer changes before anything is received
        for n in range(count):
            tokens += [down.recv(got[n : n + 1], on=members(receives[n], p, 1)) for p in range(3)]
        for token in data.draw(st.permutations(tokens)):
            wait(token)

    run(phase, step)
    below = np.delete(got.memory.array, fabric.lane_of_core[0], axis=0)
    np.testing.assert_array_equal(below, np.tile(np.arange(count), (rows - 1, 1)))


def test_a_wait_on_some_cores_leaves_the_others_alone():
    phase, v, w, right, senders, receivers = shift_phase()
    first, second = phase.where(phase.core.x == 0), phase.where(phase.core.x == 1)
    early, late = phase.where(phase.core.x == 1), phase.where(phase.core.x == 2)

    def step():
        fill(v, value=1.0)
        fill(w, value=5.0)
        token = right.recv(w, combine="add", on=receivers)
        right.send(v, on=first)
        wait(token, on=early)
        add(v, v, w, on=early)
        right.send(v, on=second)
        wait(token, on=late)
        copy(v, w, on=late)

    run(phase, step)
    np.testing.assert_array_equal(v.memory.array[:3, 0], [1.0, 7.0, 12.0])
    assert senders.count == 4
