"""fuse-all-reduce: sums over ranks with the residual sums and norms behind them, also those that
stand in the next layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from meshc.analysis.cuda.stream_turns import blocks_alone
from meshc.ir.builder import Names
from meshc.ir.core import Block, Op, tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import graph, ranks
from meshc.ir.rewriter import Rewriter
from meshc.ir.values import Value
from meshc.passes.base import Pass
from meshc.passes.graph.flow import Flow, dims_of
from meshc.support.diagnostics import Diagnostics, fail


@dataclass(frozen=True)
class FuseAllReduce(Pass):
    """Make one op of a sum over ranks, the residual sum behind it and the RMSNorm behind that.

    It is one kernel on all GPUs (TokenWeave, Gond and others, 2025), with at most
    ``multiprocessors`` blocks; with 0 these are as many as the device gives a collective that runs
    alone, twice its ``collective_blocks``. Where a loop over layers ends with a residual sum whose
    norm stands in the next layer, or behind the loop, the loop is turned: it carries the residual
    and the part of the sum that each rank has, both begin as they were in front of it, the part
    with zeros, and each layer begins with the sum. A sum stays as it is where the residual behind
    it is used otherwise, by two norms, or by something else than residual sums that are fused as
    well; so does one with another user, and one whose norm is over several dims or has a gain that
    is made later.

    Before::

        %s = graph.all_reduce %p : f32[B, E]
        %x_1 = graph.add %x, %s : f32[B, E]
        %h = graph.rms_norm %x_1, %g {dim = E} : f32[B, E]

    After::

        %h, %x_1 = graph.all_reduce_residual_rms_norm %p, %x, %g {dim = E, multiprocessors = 8} ...
    """

    NAME: ClassVar[str] = "fuse-all-reduce"
    LEVELS: ClassVar[tuple[str, ...]] = ("graph",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    multiprocessors: int = 0

    def run(self, module: Module, report: Diagnostics) -> Module:
        if not 0 <= self.multiprocessors <= _MOST:
            words = f"option 'multiprocessors' of fuse-all-reduce is {self.multiprocessors}"
            fail("bad-pass-option", words, help=f"0 (the device says) to {_MOST:,}")
        found = _Candidates(module)
        found.settle()
        fused, turned = len(found.norms), len(found.loops)
        if fused:
            given = self.multiprocessors or _given_by(module)
            _Fusion(found, given).run()
            words = f"{fused} sum{'s' * (fused > 1)} over ranks with residual and norm fused"
            words += f", {turned} loop{'s' * (turned > 1)} turned" if turned else ""
            report.remark("all-reduce-fused", words)
        return module


_MOST = 1 << 16


def _given_by(module: Module) -> int:
    """What the device gives a collective. Raises ``device-number`` and ``no-device``."""
    return blocks_alone(module.the_device().whole("collective_blocks"))


class Sum(NamedTuple):
    """``add`` completes ``partial`` over ranks by ``reduction`` and adds it to ``residual``."""

    add: graph.Add
    reduction: ranks.AllReduce
    residual: Value
    partial: Value


class Slot(NamedTuple):
    """A value that ``loop`` carries, at ``place``, and the residual sum that gives the next one."""

    loop: graph.Repeat
    place: int
    closing: Sum

    @property
    def argument(self) -> Value:
        """The value that a round of the loop begins with."""
        return self.loop.regions[0].args[self.place]

    @property
    def result(self) -> Value:
        """The value that the last round leaves behind the loop."""
        return self.loop.results[self.place]


@dataclass
class _Candidates:
    """What may be fused. ``sums`` are by their results; ``loops`` by the result of what they carry.
    ``norms`` are those that become part of a fused op, by the residual that they read: the result
    of a sum, or what a turned loop carries, within it or behind it."""

    module: Module
    sums: dict[Value, Sum] = field(default_factory=dict)
    loops: dict[Value, Slot] = field(default_factory=dict)
    norms: dict[Value, graph.RmsNorm] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.flow = Flow(self.module)
        self.blocks = {id(op): b for b in Rewriter(self.module).blocks() for op in b.ops}
        for op in self.module.walk():
            found = self._sum(op) if isinstance(op, graph.Add) else None
            if found is not None:
                self.sums[op.results[0]] = found
        for op in self.module.walk():
            for slot in self._slots(op) if isinstance(op, graph.Repeat) else ():
                self.loops[slot.result] = slot
        for value in (*self.sums, *self.loops, *(slot.argument for slot in self.loops.values())):
            norm = self._norm(value)
            if norm is not None:
                self.norms[value] = norm

    def settle(self) -> None:
        """Drop candidates whose residual somebody needs that drops out, until none does."""
        size = -1
        while size != len(self.norms) + len(self.loops):
            size = len(self.norms) + len(self.loops)
            self.loops = {v: slot for v, slot in self.loops.items() if self._turns(slot)}
            kept = {*self.sums, *self.loops, *(slot.argument for slot in self.loops.values())}
            self.norms = {v: n for v, n in self.norms.items() if v in kept and self._open(v)}

    def handed(self, value: Value) -> bool:
        """Whether a turned loop alone takes ``value``, or gives it to its next round."""
        users = self.flow.readers.get(value, [])
        if len(users) != 1 or users[0].operands.count(value) != 1:
            return False
        (user,) = users
        place = user.operands.index(value)
        if isinstance(user, graph.Repeat):
            return place < user.carried and user.results[place] in self.loops
        return any(
            user is slot.loop.regions[0].ops[-1] and place == slot.place
            for slot in self.loops.values()
        )

    # --- what is found

    def _sum(self, add: graph.Add) -> Sum | None:
        for reduced, residual in (add.tensors(), add.tensors()[::-1]):
            maker = self.flow.makers.get(reduced)
            alike = len({tensor_type(v) for v in (*add.tensors(), add.result)}) == 1
            if not isinstance(maker, ranks.AllReduce) or not alike or reduced is residual:
                continue
            beside = self.blocks[id(maker)] is self.blocks[id(add)]
            if beside and len(self.flow.readers[reduced]) == 1:
                return Sum(add, maker, residual, maker.tensors()[0])
        return None

    def _slots(self, loop: graph.Repeat) -> list[Slot]:
        (body,) = loop.regions
        end = body.ops[-1]
        given = [(place, self.sums.get(end.tensors()[place])) for place in range(loop.carried)]
        return [
            Slot(loop, place, found)
            for place, found in given
            if found is not None
            and self.blocks[id(found.add)] is body
            and len(self.flow.readers[found.add.result]) == 1
            and end.operands.count(found.add.result) == 1
        ]

    def _norm(self, value: Value) -> graph.RmsNorm | None:
        """The only norm of ``value``, in the block in which it is given, with a gain that is there
        before."""
        found = [op for op in self.flow.readers.get(value, []) if isinstance(op, graph.RmsNorm)]
        if len(found) != 1 or found[0].also or found[0].operands[1] is value:
            return None
        (norm,) = found
        gain = norm.tensors()[1]
        if dims_of(gain) != (norm.dim,) or tensor_type(gain).dtype != tensor_type(value).dtype:
            return None
        block = self.blocks[id(norm)]
        maker = self.flow.makers.get(value)
        if value not in block.args and (maker is None or self.blocks[id(maker)] is not block):
            return None
        behind = block.ops[_position(block, maker) :] if maker is not None else block.ops
        return None if any(gain in op.results for op in behind) else norm

    def _open(self, value: Value) -> bool:
        """Whether the norm of ``value`` and fused residual sums are all that reads it."""
        return value in self.norms and all(
            user is self.norms[value] or self._as_residual(user, value)
            for user in self.flow.readers[value]
        )

    def _as_residual(self, user: Op, value: Value) -> bool:
        found = self.sums.get(user.results[0]) if isinstance(user, graph.Add) else None
        if found is None or found.residual is not value:
            return False
        return found.add.result in self.norms or self.handed(found.add.result)

    def _turns(self, slot: Slot) -> bool:
        result = slot.result
        return self._open(slot.argument) and (self._open(result) or self.handed(result))


@dataclass
class _Fusion:
    """The rewriting of what is found. ``parts`` are ranks' parts of sums that turned loops carry,
    by what a loop carried before; that becomes what the sum gives, so that its readers stay."""

    found: _Candidates
    multiprocessors: int
    parts: dict[Value, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = Names.of(self.found.module)

    def run(self) -> None:
        """Rewrite the module."""
        slots = [*self.found.loops.values()]
        begins = [self.found.handed(slot.loop.tensors()[slot.place]) for slot in slots]
        places = [(slot, slot.argument, slot.result) for slot in slots]
        gone = [slot.closing for slot in slots]
        gone += [found for v, found in self.found.sums.items() if v in self.found.norms]
        gone += [found for v, found in self.found.sums.items() if self.found.handed(v)]
        for slot, handed in zip(slots, begins, strict=True):
            self.turn(slot, handed)
        for value, found in self.found.sums.items():
            if value in self.found.norms:
                block = self.found.blocks[id(found.add)]
                made = self.fused(value, found.residual, found.partial)
                block.ops[_position(block, found.add)] = made
        for slot, argument, result in places:
            self.spread(slot, argument, result)
        self.drop(gone)

    def turn(self, slot: Slot, handed: bool) -> None:
        """Let the loop carry residual and part in the place of their sum."""
        loop, body = slot.loop, slot.loop.regions[0]
        argument, result, initial = slot.argument, slot.result, loop.tensors()[slot.place]
        before = self.found.sums.get(initial)
        if handed and before is not None:
            residual, partial = before.residual, before.partial
        elif handed and initial in self.parts:
            residual, partial = initial, self.parts[initial]
        else:
            residual, partial = initial, self.zeros(initial, loop)
        self.parts[argument] = self.like(argument, f"{argument.name}_part")
        self.parts[result] = self.like(result, f"{result.name}_part")
        end = body.ops[-1]
        for operands, first, second in (
            (loop.operands, residual, partial),
            (end.operands, slot.closing.residual, slot.closing.partial),
        ):
            operands[slot.place] = first
            operands.insert(loop.carried, second)
        body.args.insert(loop.carried, self.parts[argument])
        loop.results.insert(loop.carried, self.parts[result])
        loop.carried += 1

    def spread(self, slot: Slot, argument: Value, result: Value) -> None:
        """Put the sums of what a turned loop carries at its start and behind it."""
        body, block = slot.loop.regions[0], self.found.blocks[id(slot.loop)]
        body.args[slot.place] = carried = self.taking_name_of(argument)
        body.ops.insert(0, self.fused(argument, carried, self.parts[argument]))
        if result in self.found.norms:
            slot.loop.results[slot.place] = given = self.taking_name_of(result)
            made = self.fused(result, given, self.parts[result])
            block.ops.insert(_position(block, slot.loop) + 1, made)

    def fused(self, stream: Value, residual: Value, partial: Value) -> Op:
        """The op that gives ``stream`` and what its norm has given."""
        norm = self.found.norms[stream]
        made = ranks.AllReduceResidualRmsNorm(
            [partial, residual, norm.operands[1]],
            dim=norm.dim,
            eps=norm.eps,
            multiprocessors=self.multiprocessors,
            span=norm.span,
        )
        made.results = [norm.result, stream]
        return made

    def zeros(self, value: Value, loop: Op) -> Value:
        """Zeros like ``value``, in front of ``loop``."""
        block = self.found.blocks[id(loop)]
        made = ranks.ZerosLike([value])
        made.results = [self.like(value, f"{value.name}_part")]
        block.ops.insert(_position(block, loop), made)
        return made.result

    def like(self, value: Value, name: str) -> Value:
        return Value(self.names.fresh(name), value.type)

    def taking_name_of(self, value: Value) -> Value:
        """A value with the name of ``value``, which gets another one."""
        made = self.like(value, value.name)
        made.name, value.name = value.name, made.name
        return made

    def drop(self, sums: list[Sum]) -> None:
        """Leave out ``sums`` and norms, in whose place fused ops are."""
        gone: set[int] = {id(norm) for norm in self.found.norms.values()}
        gone |= {id(op) for found in sums for op in (found.add, found.reduction)}
        for block in Rewriter(self.found.module).blocks():
            block.ops = [op for op in block.ops if id(op) not in gone]


def _position(block: Block, op: Op) -> int:
    return next(place for place, known in enumerate(block.ops) if known is op)
