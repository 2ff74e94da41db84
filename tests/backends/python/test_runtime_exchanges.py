"""Exchanges that are recorded once and repeated, against the same transfers done each time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshes import runtime_wafer

from meshc.backends.python.runtime import (
    ChannelError,
    Coordinates,
    Fabric,
    Hop,
    Phase,
    span,
    wait,
)
from meshc.backends.python.runtime.kernels import scale

LANES = 5


class Machine:
    """A phase with a buffer, and the transfers of a random program over its cores."""

    def __init__(self, sizes, dtype, transfers, order=None, recorded=True, nested=False):
        self.phase = Phase(Fabric(runtime_wafer(*sizes), order), "p")
        self.v = self.phase.buffer("v", dtype, 3, LANES, role="state")
        self.w = self.phase.buffer("w", dtype, 3, LANES, role="state")
        self.odd = {axis: self.phase.where(self.places(axis)[0] % 2 == 1) for axis in "yx"}
        self.steps = []
        for number, (kind, axis, facts) in enumerate(transfers):
            body = getattr(self, kind)(f"{kind}_{number}", axis, *facts)
            across = "x" if axis == "y" else "y"
            self.steps.append((self.phase.recorded(body) if recorded else body, across))
        self.once = self.phase.recorded(self.on_all_lines) if nested else self.on_all_lines
        self.phase.load({})

    def on_all_lines(self, view):
        """The transfers, on all lines of cores and then on every other one."""
        for transfer, across in self.steps:
            transfer(view)
            with self.phase.fabric.only(self.odd[across]):
                transfer(view)

    def run(self, start, view_of, times):
        """The memory of each core after the transfers, ``times`` over, began with ``start``."""
        lanes = self.phase.fabric.lane_of_core
        self.v.memory.array[lanes], self.w.memory.array[lanes] = start, -2 * start
        view, self.other = view_of(self.v), view_of(self.w)

        def step():
            for _ in range(times):
                self.once(view)
                scale(self.v, self.v, factor=0.25)
                scale(self.w, self.w, factor=0.5)

        self.phase.runs(step)
        self.phase.run({})
        return self.v.memory.array[lanes]

    def places(self, axis):
        """The place of each core on an axis, its extent, and a hop along the axis."""
        core = self.phase.core
        if axis == "y":
            return core.y, self.phase.fabric.mesh.grid[1], lambda to: (to, core.x)
        return core.x, self.phase.fabric.mesh.grid[2], lambda to: (core.y, to)

    def chain(self, name, axis, stride, group, combine, changes=False):
        """Groups of cores ``stride`` apart: the last sends, those between pass on.

        Who sends may change its buffer as soon as it need not wait any longer.
        """
        phase = self.phase
        at, extent, hop = self.places(axis)
        member = (at // stride) % group
        part = (at % stride == 0) & (member >= 1)
        channel = phase.channel(name, Hop(to=hop(at - stride), where=part))
        last = (member == group - 1) | (at + stride >= extent)
        sends = phase.where(part & last)
        passes = phase.where(part & (member >= 1) & (member < group - 1) & (at + stride < extent))
        takes = phase.where((at % stride == 0) & (member == 0) & (at + stride < extent))
        sweep = phase.sweep(group - 1 - member, group)

        def exchange(view):
            for _ in sweep:
                sent = channel.send(view, on=sends)
                channel.relay(view, combine=combine, on=passes)
                got = channel.recv(view, combine=combine, on=takes)
                wait(sent, got)
                if changes:
                    scale(view, view, factor=3.0, on=sends)

        return exchange

    def cast(self, name, axis, group):
        """The first core of each group tells the others."""
        phase = self.phase
        at, extent, hop = self.places(axis)
        every = phase.core.every(extent)
        first = at % group == 0
        near = (every > at) & (every < at + group)
        channel = phase.channel(name, Hop(to=hop(every), where=near & first))
        sends = phase.where(first & (at + 1 < extent) & (at * 0 + group > 1))
        takes = phase.where(at % group >= 1)

        def exchange(view):
            got = channel.recv(view, on=takes)
            sent = channel.send(view, on=sends)
            wait(got, sent)

        return exchange

    def pair(self, name, axis, combine):
        """Two messages along a line: those between pass on the first, then the second."""
        phase = self.phase
        at, extent, hop = self.places(axis)
        channel = phase.channel(name, Hop(to=hop(at - 1), where=at >= 1))
        sends = phase.where((at == extent - 1) & (at >= 1))
        passes = phase.where((at >= 1) & (at + 1 < extent))
        takes = phase.where((at == 0) & (at + 1 < extent))
        sweep = phase.sweep(extent - 1 - at, extent)

        def exchange(view):
            for _ in sweep:
                for each in (view, self.other):
                    channel.send(each, on=sends)
                for each in (view, self.other):
                    channel.relay(each, combine=combine, on=passes)
                got = [channel.recv(e, combine=combine, on=takes) for e in (view, self.other)]
                wait(*got)

        return exchange

    def checkers(self, name, axis, combine):
        """Cores on black squares send to the white ones behind them."""
        phase = self.phase
        at, extent, hop = self.places(axis)
        black = (phase.core.y + phase.core.x) % 2 == 0
        channel = phase.channel(name, Hop(to=hop(at + 1), where=black & (at + 1 < extent)))
        sends = phase.where(black & (at + 1 < extent))
        white = (phase.core.y + phase.core.x) % 2 == 1
        takes = phase.where(white & (at >= 1))

        def exchange(view):
            got = channel.recv(view, combine=combine, on=takes)
            wait(got, channel.send(view, on=sends))

        return exchange

    def ring(self, name, axis, combine, late):
        """Every core sends to the next and hears from the one before."""
        at, extent, hop = self.places(axis)
        channel = self.phase.channel(
            name, Hop(to=hop(at + 1), where=at + 1 < extent), Hop(to=hop(0), where=at == extent - 1)
        )

        def exchange(view):
            sent = channel.send(view)
            if not late:
                wait(sent)
            wait(channel.recv(self.other, combine=combine), sent)

        return exchange


def place(buffer):
    """An index that differs between cores."""
    core = Coordinates(buffer.fabric.mesh)
    return (core.y + 2 * core.x) % 3


@st.composite
def programs(draw):
    """Extents of the mesh, an element type, transfers, a window and how often all is done."""
    sizes = (draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.integers(1, 2)))
    combine = st.sampled_from(["add", "max", "store"])
    transfers = draw(
        st.lists(
            st.one_of(
                st.tuples(
                    st.just("chain"),
                    st.sampled_from("yx"),
                    st.tuples(st.integers(1, 3), st.integers(2, 4), combine, st.booleans()),
                ),
                st.tuples(st.just("cast"), st.sampled_from("yx"), st.tuples(st.integers(1, 9))),
                st.tuples(
                    st.sampled_from(["pair", "checkers"]),
                    st.sampled_from("yx"),
                    st.tuples(combine),
                ),
                st.tuples(
                    st.just("ring"), st.sampled_from("yx"), st.tuples(combine, st.booleans())
                ),
            ),
            min_size=1,
            max_size=4,
        )
    )
    window = draw(
        st.sampled_from(
            [
                lambda v: v,
                lambda v: v[1],
                lambda v: v[:, 1:4],
                lambda v: v[:2, 0:LANES:2],
                lambda v: v.shaped(LANES, 3),
                lambda v: v.ordered(1, 0),
                lambda v: v[place(v)],
                lambda v: v[:2, span(place(v), 3)].ordered(1, 0),
            ]
        )
    )
    return sizes, draw(st.sampled_from(["f32", "f16"])), transfers, window


def check(program, seed):
    """Exchanges of ``program`` on random numbers, recorded and not, in several orders of cores."""
    sizes, dtype, transfers, window = program
    rng = np.random.default_rng(seed)
    cores = int(np.prod(sizes))
    order = rng.permutation(cores)
    plain = Machine(sizes, dtype, transfers, order, recorded=False)
    recorded = Machine(sizes, dtype, transfers)
    mixed = Machine(sizes, dtype, transfers, order)
    nested = Machine(sizes, dtype, transfers, nested=True)
    for _ in range(2):
        start = rng.standard_normal((cores, 3, LANES)).astype(np.float32)
        plain.v.memory.array[:] = 0
        if plain.v.rounds:
            plain.v.rounds(start)
        wanted = plain.run(start, window, 3)
        np.testing.assert_array_equal(recorded.run(start, window, 3), wanted)
        np.testing.assert_array_equal(mixed.run(start, window, 3), wanted)
        np.testing.assert_array_equal(nested.run(start, window, 3), wanted)


@settings(max_examples=60, deadline=None)
@given(programs(), st.integers(0, 2**31))
def test_recorded_exchanges_do_what_transfers_do(program, seed):
    check(program, seed)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(programs(), st.integers(0, 2**31))
def test_many_recorded_exchanges_do_what_transfers_do(program, seed):
    check(program, seed)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("rows", [2, 5, 24])
def test_chains_and_casts_are_repeated_from_their_recording(rows, nested):
    """Later calls do not go through the channels any more, odd groups included."""
    transfers = [("chain", "y", (1, 3, "add")), ("chain", "y", (3, 9, "add")), ("cast", "y", (99,))]
    machine = Machine((rows, 4), "f32", transfers, nested=nested)
    start = np.arange(rows * 4 * 3 * LANES, dtype=np.float32).reshape(-1, 3, LANES)
    first = machine.run(start, lambda v: v, 1)
    for channel in machine.phase._channels:
        channel.send = channel.recv = channel.relay = None
    np.testing.assert_array_equal(machine.run(start, lambda v: v, 1), first)
    total = start.reshape(rows, 4, 3, LANES).sum(0)
    found = first.reshape(rows, 4, 3, LANES)[:, ::2]  # the lines that did it once
    np.testing.assert_allclose(found, [total[::2] / 4] * rows, rtol=1e-6)


def test_a_message_that_is_passed_on_stays_as_it_was():
    """The second one goes through the same cores before the first has arrived."""
    machine = Machine((4, 2), "f32", [("pair", "y", ("add",))])
    start = np.arange(8 * 3 * LANES, dtype=np.float32).reshape(-1, 3, LANES)
    found = machine.run(start, lambda v: v, 1)
    total = start.reshape(4, 2, 3, LANES).sum(0)
    np.testing.assert_array_equal(found[0] * 4, total[0])
    np.testing.assert_array_equal(machine.w.memory.array[0] * 2, -2 * total[0])


def waiting_machine():
    """Two columns; the first tells the second, inside of an exchange or around it."""
    phase = Phase(Fabric(runtime_wafer(1, 2)), "p")
    v, w = (phase.buffer(name, "f32", 1, role="state") for name in "vw")
    core = phase.core
    right = phase.channel("right", Hop(to=(core.y, core.x + 1), where=core.x == 0))
    first, second = phase.where(core.x == 0), phase.where(core.x == 1)

    @phase.recorded
    def tell(view):
        wait(right.send(view, on=first), right.recv(view, on=second))

    phase.load({})
    return phase, v, w, right, tell, first, second


def test_messages_at_places_that_differ_are_repeated_from_their_recording():
    """Around a ring, each core from another place of its memory."""
    machine = Machine((4, 3), "f32", [("ring", "y", ("add", False))], order=range(11, -1, -1))
    views = [buffer[place(buffer)] for buffer in (machine.v, machine.w)]
    (exchange, _), start = machine.steps[0], np.arange(12.0).reshape(-1, 1, 1)
    machine.other = views[1]

    def found():
        lanes = machine.phase.fabric.lane_of_core
        machine.v.memory.array[lanes], machine.w.memory.array[lanes] = start, 0
        machine.phase.runs(lambda: exchange(views[0])).run({})
        return machine.w.memory.array[lanes]

    first = found()
    for channel in machine.phase._channels:
        channel.send = channel.recv = None
    np.testing.assert_array_equal(found(), first)
    wanted = np.zeros((4, 3, 3, LANES))
    for y, x in np.ndindex(4, 3):
        wanted[(y + 1) % 4, x, ((y + 1) % 4 + 2 * x) % 3] = 3 * y + x
    np.testing.assert_array_equal(first.reshape(wanted.shape), wanted)


def test_a_message_from_before_is_not_part_of_a_recording():
    """A recorded function calls another one while a message of its own is underway."""
    phase, v, w, right, tell, first, second = waiting_machine()

    @phase.recorded
    def around(view, other):
        right.send(other, on=first)
        tell(view)
        wait(right.recv(other, on=second))

    found = []

    def step():
        tell(v)
        for start in (1, 5):
            v.memory.array[:, 0], w.memory.array[:, 0] = [start, 0], [start + 1, 0]
            around(v, w)
            found.append([v.memory.array[1, 0], w.memory.array[1, 0]])

    phase.runs(step).run({})
    assert found == [[2, 1], [6, 5]]


def test_what_was_sent_before_is_taken_first():
    phase, v, w, right, tell, first, second = waiting_machine()
    v.memory.array[:, 0] = [1, 2]
    w.memory.array[:, 0] = [3, 4]
    found = []

    def step():
        for early in (False, True, False):
            if early:
                right.send(w, on=first)
            tell(v)
            if early:
                wait(right.recv(w, on=second))
            found.append([v.memory.array[1, 0], w.memory.array[1, 0]])

    phase.runs(step).run({})
    assert found == [[1, 4], [3, 1], [1, 1]]


def test_a_message_from_before_is_not_recorded():
    phase, v, w, right, tell, first, second = waiting_machine()

    def step():
        early = right.send(w, on=first)
        late = right.recv(w, on=second)
        tell(v)
        wait(early, late)
        w.memory.array[1] = 7
        tell(v)
        tell(v)

    phase.runs(step).run({})
    assert w.memory.array[1] == 7


def test_an_exchange_that_fails_is_not_remembered():
    phase, v, _, right, _, _, second = waiting_machine()

    @phase.recorded
    def silent(view):
        wait(right.recv(view, on=second))

    phase.runs(lambda: silent(v))
    for _ in range(2):
        with pytest.raises(ChannelError, match="no message"):
            phase.run({})
    assert phase.fabric.recording is None
