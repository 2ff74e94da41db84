"""Channels on a wafer: colors, queues and fabric DSDs of their two ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from meshc.analysis.csl.ends import colors_on, ends_of
from meshc.analysis.csl.queues import queue_of, wrong_queue
from meshc.analysis.csl.strided_windows import Window
from meshc.analysis.traffic.channels import line_of
from meshc.analysis.traffic.runs import FEW, among, runs_of
from meshc.analysis.traffic.turns import turns_of
from meshc.backends.csl.fabric.messages import in_pairs
from meshc.backends.csl.fabric.switch_tables import check_colors, handover
from meshc.backends.csl.spelling.expressions import expression
from meshc.backends.csl.spelling.memory_dsds import Descriptors, resized
from meshc.backends.csl.spelling.names import Names
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.devices.csl import Targets
from meshc.ir.affine import Cond, Expr, Piecewise, parse_piecewise
from meshc.ir.module import Channel, Module
from meshc.support.diagnostics import fail


@dataclass
class End:
    """One end of a channel in a PE program: its color parameter, its queue, when it is in use and
    by whom."""

    channel: Channel
    verb: str  # send or recv
    color: str
    queue_name: str
    coordinates: frozenset[str]
    queue: int
    uses: Cond
    places: Cond

    @property
    def static_uses(self) -> Cond:
        """Where the end is in use at some time, as far as the coordinates decide it."""
        if self.uses.free_vars <= self.coordinates:
            return self.uses
        known = [
            [c for c in cl if c.expr.free_vars <= self.coordinates] for cl in self.uses.clauses
        ]
        return Cond.any(Cond.all(map(Cond.of, clause)) for clause in known) & self.places

    @property
    def side(self) -> str:
        """The kind of its queue."""
        return "output" if self.verb == "send" else "input"

    @property
    def colors(self) -> Piecewise:
        """The color as a function of the coordinates."""
        text = self.channel.send_color if self.verb == "send" else self.channel.recv_color
        if not text:
            fail(
                "csl-route",
                f"channel @{self.channel.name} has no colors",
                help="the pass allocate-routes gives them",
            )
        return parse_piecewise(text)


class Ends:
    """The ends of all channels that a program uses, by channel and verb; ``targets`` are all
    devices that the program is for."""

    def __init__(
        self, module: Module, names: Names, descriptors: Descriptors, targets: Targets
    ) -> None:
        self.targets = targets
        self.descriptors = descriptors
        self.mesh = module.the_mesh()
        self.of: dict[tuple[str, str], End] = {}
        wrong = wrong_queue(module, targets)
        if wrong is not None:
            fail(
                "csl-unassigned",
                f"the program does not say which queues it takes: {wrong}",
                help="run the pass assign-csl-queues, for --portable with {portable=true}",
            )
        for (name, verb), uses in ends_of(module).items():
            color = names.fresh(f"{name}_{'out' if verb == 'send' else 'in'}")
            constant = names.fresh(f"{color}_queue")
            channel = module.channel(name)
            line = line_of(channel, self.mesh)
            places = line.senders if verb == "send" else line.receivers
            self.of[name, verb] = End(
                channel,
                verb,
                color,
                constant,
                self.mesh.coordinates,
                queue_of(module, (name, verb)) or 0,
                uses,
                _within(line.axis, places, self.mesh.size(line.axis)),
            )

    def queues(self) -> list[csl.Statement]:
        """Constants for the queues."""
        return [
            csl.const(e.queue_name, csl.call(f"@get_{e.side}_queue", e.queue))
            for e in self.of.values()
        ]

    def descriptor(self, name: str, verb: str, message: Window) -> csl.Expression:
        """The fabric DSD for the elements of ``message``; pairs of f16 share a wavelet.

        The DSD of a message names its color, unless its queue is bound to one on every target.
        """
        paired = in_pairs(message)
        more = {"simd_mode": csl.record(simd_32=csl.TRUE)} if paired else {}
        mark = "_pairs" if paired and not message.constant else ""
        found = self._fabric(self.of[name, verb], message.size, more, mark)
        if message.constant:
            return found
        count = expression(message.count, self.descriptors.spell)
        return resized(found, count, message.size)

    def handover(
        self, name: str, resets: Callable[[Cond, str], csl.Expression]
    ) -> list[csl.Expression]:
        """The destination and the source of the operation that ends a turn on a channel;
        ``resets`` spells the guard of the last core of a line. Raises ``csl-route``."""
        end = self.of[name, "send"]
        turns = turns_of(end.channel, self.mesh)
        assert turns is not None
        colors = colors_on(end.colors, self.mesh)
        check_colors(name, colors, self.targets)
        wavelets = handover(turns)
        count = len(wavelets.words)

        def array(words: Sequence[int]) -> csl.Expression:
            return csl.Words(f"[{count}]u32", tuple(csl.Literal(f"{word:#010x}") for word in words))

        words = array(wavelets.words)
        if wavelets.words != wavelets.last:
            at_end = resets(Cond.eq(Expr.var(turns.axis), turns.size - 1), f"{end.color}_resets")
            words = csl.either(at_end, array(wavelets.last), words)
        held = self.descriptors.table(words, count, f"{end.color}_words")
        walked = csl.Walked(("i",), (count,), csl.element(held.text, "i"))
        access = csl.call("@get_dsd", "mem1d_dsd", csl.record(tensor_access=walked))
        source = self.descriptors.constant(access, f"{end.color}_over")
        return [self._fabric(end, count, {"control": csl.TRUE}, "_control"), source]

    def _fabric(
        self, end: End, elements: int, more: Mapping[str, csl.Expression], mark: str
    ) -> csl.Expression:
        kind = "fabout" if end.verb == "send" else "fabin"
        rest = {f"{end.side}_queue": csl.Name(end.queue_name), **more}

        def made(**color: csl.Operand) -> csl.Expression:
            return csl.call("@get_dsd", f"{kind}_dsd", csl.record(extent=elements, **color, **rest))

        found = csl.either(self._bound(), made(), made(fabric_color=end.color))
        return self.descriptors.constant(found, f"{end.color}{mark}_{elements}")

    def _bound(self) -> csl.Expression:
        """Whether output queues are bound to colors, as a condition that is known when a program
        is compiled."""
        bound = self.targets.bound
        if len(bound) == len(self.targets.archs):
            return csl.TRUE
        tests = [csl.call("@is_arch", csl.text(arch)) for arch in bound]
        return csl.joined("or", tests) if tests else csl.FALSE

    def bindings(self, used: Callable[[End], csl.Expression]) -> list[csl.Statement]:
        """Statements that bind queues to colors: of inputs, and of outputs that are bound."""
        found: list[csl.Statement] = []
        for end in self.of.values():
            bound = self._bound() if end.verb == "send" else csl.TRUE
            binding = csl.do("@initialize_queue", end.queue_name, csl.record(color=end.color))
            test = csl.all_of([bound, used(end)]) if bound != csl.FALSE else csl.FALSE
            found += csl.chosen([(test, [binding])], short=True)
        return found


def _within(axis: str, places: frozenset[int], size: int) -> Cond:
    """The cores whose position on ``axis`` is among ``places``. Raises ``too-many-turns``."""
    here, numbers = Expr.var(axis), sorted(places)
    runs = runs_of(numbers)
    if runs == [(0, size - 1)]:
        return Cond.true()
    if len(runs) > FEW:
        return among(here, numbers, size)
    return Cond.any(Cond.between(low, here, high + 1) for low, high in runs)
