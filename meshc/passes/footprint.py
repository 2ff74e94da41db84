"""What one core must hold: measured by expanding the program, not estimated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

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
    one, three = (_expanded(module, layer_dim, n, regions, kept) for n in (1, 3))
    used = [assign_addresses(one), assign_addresses(three)]
    per_layer = -(-(used[1] - used[0]) // 2)
    return Footprint(used[0] - per_layer, per_layer, _largest(one))


def whole_footprint(module: Module, kept: tuple[str, ...] = ()) -> Footprint:
    """What one core holds of all layers of a mesh-level module; none of it is counted by layer."""
    trial = _program(_copy(module), kept)
    used = assign_addresses(trial)
    return Footprint(used, 0, _largest(trial))


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
    while share:
        trial = _expanded(module, layer_dim, share, regions, kept)
        if assign_addresses(trial) <= room_bytes:
            break
        share -= 1
    return share


def _largest(module: Module) -> tuple[tuple[str, int], ...]:
    """Names and bytes of the buffers that take most."""
    return tuple((b.value.name, align(b.type.bytes)) for b in largest_buffers(module))


def _copy(module: Module) -> Module:
    return clone_module(_read(print_module(module)))


@lru_cache(1)
def _read(text: str) -> Module:
    """The module that ``text`` spells: the same one for several numbers of layers."""
    return parse_module(Source("<footprint>", text))


def _program(module: Module, kept: tuple[str, ...]) -> Module:
    """The tile program of ``module``."""
    return KeepQuantised(kept).run(ExpandPrograms().run(module, Diagnostics()), Diagnostics())


def _expanded(
    module: Module, layer_dim: str, layers: int, regions: int, kept: tuple[str, ...]
) -> Module:
    """The tile program of a copy with ``layers`` layers in each of ``regions`` regions."""
    trial = _copy(module)
    trial.dims[layer_dim] = layers * regions
    if regions > 1:
        trial.mesh = trial.the_mesh().in_regions(module.axes.outer, (), regions)
    return _program(trial, kept)
