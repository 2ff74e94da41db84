"""fuse-chunk: ops of a decode step become the kernels that read many tokens of a prompt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from meshc.ir.builder import Builder
from meshc.ir.core import Block, Op, tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.ir.values import Value
from meshc.passes.base import Pass
from meshc.passes.graph.flow import Flow, Mismatch, block_with
from meshc.passes.graph.fusing.pattern import Match, Pattern
from meshc.passes.graph.fusing.registry import PATTERNS
from meshc.support.diagnostics import Diagnostics


@dataclass(frozen=True)
class FuseChunk(Pass):
    """Fuse a decode step into the kernels by which many tokens of a prompt are read at once.

    RMSNorm, the q, k and v projections, norms of heads if there are any, RoPE, the caches,
    attention, the output projection (with biases or without) and the residual sum become an
    ``attention_block``; a feed-forward layer, gated or not, with its norm and residual an
    ``ffn_block``; the last norm and the logits a ``head``; the look-up of token ids an ``embed``.
    What is fused is told as ``fused``, what stays and why as ``missed[fuse-chunk]``.

    Before::

        %h = graph.rms_norm %x, %norm {dim = E}
        %q, %k, %v = graph.matmul %h, %wq, %wk, %wv {contract = [E]}
        %y = graph.matmul %a, %wo {contract = [H, D]}
        %z = graph.add %x, %y

    After::

        %z, %keys, %values = graph.fuse %x, ... {kernel = attention_block, ...
          graph.yield
    """

    NAME: ClassVar[str] = "fuse-chunk"
    LEVELS: ClassVar[tuple[str, ...]] = ("graph",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"transpose_free"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    def run(self, module: Module, report: Diagnostics) -> Module:
        unfit = _unfit(module)
        if unfit:
            report.missed("fuse-chunk", f"nothing is fused: {unfit}")
            return module
        for pattern, match in _matches(module, report):
            _replace(module, match, graph.Fuse(kernel=pattern.NAME, partial=match.partial))
            report.remark("fused", pattern.NAME, match.at.span)
        return module


def _unfit(module: Module) -> str:
    """Why no kernel fits the whole module, or an empty text."""
    if any(isinstance(op, graph.Fuse) for op in module.walk()):
        return "its ops are in kernels already"
    for op in module.walk():
        if isinstance(op, graph.Softmax) and module.dims.get(op.rows, 1) > 1:
            rows = f"{op.rows} = {module.dims[op.rows]} rows at once"
            return f"{rows} (prefill); kernels are made of decode steps"
    return ""


def _matches(module: Module, report: Diagnostics) -> Iterator[tuple[Pattern, Match]]:
    """Matches in the order of their places; what does not match is reported.

    Uses are found anew after each match, since what is fused has moved.
    """
    for op in list(module.walk()):
        marked = [pattern for pattern in PATTERNS if isinstance(op, pattern.MARKS)]
        flow = Flow(module) if marked else None
        pattern = next((p for p in marked if flow is not None and p.marked(flow, op)), None)
        if flow is None or pattern is None:
            continue
        try:
            match = pattern.match(flow, op)
            _closed(flow, match)
        except Mismatch as why:
            report.missed("fuse-chunk", f"{pattern.TITLE} stays: {why}", why.op.span)
            continue
        yield pattern, match


def _closed(flow: Flow, match: Match) -> None:
    """All ops in one block, and nobody outside reads what the kernel keeps to itself."""
    if len(set(match.takes.values())) < len(match.takes):
        raise Mismatch("it takes one value in two places", match.at)
    block = block_with(flow.module, match.ops[-1])
    places = {id(op): place for place, op in enumerate(block.ops)}
    for op in match.ops:
        if id(op) not in places:
            raise Mismatch(f"{op.NAME} {op.results[0]} is in another block", op)
    last = max(places[id(op)] for op in match.ops)
    for op in match.ops:
        for value in op.results:
            _kept(flow, match, value, places, last)


def _kept(flow: Flow, match: Match, value: Value, places: dict[int, int], last: int) -> None:
    for reader in flow.readers.get(value, []):
        if any(reader is op for op in match.ops):
            continue
        if value not in match.outputs:
            raise Mismatch(f"{value} is also read by {reader.NAME}", reader)
        if places.get(id(reader), last) < last:
            raise Mismatch(f"{reader.NAME} reads {value} before the kernel is over", reader)


def _replace(module: Module, match: Match, fuse: graph.Fuse) -> None:
    """Put ``fuse`` with the ops of ``match`` as its body in the place of the last of them."""
    block = block_with(module, match.ops[-1])
    chosen = [op for op in block.ops if any(op is known for known in match.ops)]
    outside = list(match.takes.values())
    place = next(i for i, op in enumerate(block.ops) if op is chosen[-1]) - len(chosen) + 1
    builder = Builder(module, block, place)  # knows all names: made before ops leave the block
    block.ops = [op for op in block.ops if all(op is not known for known in chosen)]
    fuse.operands = [*outside]
    fuse.takes = tuple(match.takes)
    inner = {v: Value(builder.names.fresh(v.name), v.type) for v in outside}
    _rename_operands(chosen, inner)
    body = Block(list(inner.values()), chosen)
    body.ops.append(graph.Yield(list(match.outputs)))
    fuse.regions = [body]
    fuse.span = match.at.span
    names = [value.name for value in match.outputs]
    results = builder.add(fuse, *names, types=[tensor_type(v) for v in match.outputs])
    _hand_over(module, fuse, dict(zip(match.outputs, results, strict=True)))


def _rename_operands(ops: Iterable[Op], changes: dict[Value, Value]) -> None:
    for op in ops:
        op.operands = [changes.get(o, o) if isinstance(o, Value) else o for o in op.operands]


def _hand_over(module: Module, fuse: graph.Fuse, changes: dict[Value, Value]) -> None:
    """Outside of its body, the kernel's results stand for what its body gives.

    They take the names, so that a fused module reads like the one it was made of.
    """
    inside = {id(op) for op in fuse.regions[0].ops}
    _rename_operands((op for op in module.walk() if id(op) not in inside), changes)
    for given, result in changes.items():
        given.name, result.name = result.name, given.name
