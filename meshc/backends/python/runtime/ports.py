"""Ports: how a logical tensor lies in the memory of the cores, lane by lane.

The element that each lane holds is an expression of coordinates and lanes. Those of one tensor
dim seldom depend on all of them, so packing works with one short index vector per core and group
of dims instead of one index per element.
"""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from .cores import Fabric, progression
from .memory import Array, Buffer
from .percore import Grid, PerCore, grid_of

Selector = slice | Array

_INDEXED = 2**22  # buffers of more lanes are packed anew each time rather than through an index


class PortError(Exception):
    """A tensor that does not fit its port, or an output that no core provides."""


@dataclass(frozen=True)
class Element:
    """Logical index of what a lane holds, on the lanes where all of ``where`` hold."""

    index: tuple[PerCore | int, ...]
    where: tuple[PerCore | bool, ...] = ()


def element(*index: PerCore | int, where: tuple[PerCore | bool, ...] = ()) -> Element:
    """The element that a lane holds, where all of ``where`` hold."""
    return Element(index, where)


@dataclass(frozen=True)
class Port:
    """``lanes(*lane)`` tells which element of ``tensor`` (extents ``dims``) each lane holds.

    Lanes whose element lies outside the tensor are padding and hold ``pad``; those on which a
    ``where`` fails are not this port's, and hold 0 if they are no port's. The same describes
    outputs; there, of equal elements the first core's counts.
    """

    tensor: str
    dims: Mapping[str, int]
    buffer: Buffer
    lanes: Callable[..., Element]
    pad: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the tensor."""
        return tuple(self.dims.values())

    def padding(self) -> Port:
        """A port that fills all lanes of this one with a scalar."""
        return replace(self, dims={}, lanes=lambda *lane: Element((), self.lanes(*lane).where))


class _Group:
    """Lane axes and tensor dims that depend on each other, and on no others.

    ``source`` is the flat index in the tensor dims, ``held`` whether a lane holds an element;
    grids ``[regions, rows, columns, lanes]`` with axes of extent 1 where nothing changes.
    """

    def __init__(
        self, lanes: tuple[int, ...], dims: tuple[int, ...], source: Grid, held: Grid
    ) -> None:
        self.lanes, self.dims, self.source, self.held = lanes, dims, source, held
        self._known: dict[tuple[int, ...], tuple[Selector, Selector]] = {}

    def selectors(self, core: tuple[int, ...]) -> tuple[Selector, Selector]:
        """On one core: which of the group's lanes hold something, and which elements that is."""
        at = tuple([c if n > 1 else 0 for c, n in zip(core, self.source.shape, strict=False)])
        found = self._known.get(at)
        if found is None:
            held = np.flatnonzero(self.held[at])
            found = self._known[at] = (_shortest(held), _shortest(self.source[at][held]))
        return found


class Packing:
    """The evaluated map of one port."""

    def __init__(self, fabric: Fabric, port: Port) -> None:
        self.fabric, self.port = fabric, port
        lanes, shape = port.buffer.shape, port.shape
        axes = [PerCore(_lane(axis, len(lanes), n)) for axis, n in enumerate(lanes)]
        holds = port.lanes(*axes)
        element = [_whole(grid_of(e), len(lanes)) for e in holds.index]
        if len(element) != len(shape):
            raise PortError(f"port '{port.tensor}' has {len(element)} indices for {len(shape)}")
        held = [_whole(grid_of(c), len(lanes)) for c in holds.where]
        held += [(e >= 0) & (e < n) for e, n in zip(element, shape, strict=True)]
        self.groups = list(_groups(element, held, lanes, shape))
        everywhere = [h for h in held if prod(h.shape[3:]) == 1]
        self.cores = np.ones(fabric.mesh.grid, bool)
        for mask in everywhere:
            self.cores = self.cores & mask.reshape(mask.shape[:3])

    @property
    def name(self) -> bytes:
        """Equal for ports that put the same elements in the same places."""
        digest = hashlib.sha256()
        facts = (self.port.tensor, self.port.shape, self.port.buffer.shape, self.port.pad)
        digest.update(repr((facts, self.port.buffer.memory.dtype)).encode())
        for array in (self.cores, *(a for g in self.groups for a in (g.source, g.held))):
            digest.update(repr(array.shape).encode() + array.tobytes())
        return digest.digest()

    def pack(self, tensor: Array, memory: Array) -> None:
        """Write the elements of ``tensor`` to ``memory`` ``[cores, *lanes]``; padding stays."""
        shape = self.port.shape
        if tensor.shape != shape:
            raise PortError(f"'{self.port.tensor}' has shape {tensor.shape}, not {shape}")
        source = tensor.transpose([d for g in self.groups for d in g.dims])
        source = source.reshape([prod([shape[d] for d in g.dims]) for g in self.groups])
        order = [a for g in self.groups for a in g.lanes]
        flat = [prod([self.port.buffer.shape[a] for a in g.lanes]) for g in self.groups]
        for core in product(*map(range, self.fabric.mesh.grid)):
            if self.cores[core]:
                lane = self.fabric.lane_of_core[np.ravel_multi_index(core, self.fabric.mesh.grid)]
                pairs = [g.selectors(core) for g in self.groups]
                _assign(memory[lane].transpose(order), flat, pairs, source)

    def index(self) -> Array:
        """For each core and lane the flat index of its element, or -1 for padding."""
        shape = self.port.shape
        index = np.full((self.fabric.mesh.count, *self.port.buffer.shape), -1)
        self.pack(np.arange(prod(shape)).reshape(shape), index)
        return index


