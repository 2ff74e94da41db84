"""What a tile program takes of a device in PLMR terms, counted from the program itself.

The program is walked once as the busiest core would run it. Transfers are asynchronous: one that is
started takes its hops (alpha), its words and one routing stage (beta); a wait goes on when those it
names have ended, so work between start and wait hides them. A sweep is a chain: its stages follow
each other, or flow through relays. Loops count their bodies.

Source of the model: WaferLLM sections 3 and 5.1; alpha, beta and the costs of work are device
numbers, so cycles are predictions (the fabric simulator measures).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from meshc.analysis.channels import Line, line_of
from meshc.analysis.coordinates import coordinate_values
from meshc.analysis.cost import Tile, product_cycles
from meshc.devices import Device
from meshc.ir.affine import Expr, IntArray, parse_piecewise
from meshc.ir.core import Block
from meshc.ir.mesh import Mesh
from meshc.ir.module import Channel, Module
from meshc.ir.ops import tile
from meshc.ir.values import Value
from meshc.ir.views import View


@dataclass(frozen=True)
class Path:
    """A critical path: hops (alpha), routing stages (beta) and cycles."""

    hops: int = 0
    stages: int = 0
    cycles: float = 0.0

    def then(self, other: Path) -> Path:
        """One after the other."""
        return Path(self.hops + other.hops, self.stages + other.stages, self.cycles + other.cycles)

    def times(self, count: int) -> Path:
        """Repeated."""
        return Path(self.hops * count, self.stages * count, self.cycles * count)


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
    reach = max((line.hops for line in walk.lines.values()), default=0)
    return Profile(
        routing_paths(module), _inputs(module), max(ends, default=0), total, walk.longest, reach
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
        busiest += max(len(colors) for colors in at)
    return busiest


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


def _inputs(module: Module) -> int:
    """Most channels on which one core receives, counted line by line of either axis."""
    mesh = module.the_mesh()
    lines = [line_of(channel, mesh) for channel in module.channels]
    return sum(
        max(sum(place in line.receivers for line in here) for place in range(mesh.size(axis)))
        for axis in mesh.plane
        if (here := [line for line in lines if line.axis == axis])
    )


class _Walk:
    """Walks statements in order with the times at which transfers end."""

    def __init__(self, module: Module, device: Device) -> None:
        self.mesh = module.the_mesh()
        self.device = device
        self.lines = {c.name: line_of(c, self.mesh) for c in module.channels}
        self.scalars = {name: high for name, (_, high) in module.scalars.items()}
        self.longest = Path()

    def block(self, block: Block) -> Path:
        """The critical path of the statements of a block."""
        now = before = Path()
        last: tile.Sweep | None = None
        open_: dict[Value, Path] = {}
        for op in block.ops:
            if isinstance(op, (tile.Send, tile.Recv)):
                open_[op.result] = now.then(self.message(op))
            elif isinstance(op, tile.Wait):
                for token in op.tensors():
                    now = _later(now, open_.pop(token, now))
            elif isinstance(op, tile.For):
                body = self.iteration(op.regions[0])
                now = now.then(body.times(self.number(op.count)))
            elif isinstance(op, tile.Sweep):
                # Chains that leave a core in opposite directions are on different cores.
                start = before if last is not None and self.opposite(last, op) else now
                before, now = start, _later(now, start.then(self.chain(op)))
                last = op
            elif isinstance(op, tile.Compute):
                now = replace(now, cycles=now.cycles + self.work(op))
        for end in open_.values():
            now = _later(now, end)
        return now

    def iteration(self, body: Block) -> Path:
        """One round of a loop; a round that moves something costs a step of the program."""
        found = self.block(body)
        if any(isinstance(op, (tile.Send, tile.Recv)) for op in body.ops):
            found = replace(found, cycles=found.cycles + self.device.step_cycles)
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
        hop = max((self.lines[c].hops for o in body.ops if (c := tile.channel_in(o))), default=1)
        links = op.count - 1
        hops = links * hop
        link = self.device.link
        words = max((self.words(v) for o in body.ops for v in o.views()), default=0)
        relays = any(isinstance(o, tile.Relay) for o in body.ops)
        cycles = hops * link.hop_cycles + link.route_cycles + words / link.words_per_cycle
        if relays and link.relay_cycles is not None:
            cycles += (links - 1) * link.relay_cycles
        elif not relays and any(isinstance(o, tile.Wait) for o in body.ops):
            # Stored and sent on by each core; the next message is already on its way behind.
            cycles += link.route_cycles + words / link.words_per_cycle
        else:
            cycles *= links
        found = Path(hops, links, cycles)
        self.note(found)
        return found

    def message(self, op: tile.Send | tile.Recv) -> Path:
        """One transfer to the furthest receiver of its channel."""
        link = self.device.link
        hops = self.lines[op.channel].hops
        (view,) = op.views()
        words = self.words(view) / link.words_per_cycle
        found = Path(hops, 1, hops * link.hop_cycles + words + link.route_cycles)
        self.note(found)
        return found

    def note(self, path: Path) -> None:
        """Remember the longest way that something goes in a step."""
        link = self.device.link

        def latency(way: Path) -> float:
            return way.hops * link.hop_cycles + way.stages * link.route_cycles

        self.longest = max(self.longest, replace(path, cycles=0.0), key=latency)

    def work(self, op: tile.Compute) -> float:
        """Cycles of a microkernel."""
        views = op.views()
        dtype = str(views[-1].buffer_type.dtype)
        if op.kernel == "gemm":
            m, n = (self.number(e) for e in views[0].shape()[-2:])
            k = self.number(views[1].shape()[-1])
            batch = prod(self.number(e) for e in views[0].shape()[:-2])
            return batch * product_cycles(Tile(m, k, n, dtype), self.device)
        elements = prod(self.number(e) for e in views[0].shape())
        return self.device.op_cycles + elements / self.device.lanes(dtype)

    def words(self, view: View) -> float:
        """Link words of a view."""
        elements = prod(self.number(e) for e in view.shape())
        return -(-elements * view.buffer_type.dtype.bytes // self.device.link.word_bytes)

    def number(self, value: Expr) -> int:
        """An extent, at the largest values of the run-time scalars."""
        env = {name: self.scalars.get(name, 0) for name in value.free_vars}
        return int(value.evaluate(env))


def _later(one: Path, other: Path) -> Path:
    """When both have ended."""
    cycles = max(one.cycles, other.cycles)
    return Path(max(one.hops, other.hops), max(one.stages, other.stages), cycles)
