"""Models of which cores hold a few tiles at a time, and the memory that they share the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from meshc.analysis.layout.liveness import assign_addresses
from meshc.devices import Device
from meshc.driver.core_fit import Fit
from meshc.driver.planning.plan_answers import Room, Stream
from meshc.ir.core import tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import tile
from meshc.ir.values import Value

_TILES = 2
"""Tiles of each kind that a core has room for: one that it works on, one on its way."""
_ROLES = {"weight": "weights", "state": "caches"}


def stream_of(device: Device, fit: Fit, chosen: Module) -> tuple[Stream, Room] | None:
    """Where the weights of the mesh-level module ``chosen`` lie in the memory that cores share and,
    if cores have no room for them, its caches too; and what a core then holds, which of a program
    for ample cores is ``fit``. None where that has no room either.

    Of a product whose weights go from core to core, those of some summed lanes go round behind
    those of others, so that a core has tiles of them, and sums over all.

    Raises ``device-number`` for a device that says no ``tile_bytes``.
    """
    held = _held(chosen)
    tiles = _TILES * device.whole("tile_bytes")
    moving = set(_moving(fit.module))
    rest = {k: v for k, v in fit.uses.items() if k not in ("weights", "left")}
    rest["other buffers"] = _others(fit.module, moving)
    if moving:
        rest = {"tiles of weights on their way to other cores": tiles, **rest}
    for names in (("weights",), ("weights", "caches")):
        uses = {name: taken for name, taken in rest.items() if name not in names}
        uses = {f"tiles of {' and of '.join(names)}": tiles * len(names), **uses}
        stream = Stream(device.global_memory_bytes, {name: held[name] for name in names})
        gone = {value.name for value in moving}
        kept = {
            name: size
            for name, size in fit.buffers.items()
            if name not in gone and _kind_of(fit, name) not in names
        }
        room = Room(device.memory_bytes, uses, kept)
        if (room.left or 0) >= 0 and sum(stream.uses.values()) <= stream.size:
            return stream, room
    return None


def tokens_streamed(stream: Stream, chosen: Module) -> int | None:
    """The most tokens that caches hold in the memory that cores share beside the weights; None
    where there are no caches."""
    caches = _held(chosen)["caches"]
    left = stream.size - stream.uses["weights"]
    return left * chosen.capacity // caches if caches else None


def _moving(module: Module) -> Iterator[Value]:
    """The buffers of a tile-level ``module`` that weights are copied to, from where they move."""
    weights = {b.value for b in module.buffers if b.role == "weight"}
    for op in module.walk():
        if isinstance(op, tile.Compute) and op.kernel == "copy":
            target, source = (view.buffer for view in op.views())
            if source in weights:
                yield target


def _others(module: Module, gone: set[Value]) -> int:
    """Bytes of what is neither weights nor caches nor ``gone``."""
    buffers = [replace(b) for b in module.buffers if b.role not in _ROLES and b.value not in gone]
    return assign_addresses(replace(module, buffers=buffers))


def _held(chosen: Module) -> dict[str, int]:
    """Bytes of all weights and of all caches."""
    found = dict.fromkeys(_ROLES.values(), 0)
    for param in chosen.function.params:
        if param.role in _ROLES:
            kind = tensor_type(param.value)
            found[_ROLES[param.role]] += kind.dtype.bytes * prod(kind.shape(chosen.dims))
    return found


def _kind_of(fit: Fit, name: str) -> str:
    """What the buffer ``name`` of a program is counted as."""
    role = next((b.role for b in fit.module.buffers if b.value.name == name), "")
    return _ROLES.get(role, "")