class Inlet:
    """The in-ports of one buffer that is loaded before every run."""

    def __init__(self, fabric: Fabric, ports: Sequence[Port]) -> None:
        self.ports = ports
        self._fabric = fabric
        self._packings = [Packing(fabric, port) for port in ports]
        self._index: Array | None = None

    def load(self, tensors: Mapping[str, Array]) -> list[tuple[str, int]]:
        """Fill the buffer; where a tensor is shorter than its port says is padding.

        Returns the dims of the tensors with their extents.
        """
        buffer = self.ports[0].buffer
        memory = buffer.memory.array
        whole = {port.tensor: _padded(port, tensors, memory.dtype) for port in self.ports}
        alone = len(self.ports) == 1 and not self.ports[0].pad
        if alone and memory.size <= _INDEXED:
            self._place(whole[self.ports[0].tensor], memory)
        else:
            memory.fill(0)
            _fill(self._fabric, self._packings, whole, memory)
        if buffer.rounds is not None:
            buffer.rounds(memory)
        return [
            pair
            for port in self.ports
            for pair in zip(port.dims, np.shape(tensors[port.tensor]), strict=True)
        ]

    def _place(self, tensor: Array, memory: Array) -> None:
        """As ``pack``, through an index of every lane, where -1 takes the 0 at the end."""
        if self._index is None:
            self._index = self._packings[0].index()
        np.take(np.append(tensor, memory.dtype.type(0)), self._index, out=memory, mode="wrap")


def _padded(port: Port, tensors: Mapping[str, Array], kind: np.dtype[Any]) -> Array:
    """The tensor of ``port`` with all of its extents."""
    if port.tensor not in tensors:
        raise PortError(f"there is no tensor '{port.tensor}'")
    tensor = np.asarray(tensors[port.tensor])
    whole = np.full(port.shape, port.pad, kind)
    fits = tensor.ndim == whole.ndim
    if not fits or any(n > m for n, m in zip(tensor.shape, port.shape, strict=True)):
        raise PortError(f"'{port.tensor}' has shape {tensor.shape}, not {port.shape}")
    whole[tuple(map(slice, tensor.shape))] = tensor
    return whole


def _fill(
    fabric: Fabric, packings: Sequence[Packing], tensors: Mapping[str, Array], memory: Array
) -> None:
    """Put padding and tensors into the one buffer of ``packings``, which holds zeros."""
    for packing in packings:
        port = packing.port
        if port.tensor not in tensors:
            raise PortError(f"there is no tensor '{port.tensor}'")
        if port.pad:
            Packing(fabric, port.padding()).pack(np.array(port.pad), memory)
    for packing in packings:
        packing.pack(tensors[packing.port.tensor], memory)


class Outlet:
    """An out-port."""

    def __init__(self, fabric: Fabric, port: Port) -> None:
        self.port = port
        index = Packing(fabric, port).index().reshape(-1)[::-1]
        self._holder = np.full(prod(port.shape), -1)
        held = index >= 0
        # backwards, so that the first core that holds an element wins
        self._holder[index[held]] = np.arange(len(index) - 1, -1, -1)[held]
        if (self._holder < 0).any():
            raise PortError(f"no core provides all of the output '{port.tensor}'")

    def gather(self, extents: Mapping[str, int]) -> Array:
        """The tensor, float32, with the given extents of dims; others are whole."""
        found: Array = self.port.buffer.memory.array.reshape(-1)[self._holder]
        used = tuple(slice(min(n, extents.get(d, n))) for d, n in self.port.dims.items())
        return found.reshape(self.port.shape)[used]


