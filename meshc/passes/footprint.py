"""What one core must hold: measured by expanding the program, not estimated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from meshc.analysis.layout.liveness import align, assign_addresses, largest_buffers
from meshc.ir.clone import clone_module
from meshc.ir.module import Module
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.passes.tile.expand_programs import ExpandPrograms
from meshc.passes.tile.keep_quantised import KeepQuantised
from meshc.support.diagnostics import Diagnostics
from meshc.support.spans import Source


@dataclass(frozen=True)
class Footprint:
    """Bytes per core: what does not depend on the layers, and what each layer adds.

    ``largest`` names the buffers that take most when there is one layer.
    """

    fixed_bytes: int
    layer_bytes: int
    largest: tuple[tuple[str, int], ...]

    def layers_within(self, room_bytes: int) -> int:
        """How many layers fit into ``room_bytes``."""
        return max(0, (room_bytes - self.fixed_bytes) // max(1, self.layer_bytes))


def footprint(
    module: Module, layer_dim: str, regions: int, kept: tuple[str, ...] = ()
) -> Footprint:
    """Expand a copy of a mesh-level module for one and for three layers per region and compare;
    with several ``regions`` a core also holds what passes between them. ``kept`` are the formats of
    weights that will stay quantised."""
    one, three = (_held(module, layer_dim, n, regions, kept) for n in (1, 3))
    per_layer = -(-(three.bytes - one.bytes) // 2)
    return Footprint(one.bytes - per_layer, per_layer, one.largest)


def whole_footprint(module: Module, kept: tuple[str, ...] = ()) -> Footprint:
    """What one core holds of all layers of a mesh-level module; none of it is counted by layer."""
    found = _measured(clone_module(_read(print_module(module))), kept)
    return Footprint(found.bytes, 0, found.largest)


def fitting_layers(
    module: Module,
    layer_dim: str,
    regions: int,
    need: Footprint,
    room_bytes: int,
    kept: tuple[str, ...] = (),
) -> int:
    """Layers that a region really holds, at most those there are: the estimate from ``need``,
    less what the alignment of buffers takes."""
    share = min(need.layers_within(room_bytes), module.dims[layer_dim])
    while share and _held(module, layer_dim, share, regions, kept).bytes > room_bytes:
        share -= 1
    return share


class _Held(NamedTuple):
    """``bytes`` of a core, and the ``largest`` buffers among them."""

    bytes: int
    largest: tuple[tuple[str, int], ...]


def _held(
    module: Module, layer_dim: str, layers: int, regions: int, kept: tuple[str, ...]
) -> _Held:
    """What a core holds with ``layers`` layers in each of ``regions`` regions, however many
    ``module`` has."""
    text = print_module(replace(module, dims={**module.dims, layer_dim: 1}))
    return _held_of(text, layer_dim, layers, regions, kept)


@lru_cache(64)
def _held_of(text: str, layer_dim: str, layers: int, regions: int, kept: tuple[str, ...]) -> _Held:
    trial = clone_module(_read(text))
    trial.dims[layer_dim] = layers * regions
    if regions > 1:
        trial.mesh = trial.the_mesh().in_regions(trial.axes.outer, (), regions)
    return _measured(trial, kept)


@lru_cache(1)
def _read(text: str) -> Module:
    """The module that ``text`` spells: the same one for several numbers of layers."""
    return parse_module(Source("<footprint>", text))


def _measured(module: Module, kept: tuple[str, ...]) -> _Held:
    """What a core holds of the tile program of ``module``, which is used up."""
    trial = KeepQuantised(kept).run(ExpandPrograms().run(module, Diagnostics()), Diagnostics())
    used = assign_addresses(trial)
    return _Held(used, tuple((b.value.name, align(b.type.bytes)) for b in largest_buffers(trial)))
