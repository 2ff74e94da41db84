"""Models of which cores hold a few tiles at a time, and the memory that they share the rest."""

from __future__ import annotations

from math import prod

from meshc.devices import Device
from meshc.driver.core_fit import Fit
from meshc.driver.planning.plan_answers import Room, Stream
from meshc.ir.core import tensor_type
from meshc.ir.module import Module

_TILES = 2
"""Tiles of each kind that a core has room for: one that it works on, one on its way."""
_ROLES = {"weight": "weights", "state": "caches"}


def stream_of(device: Device, fit: Fit, chosen: Module) -> tuple[Stream, Room] | None:
    """Where the weights of the mesh-level module ``chosen`` lie in the memory that cores share and,
    if cores have no room for them, its caches too; and what a core then holds, which of a program
    for ample cores is ``fit``. None where that has no room either.

    Raises ``device-number`` for a device that says no ``tile_bytes``.
    """
    held = _held(chosen)
    tiles = _TILES * device.whole("tile_bytes")
    rest = {k: v for k, v in fit.uses.items() if k not in ("weights", "left")}
    for names in (("weights",), ("weights", "caches")):
        uses = {name: taken for name, taken in rest.items() if name not in names}
        uses = {f"tiles of {' and of '.join(names)}": tiles * len(names), **uses}
        stream = Stream(device.global_memory_bytes, {name: held[name] for name in names})
        kept = {n: b for n, b in fit.buffers.items() if _kind_of(fit, n) not in names}
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