def load_weights(
    fabric: Fabric,
    buffer: Buffer,
    ports: Sequence[Port],
    weights: Mapping[str, Array],
    own: Mapping[str, Array],
) -> None:
    """Fill a buffer of constants once; equal packings of equal tensors share their memory. Those
    that the program has of its ``own`` may be others in another phase."""
    packings = [Packing(fabric, port) for port in ports]
    name = b"".join(packing.name for packing in packings)
    name += b"".join(own[port.tensor].tobytes() for port in ports if port.tensor in own)
    tensors: Mapping[str, Array] = ChainMap(own, weights)  # type: ignore[arg-type]
    memory = buffer.memory
    if name in fabric.packed and memory.constant:
        memory.array = fabric.packed[name]
        return
    _fill(fabric, packings, tensors, memory.allocate())
    if buffer.rounds is not None:
        for lane in memory.array:
            buffer.rounds(lane)
    if memory.constant:
        memory.array.flags.writeable = False
        fabric.packed[name] = memory.array


def _lane(axis: int, count: int, extent: int) -> Grid:
    shape = [1] * (3 + count)
    shape[3 + axis] = extent
    return np.arange(extent).reshape(shape)


def _whole(grid: Grid, lanes: int) -> Grid:
    """``grid`` with all of its axes."""
    return grid.reshape(grid.shape + (1,) * (3 + lanes - grid.ndim))


def _varies(grid: Grid) -> set[int]:
    """The lane axes along which ``grid`` changes."""
    return {axis for axis, extent in enumerate(grid.shape[3:]) if extent > 1}


def _groups(
    element: list[Grid], held: list[Grid], lanes: tuple[int, ...], shape: tuple[int, ...]
) -> Iterator[_Group]:
    """Split lane axes and tensor dims into independent groups, in the order of the lanes."""
    parts = [({axis}, set[int]()) for axis in range(len(lanes))]
    parts += [(_varies(grid), {dim}) for dim, grid in enumerate(element)]
    parts += [(_varies(grid), set[int]()) for grid in held]
    joined: list[tuple[set[int], set[int]]] = []
    for axes, dims in parts:
        apart = [group for group in joined if not group[0] & axes]
        for group in joined:
            if group[0] & axes:
                axes, dims = axes | group[0], dims | group[1]
        joined = [*apart, (axes, dims)]
    joined = [group for group in joined if group[0] or group[1]]
    for axes, dims in sorted(joined, key=lambda group: sorted(group[0])):
        yield _group(tuple(sorted(axes)), tuple(sorted(dims)), element, held, lanes, shape)


def _group(
    axes: tuple[int, ...],
    dims: tuple[int, ...],
    element: list[Grid],
    held: list[Grid],
    lanes: tuple[int, ...],
    shape: tuple[int, ...],
) -> _Group:
    """Evaluate one group on its own lane axes."""
    source: Any = np.zeros((1,) * (3 + len(lanes)), np.intp)
    for dim in dims:
        source = source * shape[dim] + element[dim]
    mask: Any = np.ones((1,) * (3 + len(lanes)), bool)
    for grid in held:
        if _varies(grid) and _varies(grid) <= set(axes):
            mask = mask & grid
    own = tuple(n if axis in axes else 1 for axis, n in enumerate(lanes))
    cores = np.broadcast_shapes(source.shape[:3], mask.shape[:3])
    grids = [np.broadcast_to(grid, cores + own) for grid in (source, mask)]
    flat = [grid.reshape((*cores, prod(own))) for grid in grids]
    return _Group(axes, dims, flat[0], flat[1])


def _shortest(values: Array) -> Selector:
    """``values`` as a slice where that is possible."""
    return progression(values) or values


def _assign(
    tile: Array, flat: list[int], pairs: list[tuple[Selector, Selector]], source: Array
) -> None:
    """``tile[lanes] = source[elements]``, each the product of one selector per group."""
    target = tile.reshape(flat)
    aliased = np.may_share_memory(target, tile)
    lanes, elements = zip(*pairs, strict=True) if pairs else ((), ())
    found = _selected(source, elements)
    places = tuple(s for s in lanes if isinstance(s, slice))
    if len(places) == len(lanes):
        target[lanes] = found
    else:
        target[np.ix_(*(_counted(s, n) for s, n in zip(lanes, flat, strict=True)))] = found
    if not aliased:
        tile[...] = target.reshape(tile.shape)


def _selected(source: Array, elements: tuple[Selector, ...]) -> Array:
    """The product of selectors; slices first, which copy nothing."""
    window = source[tuple(s if isinstance(s, slice) else slice(None) for s in elements)]
    for axis, selector in enumerate(elements):
        if not isinstance(selector, slice):
            window = window[(slice(None),) * axis + (selector,)]
    return window


def _counted(selector: Selector, extent: int) -> Array:
    return np.arange(extent)[selector] if isinstance(selector, slice) else selector
