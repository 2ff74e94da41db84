"""Channels on a wafer: colors, queues and fabric DSDs of their two ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshc.analysis.channels import Line, line_of, shares_core
from meshc.backends.csl.descriptors import Descriptors
from meshc.backends.csl.expressions import COORDINATES
from meshc.backends.csl.names import Names
from meshc.ir.affine import Cond, Expr, Piecewise, parse_piecewise
from meshc.ir.module import Channel, Module
from meshc.ir.ops.tile import channel_in, channel_out
from meshc.ir.types import DType
from meshc.support.diagnostics import fail

OUTPUTS = {"wse2": (2, 3, 4, 5), "wse3": (2, 3, 4, 5, 6, 7)}
INPUTS = {"wse2": (7, 6, 5, 4, 3, 2, 1), "wse3": (7, 6, 5, 4, 3, 2)}


@dataclass
class End:
    """One end of a channel in a PE program: its color parameter, its queue, when it is in use."""

    channel: Channel
    verb: str  # send or recv
    color: str
    queue: int
    uses: Cond = field(default_factory=Cond.false)
    places: Cond = field(default_factory=Cond.true)

    @property
    def static_uses(self) -> Cond:
        """Where the end is in use at some time, as far as the coordinates decide it."""
        if self.uses.free_vars <= COORDINATES:
            return self.uses
        known = [[c for c in cl if c.expr.free_vars <= COORDINATES] for cl in self.uses.clauses]
        return Cond.any(Cond.all(map(Cond.of, clause)) for clause in known) & self.places

    @property
    def colors(self) -> Piecewise:
        """The color as a function of the coordinates."""
        text = self.channel.send_color if self.verb == "send" else self.channel.recv_color
        return parse_piecewise(text)


class Ends:
    """The ends of all channels that a program uses, by channel and verb."""

    def __init__(self, module: Module, names: Names, descriptors: Descriptors, arch: str) -> None:
        self.arch = arch
        self.descriptors = descriptors
        self.of: dict[tuple[str, str], End] = {}
        self._words: dict[tuple[str, str], set[int]] = {}
        for op in module.walk():
            for verb, name in (("send", channel_out(op)), ("recv", channel_in(op))):
                if name is None:
                    continue
                if (name, verb) not in self.of:
                    color = names.fresh(f"{name}_{'out' if verb == 'send' else 'in'}")
                    self.of[name, verb] = End(module.channel(name), verb, color, -1)
                end = self.of[name, verb]
                end.uses = end.uses | (op.when or Cond.true())
        self._assign_queues(module)

    def _assign_queues(self, module: Module) -> None:
        """Queues by a greedy coloring: ends that meet at a core get different microthreads, and
        the microthread of a transfer has the number of its queue."""
        mesh = module.the_mesh()
        lines = {c.name: line_of(c, mesh) for c in module.channels}
        done: list[tuple[End, frozenset[int], str]] = []
        for end in sorted(self.of.values(), key=lambda e: e.verb == "recv"):
            line = lines[end.channel.name]
            places = _places(line, end.verb)
            busy = {
                other.queue
                for other, theirs, axis in done
                if shares_core(places, theirs, (line.axis, axis))
            }
            choices = (OUTPUTS if end.verb == "send" else INPUTS)[self.arch]
            queue = next((q for q in choices if q not in busy), None)
            if queue is None:
                fail(
                    "csl-queues",
                    f"a core of {self.arch} has no queue left for channel @{end.channel.name}",
                    notes=(
                        "queues 0 and 1 serve the host; a send and a receive on queues of one "
                        "number share a microthread",
                        "this violates R of PLMR: routing resources of a core",
                    ),
                    help="choose algorithms with fewer channels",
                )
            end.queue = queue
            end.places = _within(line.axis, places, mesh.size(line.axis))
            done.append((end, places, line.axis))

    def descriptor(self, name: str, verb: str, elements: int, dtype: DType) -> str:
        """The fabric DSD for a message of ``elements``; pairs of f16 share a wavelet."""
        end = self.of[name, verb]
        kind, side = ("fabout", "output") if verb == "send" else ("fabin", "input")
        fields = [f".extent = {elements}"]
        if self.arch == "wse2":
            fields.append(f".fabric_color = {end.color}")
        fields.append(f".{side}_queue = @get_{side}_queue({end.queue})")
        if dtype.bytes == 2 and elements % 2 == 0:
            fields.append(".simd_mode = .{ .simd_32 = true }")
        text = f"@get_dsd({kind}_dsd, .{{ {', '.join(fields)} }})"
        found = self._words.setdefault((name, verb), set())
        found.add(elements)
        hint = f"{end.color}_dsd"
        return self.descriptors.declare(text, hint)

    def initialised(self) -> list[End]:
        """Ends whose queues have to be bound to a color: inputs, and outputs on WSE-3."""
        return [e for e in self.of.values() if e.verb == "recv" or self.arch == "wse3"]


def _within(axis: str, places: frozenset[int], size: int) -> Cond:
    """The cores whose position on ``axis`` is among ``places``."""
    here = Expr.var(axis)
    edges = [n for n in range(size + 1) if (n in places) != (n - 1 in places)]
    runs = list(zip(edges[::2], edges[1::2], strict=True))
    if runs == [(0, size)]:
        return Cond.true()
    return Cond.any(Cond.between(low, here, end) for low, end in runs)


def _places(line: Line, verb: str) -> frozenset[int]:
    return line.senders if verb == "send" else line.receivers
