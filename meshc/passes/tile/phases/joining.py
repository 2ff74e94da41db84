"""Both phases of a language model as one tile program.

A run is told by the scalar ``phase`` what it is: a step of decoding, the reading of a prompt, or,
once in between, the moves that bring weights from where products of many rows want them to where
those of a single row do. Each is a block under its own guard, so passes, facts, interpreter and
back ends know nothing of it. Caches, and weights that lie alike, are one buffer of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from meshc.ir.affine import Expr
from meshc.ir.batch import POSITION
from meshc.ir.clone import clone_module
from meshc.ir.core import Block, Operand
from meshc.ir.mesh import Mesh
from meshc.ir.module import Buffer, Channel, Module, Port, Program
from meshc.ir.ops import tile
from meshc.ir.phases import CACHED, DECODE, PHASE, PHASES, PREFILL, TRANSITION, guard_of
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value
from meshc.ir.views import Index, Point, View, Whole
from meshc.passes.tile.expand.rings import ring_route
from meshc.passes.tile.phases.lines import LineMove, Mover
from meshc.passes.tile.phases.placements import Placement, moves_between
from meshc.passes.tile.phases.renaming import Names, free, rename

STEP = "step"


@dataclass(frozen=True)
class Weight:
    """Weights of both phases that lie in one buffer of each: the ``tensors``, the ``bytes`` of a
    core, and ``moves`` that bring them from the one placement to the other, None where there are
    none that are known."""

    tensors: tuple[str, ...]
    bytes: int
    moves: tuple[LineMove, ...] | None


@dataclass(frozen=True)
class Joint:
    """A program of both phases: weights that lie alike, that both phases have a copy of, and that
    move from the placement of the one to that of the other."""

    module: Module
    alike: tuple[Weight, ...]
    copied: tuple[Weight, ...]
    moved: tuple[Weight, ...]


def weights_of_both(prefill: Module, decode: Module) -> list[Weight]:
    """The weights that both phases have, and how their placements differ."""
    return [weight for weight, _, _ in _pairs(prefill, decode)]


def joined(prefill: Module, decode: Module, moved: Sequence[Weight] = ()) -> Joint:
    """One program for ``prefill`` and ``decode``, tile-level programs of one mesh, without colors,
    addresses and other resources. The weights ``moved`` are kept once; others that do not lie alike
    have a copy for each phase."""
    first, second = clone_module(prefill), clone_module(decode)
    _rename_clashes(first, second)
    pairs = _pairs(first, second)
    once = {w.tensors for w, _, _ in pairs if not w.moves and w.moves is not None}
    carried = {w.tensors for w in moved if w.moves}
    instead = {
        theirs: mine for w, mine, theirs in pairs if w.tensors in once or w.tensors in carried
    }
    instead |= _states(first, second)
    for op in second.walk():
        op.operands = [_within(operand, instead) for operand in op.operands]
    module = _header(first, second)
    module.buffers = [*first.buffers, *(b for b in second.buffers if b.value not in instead)]
    _own_names(module, second, instead)
    module.channels = _channels(first, second)
    _use_longer_ways(module, (first, second))
    given = {b.value for b in first.buffers if b.role == "in"}
    module.ports = [_prompt(p) if p.buffer in given else p for p in _inputs(first)]
    module.ports += [port for port in second.ports if port.buffer not in instead]
    blocks = {DECODE: second.program.body, PREFILL: first.program.body}
    if carried:
        movable = [(w, mine) for w, mine, _ in pairs if w.tensors in carried]
        blocks[TRANSITION] = _transition(module, movable, _taken(module, blocks.values()))
    module.scalars = {PHASE: (0, len(blocks) - 1), **module.scalars}
    ops = [_under(PHASES.index(phase), block) for phase, block in blocks.items()]
    module.programs = [Program("main", Block(ops=[*ops]))]
    known = [w for w, _, _ in pairs]
    return Joint(
        module,
        tuple(w for w in known if w.tensors in once),
        tuple(w for w in known if w.tensors not in once | carried),
        tuple(w for w in known if w.tensors in carried),
    )


# --- what both have


def _pairs(prefill: Module, decode: Module) -> list[tuple[Weight, Value, Value]]:
    """Weights of both, with the buffer of each."""
    mine, theirs = _placements(prefill), _placements(decode)
    found = []
    for names, (buffer, there) in theirs.items():
        if names not in mine:
            continue
        own, here = mine[names]
        size = buffer.type.bytes
        moves = moves_between(here, there)
        found.append((Weight(names, size, moves), own.value, buffer.value))
    return found


def _placements(module: Module) -> dict[tuple[str, ...], tuple[Buffer, Placement]]:
    """Buffers of weights by the tensors in them; of several with the same tensors, none."""
    found: dict[tuple[str, ...], list[tuple[Buffer, Placement]]] = {}
    for buffer in module.buffers:
        ports = [port for port in module.ports if port.buffer is buffer.value]
        if buffer.role == "weight" and ports:
            placement = Placement(ports, module.the_mesh(), module.dims)
            found.setdefault(placement.names, []).append((buffer, placement))
    return {names: each[0] for names, each in found.items() if len(each) == 1}


def _states(prefill: Module, decode: Module) -> dict[Value, Value]:
    """What decode keeps from run to run, in the buffers that prefill keeps it in."""
    kept = {b.value.name: b.value for b in prefill.buffers if b.role == "state"}
    return {b.value: kept[b.value.name] for b in decode.buffers if b.role == "state"}


def _within(operand: Operand, instead: Mapping[Value, Value]) -> Operand:
    """A view in the buffer that stands for its own, which has dims of extent 1 besides."""
    if not isinstance(operand, View) or operand.buffer not in instead:
        return operand
    buffer = instead[operand.buffer]
    old, new = operand.buffer_type.shape, View(buffer).buffer_type.shape
    if old == new:
        return replace(operand, buffer=buffer)
    indices: list[Index] = []
    given = iter(operand.indices)
    left = list(old)
    for extent in new:
        if left and extent == left[0]:
            left.pop(0)
            indices.append(next(given, Whole()))
        else:
            indices.append(Point(Expr.const(0)))
    while isinstance(indices[-1], Whole):
        indices.pop()
    return replace(operand, buffer=buffer, indices=tuple(indices))


# --- names and headers


def _rename_clashes(first: Module, second: Module) -> None:
    """Let no name mean two things: of dims with two extents, and of that which counts tokens, the
    step's is another one, the position of a chunk is ``cached``, and loops and values of the prompt
    take free names."""
    tokens = first.rows.dim if first.rows is not None else None
    two = [n for n, e in second.dims.items() if n == tokens or first.dims.get(n, e) != e]
    dims = {name: f"{name}_{STEP}" for name in two}
    routes = {c.name: c for c in first.channels}
    taken = {*routes, *(c.name for c in second.channels)}
    channels = {}
    for channel in second.channels:
        alike = next((c for c in first.channels if _same_route(c, channel)), None)
        if alike is not None:
            channels[channel.name] = alike.name
        elif channel.name in routes:
            channels[channel.name] = free(channel.name, taken)
            taken.add(channels[channel.name])
    rename(second, Names(dims=dims, channels=channels))
    loops = {op.var for op in second.walk() if isinstance(op, tile.For)}
    scalars = {POSITION: CACHED} if POSITION in first.scalars else {}
    for op in first.walk():
        if isinstance(op, tile.For) and op.var in loops and op.var not in scalars:
            scalars[op.var] = free(op.var, {*loops, *scalars.values()})
    rename(first, Names(scalars=scalars))


def _same_route(one: Channel, other: Channel) -> bool:
    return (one.route, one.multicast, one.turns) == (other.route, other.multicast, other.turns)


def _channels(first: Module, second: Module) -> list[Channel]:
    """The channels of both, without colors and queues."""
    found = {c.name: c for c in (*first.channels, *second.channels)}
    return [Channel(c.name, c.route, c.multicast, c.turns) for c in found.values()]


def _use_longer_ways(module: Module, programs: Sequence[Module]) -> None:
    """Let messages go on a channel whose route has all theirs, and more: those of a chain on the
    ring of a line in natural order. A channel less is a queue of a core less."""
    ways = {c.name: _ends(c, module.the_mesh()) for c in module.channels if _is_plain(c)}
    axes = {c.name: c.route.inputs for c in module.channels}
    instead: dict[str, str] = {}
    for name, ends in ways.items():
        longer = [n for n, more in ways.items() if axes[n] == axes[name] and len(more) > len(ends)]
        found = [n for n in longer if np.isin(ends, ways[n]).all()]
        if found:  # the longest way is in no other one
            instead[name] = max(found, key=lambda n: len(ways[n]))
    for program in programs:
        rename(program, Names(channels=instead))
    module.channels = [c for c in module.channels if c.name not in instead]


def _is_plain(channel: Channel) -> bool:
    """Whether each message has one receiver and no turns."""
    return not channel.multicast and not channel.turns


def _ends(channel: Channel, mesh: Mesh) -> NDArray[np.int64]:
    """A number for sender and receiver of each message within the mesh, along the axes of the
    route."""
    shape = tuple(mesh.size(name) for name in channel.route.inputs)
    senders, receivers = channel.route.pairs(shape)
    inside = ((receivers >= 0) & (receivers < np.array(shape))).all(axis=1)
    places = [np.ravel_multi_index(tuple(cores[inside].T), shape) for cores in (senders, receivers)]
    return np.asarray(places[0] * prod(shape) + places[1])


def _header(first: Module, second: Module) -> Module:
    """The header of both: of options those that are the same, and rows as prompts have them."""
    alike = {n: v for n, v in first.options.items() if second.options.get(n) == v}
    return replace(
        first,
        name=str(first.option("model", first.name)),
        dims=first.dims | second.dims,
        scalars=first.scalars | second.scalars,
        multiples=first.multiples | second.multiples,
        options=alike,
        paired=first.paired | second.paired,
        constants=first.constants | second.constants,
        holds=set(),
    )


def _own_names(module: Module, second: Module, instead: Mapping[Value, Value]) -> None:
    """Give values of the prompt names that are none of the step."""
    theirs = {b.value.name for b in second.buffers if b.value not in instead}
    theirs |= {result.name for op in second.walk() for result in op.results}
    mine = {b.value for b in second.buffers}
    for buffer in module.buffers:
        value = buffer.value
        if value not in mine and buffer.role != "state" and value.name in theirs:
            value.name = free(f"{value.name}.prompt", theirs)
        theirs.add(value.name)
    for op in module.walk():
        for result in op.results:
            result.name = free(result.name, theirs)
            theirs.add(result.name)


def _inputs(module: Module) -> list[Port]:
    """What a prompt brings; the rows that it leaves behind the last layer are of no use."""
    return [port for port in module.ports if port.direction == "in"]


def _prompt(port: Port) -> Port:
    return replace(port, name=f"{port.name}.prompt")


# --- the transition


def _taken(module: Module, blocks: Iterable[Block]) -> set[str]:
    """All names of values, loops and scalars."""
    taken = {b.value.name for b in module.buffers} | {*module.scalars}
    for op in (op for block in blocks for op in block.walk()):
        taken |= {result.name for result in op.results}
        taken |= {op.var} if isinstance(op, tile.For) else set()
    return taken


def _transition(module: Module, weights: Sequence[tuple[Weight, Value]], taken: set[str]) -> Block:
    """The statements that bring weights of the prompt to where a step wants them; names are none
    of ``taken``."""
    mesh = module.the_mesh()
    rings = {}
    for axis in dict.fromkeys(move.axis for w, _ in weights for move in w.moves or ()):
        wanted = Channel(f"ring_{axis}", ring_route(mesh, axis))
        known = next((c for c in module.channels if _same_route(c, wanted)), None)
        if known is None:
            wanted.name = free(wanted.name, {c.name for c in module.channels})
            module.channels.append(known := wanted)
        rings[axis] = known.name
    rooms: dict[DType, Value] = {}
    sizes: dict[DType, int] = {}
    for _, buffer in weights:
        kind = View(buffer).buffer_type
        sizes[kind.dtype] = max(sizes.get(kind.dtype, 0), _piece(module, buffer)[1])
    for dtype, size in sizes.items():
        name = free("moving", taken)
        taken.add(name)
        rooms[dtype] = Value(name, BufferType(dtype, (2, size)))
        module.buffers.append(Buffer(rooms[dtype]))
    mover = Mover(mesh, rings, taken)
    pieces: dict[int, list[tuple[Value, Value, Sequence[LineMove]]]] = {}
    for weight, buffer in weights:
        room = rooms[View(buffer).buffer_type.dtype]
        layers, _ = _piece(module, buffer)
        pieces.setdefault(layers, []).append((buffer, room, weight.moves or ()))
    for layers, each in pieces.items():
        mover.move(layers, each)
    return mover.block


def _piece(module: Module, buffer: Value) -> tuple[int, int]:
    """The layers of a buffer of weights, 0 where none are counted, and elements of each."""
    ports = [port for port in module.ports if port.buffer is buffer]
    placement = Placement(ports, module.the_mesh(), module.dims)
    return placement.layers, prod(placement.kind.shape) // max(placement.layers, 1)


def _under(phase: int, block: Block) -> tile.Sweep:
    """The block of the phase with this number."""
    return tile.Sweep(regions=[block], when=guard_of(phase))
