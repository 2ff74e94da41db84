"""What a tile program takes of a device in PLMR terms, counted from the program itself.

The program is walked once as the busiest core would run it. Transfers are asynchronous: one that is
started takes its hops (alpha), its words and one routing stage (beta); a wait goes on when those it
names have ended, so work between start and wait hides them. A sweep is a chain: its stages follow
each other, or flow through relays. Loops count their bodies.

Source of the model: WaferLLM sections 3 and 5.1; alpha, beta and the costs of work are device
numbers, so cycles are predictions (the fabric simulator measures).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from meshc.analysis.layout.coordinates import coordinate_values
from meshc.analysis.traffic.channels import Ends, Line, line_of
from meshc.cost.operations import Tile, merge, message, product
from meshc.cost.terms import NOTHING, Cost
from meshc.devices import Device, Link
from meshc.ir.affine import Expr, IntArray, parse_piecewise
from meshc.ir.core import Block
from meshc.ir.mesh import Mesh
from meshc.ir.module import Channel, Module
from meshc.ir.ops import tile
from meshc.ir.values import Value
from meshc.ir.views import View


@dataclass(frozen=True)
class Path:
    """A critical path: hops (alpha), routing stages (beta) and what it costs in cycles."""

    hops: int = 0
    stages: int = 0
    cost: Cost = NOTHING

    @property
    def cycles(self) -> float:
        """Predicted cycles."""
        return self.cost.total

    def then(self, other: Path) -> Path:
        """One after the other."""
        return Path(self.hops + other.hops, self.stages + other.stages, self.cost + other.cost)

    def times(self, count: int) -> Path:
        """Repeated."""
        return Path(self.hops * count, self.stages * count, self.cost * count)

    def and_of(self, cost: Cost) -> Path:
        """This path and then something on the spot."""
        return Path(self.hops, self.stages, self.cost + cost)


@dataclass(frozen=True)
class Profile:
    """What a program takes: routing paths (colors that a router knows, those that only pass through
    it included) of the busiest core, its input queues, bytes, the critical path of the whole
    program, the longest way of one step (relays included) and the hops of the longest message."""

    paths: int
    inputs: int
    bytes: int
    total: Path
    step: Path
    reach: int


def profile(module: Module, device: Device) -> Profile:
    """Count a tile-level module whose routes are allocated and whose memory is planned."""
    walk = _Walk(module, device)
    total = walk.block(module.program.body)
    ends = [(b.address or 0) + b.type.bytes for b in module.buffers]
    reach = max(map(walk.hops, walk.lines), default=0)
    return Profile(
        routing_paths(module),
        inbound_channels(module),
        max(ends, default=0),
        total,
        walk.longest,
        reach,
    )


def routing_paths(module: Module) -> int:
    """Most colors at one router, counted line by line of either axis."""
    mesh = module.the_mesh()
    busiest = 0
    for axis in mesh.plane:
        at: list[set[int]] = [set() for _ in range(mesh.size(axis))]
        for channel in module.channels:
            line = line_of(channel, mesh)
            if line.axis == axis:
                _mark(channel, line, mesh, at)
            elif line.edge is not None and line.edge[0] == axis:
                for place in line.edge[1] | line.edge[2]:
                    at[place] |= _colors_between_regions(channel, line)
        busiest += max(len(colors) for colors in at)
    return busiest


def _colors_between_regions(channel: Channel, line: Line) -> set[int]:
    """The colors of messages between regions, which depend on the region at most."""
    color = parse_piecewise(channel.send_color)
    return {int(color.evaluate({line.axis: region})) for region in line.senders}


def _mark(channel: Channel, line: Line, mesh: Mesh, at: list[set[int]]) -> None:
    color = parse_piecewise(channel.send_color)
    places = np.arange(len(at))
    core = {name: places if name in mesh.plane else places * 0 for name in mesh.names}
    values = coordinate_values(mesh)
    env = {name: values[name].evaluate(core) for name in color.free_vars}
    found: IntArray = np.broadcast_to(np.asarray(color.evaluate(env)), places.shape)
    for sender, (low, high) in line.messages().items():
        for place in range(low, high + 1):
            at[place].add(int(found[sender]))


def inbound_channels(module: Module) -> int:
    """Most channels on which one core receives."""
    mesh = module.the_mesh()
    ends = [line_of(channel, mesh).receiving for channel in module.channels]
    kinds = [_alike(ends, axis, mesh.size(axis)) for axis in mesh.names]
    return max(
        (sum(map(all, zip(*core, strict=True))) for core in itertools.product(*kinds)), default=0
    )


def _alike(ends: Sequence[Ends], axis: str, size: int) -> set[tuple[bool, ...]]:
    """For each kind of position on ``axis``, which of ``ends`` may have a core there."""
    return {tuple(axis not in e or place in e[axis] for e in ends) for place in range(size)}


class _Walk:
    """Walks statements in order with the times at which transfers end."""

    def __init__(self, module: Module, device: Device) -> None:
        self.mesh = module.the_mesh()
        self.device = device
        self.lines = {c.name: line_of(c, self.mesh) for c in module.channels}
        self.scalars = {name: high for name, (_, high) in module.scalars.items()}
        self.longest, self.latency = Path(), 0.0

    def block(self, block: Block) -> Path:
        """The critical path of the statements of a block."""
        now = before = Path()
        last: tile.Sweep | None = None
        open_: dict[Value, _Underway] = {}
        for op in block.ops:
            if isinstance(op, (tile.Send, tile.Recv)):
                open_[op.result] = _Underway(now, self.message(op))
            elif isinstance(op, tile.Wait):
                now = _after(now, [open_.pop(t) for t in op.tensors() if t in open_])
            elif isinstance(op, tile.For):
                body = self.iteration(op.regions[0])
                now = now.then(body.times(self.number(op.count)))
            elif isinstance(op, tile.Sweep):
                # Chains that leave a core in opposite directions are on different cores.
                start = before if last is not None and self.opposite(last, op) else now
                before, now = start, _after(now, [_Underway(start, self.chain(op))])
                last = op
            elif isinstance(op, tile.Compute):
                now = now.and_of(self.work(op))
        return _after(now, open_.values())

    def iteration(self, body: Block) -> Path:
        """One round of a loop; a round that moves something costs a step of the program."""
        found = self.block(body)
        if any(isinstance(op, (tile.Send, tile.Recv)) for op in body.ops):
            found = found.and_of(Cost(overhead=self.device.step_cycles))
        return found

    def opposite(self, one: tile.Sweep, other: tile.Sweep) -> bool:
        """Whether two chains run along one axis, but in opposite directions."""
        ways = [self.direction(sweep) for sweep in (one, other)]
        return ways[0][0] == ways[1][0] and ways[0][1] * ways[1][1] < 0

    def direction(self, op: tile.Sweep) -> tuple[str, int]:
        """Axis of a chain, and whether positions grow along it."""
        (body,) = op.regions
        names = [c for o in body.ops if (c := tile.channel_in(o)) is not None]
        if not names or not self.lines[names[0]].pairs:
            return "", 0
        sender, receiver = self.lines[names[0]].pairs[0]
        return self.lines[names[0]].axis, receiver - sender

    def chain(self, op: tile.Sweep) -> Path:
        """Messages from rank to rank; relays pass words on as they come."""
        (body,) = op.regions
        hop = max((self.hops(c) for o in body.ops if (c := tile.channel_in(o))), default=1)
        links = op.count - 1
        hops = links * hop
        device = self.device.along(self.direction(op)[0])
        link = device.link
        words = max((self.words(v) for o in body.ops for v in o.views()), default=0)
        relays = any(isinstance(o, tile.Relay) for o in body.ops)
        works = [self.work(o) for o in body.ops if isinstance(o, tile.Compute)]
        cost = message(words, hops, device)
        if works:
            # Each core works on the whole message before it sends on.
            stored = message(words, 0, device) + Cost(overhead=self.device.step_cycles)
            cost = (stored + sum(works, NOTHING)) * links + Cost(transfer=hops * link.hop_cycles)
        elif relays and link.relay_cycles is not None:
            cost += Cost(stages=(links - 1) * (link.relay_cycles - link.hop_cycles))
        elif not relays and any(isinstance(o, tile.Wait) for o in body.ops):
            # Stored and sent on by each core; the next message is already on its way behind.
            cost += message(words, 0, device)
        else:
            cost *= links
        found = Path(hops, links, cost)
        self.note(found, link)
        return found

    def message(self, op: tile.Send | tile.Recv) -> Path:
        """One transfer to the furthest receiver of its channel."""
        line = self.lines[op.channel]
        device = self.device.along(line.axis)
        (view,) = op.views()
        hops = self.hops(op.channel)
        found = Path(hops, 1, message(self.words(view), hops, device))
        self.note(found, device.link)
        return found

    def hops(self, channel: str) -> int:
        """The longest way of a message on ``channel``."""
        line = self.lines[channel]
        size = self.mesh.size(line.axis)
        return max(
            (self.device.hops(line.axis, size, abs(s - t)) for s, t in line.pairs), default=0
        )

    def note(self, path: Path, link: Link) -> None:
        """Remember the longest way that something goes in a step."""
        latency = path.hops * link.hop_cycles + path.stages * link.route_cycles
        if latency > self.latency:
            self.longest, self.latency = replace(path, cost=NOTHING), latency

    def work(self, op: tile.Compute) -> Cost:
        """A microkernel."""
        views = op.views()
        dtype = str(views[-1].buffer_type.dtype)
        if op.kernel == "gemm":
            m, n = (self.number(e) for e in views[0].shape()[-2:])
            k = self.number(views[1].shape()[-1])
            batch = prod(self.number(e) for e in views[1].shape()[:-2])
            return product(Tile(m, k, n, dtype), self.device) * batch
        elements = prod(self.number(e) for e in views[0].shape())
        if op.kernel == "merge_softmax":
            rows = prod(self.number(e) for e in views[0].shape()[:-1])
            count = op.params["count"]
            assert isinstance(count, int)
            return merge(elements, rows * count, dtype, self.device)
        compute = elements / self.device.lanes(dtype)
        return Cost(compute=compute, overhead=self.device.op_cycles)

    def words(self, view: View) -> float:
        """Link words of a view."""
        elements = prod(self.number(e) for e in view.shape())
        return -(-elements * view.buffer_type.dtype.bytes // self.device.link.word_bytes)

    def number(self, value: Expr) -> int:
        """An extent, at the largest values of the run-time scalars."""
        env = {name: self.scalars.get(name, 0) for name in value.free_vars}
        return int(value.evaluate(env))


@dataclass(frozen=True)
class _Underway:
    """What was started at ``since`` and takes ``way``, while the core does other things."""

    since: Path
    way: Path

    @property
    def end(self) -> Path:
        """When it has arrived."""
        return self.since.then(self.way)


def _after(now: Path, ends: Iterable[_Underway]) -> Path:
    """When the core at ``now`` and all of ``ends`` are through.

    Who did nothing since the start pays the hops, words and stages of the longest way; who worked
    waits for what is left of it.
    """
    every = list(ends)
    hops = max([now.hops, *(e.end.hops for e in every)])
    stages = max([now.stages, *(e.end.stages for e in every)])
    last = max(every, key=lambda e: e.end.cycles, default=None)
    if last is None or last.end.cycles <= now.cycles:
        return Path(hops, stages, now.cost)
    if last.since.cycles == now.cycles:
        return Path(hops, stages, now.cost + last.way.cost)
    return Path(hops, stages, now.cost + Cost(waits=last.end.cycles - now.cycles))
