"""Exchanges: stretches of transfers of one view that occur again and again, as functions.

An all-reduce is some twenty transfers along the same channels, of another buffer each time. Giving
it a name once keeps the statements of a layer on one page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshc.ir.attributes import attribute_text
from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops.tile import (
    Recv,
    Relay,
    Send,
    Sweep,
    Wait,
    channel_in,
    channel_out,
)
from meshc.ir.values import Value
from meshc.ir.views import View

_FEWEST = 2  # ops that are worth a function


@dataclass(frozen=True)
class Exchange:
    """Consecutive transfers, sweeps and waits that all move ``view``."""

    ops: tuple[Op, ...]
    view: View

    @property
    def key(self) -> str:
        """Equal for exchanges that differ in their view and the names of tokens only."""
        tokens: dict[Value, int] = {}
        return "; ".join(_text(op, tokens) for op in self.ops)

    def variables(self, coordinates: frozenset[str]) -> tuple[str, ...]:
        """Loop variables and run-time scalars, anything but ``coordinates``, that guards and ranks
        depend on."""
        names = {name for op in _walk(self.ops) for name in _free(op)}
        return tuple(sorted(names - coordinates))

    def name(self, module: Module) -> str:
        """What it does, as far as its channels tell."""
        channels = [module.channel(c) for c in self.channels]
        receives = (op for op in _walk(self.ops) if isinstance(op, (Recv, Relay)))
        combines = [op.combine for op in receives if op.combine != "store"]
        spread = any(c.multicast for c in channels)
        verb = ("all_reduce" if spread else "reduce") if combines else "exchange"
        moved = {
            axis
            for channel in channels
            for piece in channel.route.pieces
            for axis, to in zip(channel.route.inputs, piece.outputs, strict=False)
            if str(to) != axis
        }
        return "_".join([verb, *dict.fromkeys(combines), *sorted(moved)])

    @property
    def channels(self) -> tuple[str, ...]:
        """Channels in the order of their first use."""
        ends = (name for op in _walk(self.ops) for name in (channel_in(op), channel_out(op)))
        return tuple(dict.fromkeys(name for name in ends if name is not None))


def functions(module: Module) -> dict[str, Exchange]:
    """The first of the exchanges of each key that occur again or combine, in program order."""
    found: dict[str, list[Exchange]] = {}
    for block in _blocks(module.program.body):
        for exchange in exchanges(block.ops):
            found.setdefault(exchange.key, []).append(exchange)
    return {key: many[0] for key, many in found.items() if len(many) > 1 or _reduces(many[0])}


def _reduces(exchange: Exchange) -> bool:
    """Whether some core combines what it receives with what it has."""
    ends = (op for op in _walk(exchange.ops) if isinstance(op, (Recv, Relay)))
    return any(op.combine != "store" for op in ends)


def exchanges(ops: Sequence[Op]) -> list[Exchange]:
    """The longest stretches of ``ops`` that are exchanges, in order."""
    found: list[Exchange] = []
    stretch: list[Op] = []
    view: View | None = None
    for op in ops:
        mine = _view_of(op)
        ours = {token for o in stretch for token in o.results}
        joins = isinstance(op, Wait) and all(t in ours for t in op.operands)
        if stretch and (joins or (mine is not None and mine == view)):
            stretch.append(op)
            continue
        _keep(found, stretch, view)
        stretch, view = ([op], mine) if mine is not None else ([], None)
    _keep(found, stretch, view)
    used = _uses(ops)
    return [e for e in found if _closed(e, used)]


def _keep(found: list[Exchange], stretch: list[Op], view: View | None) -> None:
    if view is not None and len(stretch) >= _FEWEST:
        found.append(Exchange(tuple(stretch), view))


def _view_of(op: Op) -> View | None:
    """The only view that the transfers of ``op`` move; None if there is another, or other work."""
    if isinstance(op, (Send, Recv, Relay)):
        (view,) = op.views()
        return view
    if not isinstance(op, Sweep):
        return None
    (body,) = op.regions
    views = [_view_of(inner) for inner in body.ops if not isinstance(inner, Wait)]
    return views[0] if views and all(v is not None and v == views[0] for v in views) else None


def _uses(ops: Sequence[Op]) -> dict[Value, list[Op]]:
    """Where tokens are waited for, among ``ops`` themselves."""
    found: dict[Value, list[Op]] = {}
    for op in ops:
        for inner in _walk([op]):
            for operand in inner.operands:
                if isinstance(operand, Value):
                    found.setdefault(operand, []).append(op)
    return found


def _closed(exchange: Exchange, uses: dict[Value, list[Op]]) -> bool:
    """Whether the tokens of the exchange are waited for inside of it, and no others are."""
    inside = {id(op) for op in exchange.ops}
    started = {token for op in _walk(exchange.ops) for token in op.results}
    awaited = {o for op in _walk(exchange.ops) for o in op.operands if isinstance(o, Value)}
    return awaited <= started and all(id(op) in inside for t in started for op in uses.get(t, []))


def _blocks(block: Block) -> Iterable[Block]:
    """``block`` and the blocks inside it, sweeps that are part of an exchange excepted."""
    yield block
    for op in block.ops:
        if _view_of(op) is None:
            for region in op.regions:
                yield from _blocks(region)


def _walk(ops: Iterable[Op]) -> Iterable[Op]:
    for op in ops:
        yield op
        for region in op.regions:
            yield from region.walk()


def _free(op: Op) -> frozenset[str]:
    names = op.when.free_vars if op.when is not None else frozenset[str]()
    return names | op.rank.free_vars if isinstance(op, Sweep) else names


def _text(op: Op, tokens: dict[Value, int]) -> str:
    for token in op.results:
        tokens[token] = len(tokens)
    operands = [
        "view" if isinstance(o, View) else str(tokens[o]) if isinstance(o, Value) else str(o)
        for o in op.operands
    ]
    facts = [f"{name}={attribute_text(value)}" for name, value in op.attributes().items()]
    inner = [_text(o, tokens) for region in op.regions for o in region.ops]
    return f"{op.NAME} {operands} {facts} {inner}"
