"""split-regions: deal whole layers to equal rectangles of the device when one cannot hold all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from meshc.analysis.layout.tiling import ceil_div
from meshc.ir.core import tensor_type
from meshc.ir.mesh import Mesh
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.ir.types import Layout, Split
from meshc.passes.base import Pass
from meshc.passes.footprint import Footprint, fitting_layers, footprint, whole_footprint
from meshc.passes.mesh.carrying import carry_through
from meshc.passes.mesh.select_collective import SelectCollective
from meshc.passes.mesh.turning import Turning
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.plmr import violates


@dataclass(frozen=True)
class SplitRegions(Pass):
    """Deal layers to regions: the same programs on each, other weights (WaferLLM section 7.5).

    The dim that counts layers is split over the axis that counts regions. The carried activations
    pass from region to region, and so does what is computed before the layers and read after them.
    The number of regions is the smallest whose cores hold their share; ``regions`` forces it;
    ``kept`` are the formats of weights that stay quantised (keep-quantised). A model that needs
    more rectangles than the device has room for is refused with the numbers. Layers that are dealt
    already stay where they are.

    Before::

        mesh y = 2 interleaved, x = 2 interleaved
        weight %up: f32[N, E, F]<E_y:4 F_x:3>

    After::

        mesh r = 2, y = 2 interleaved, x = 2 interleaved
        weight %up: f32[N, E, F]<N_r:2 E_y:4 F_x:3>
    """

    NAME: ClassVar[str] = "split-regions"
    LEVELS: ClassVar[tuple[str, ...]] = ("mesh",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"partitioned", "collectives_selected"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    regions: int = 0
    kept: tuple[str, ...] = ()

    def run(self, module: Module, report: Diagnostics) -> Module:
        mesh = module.the_mesh()
        if mesh.regions > 1:
            if self.regions not in (0, mesh.regions):
                fail(
                    "bad-option",
                    f"layers of '{module.name}' are dealt to {mesh.regions} regions already, not "
                    f"to {self.regions}",
                )
            return module
        places = region_places(module, mesh)
        if places is not None and not places.count:
            width, height = device_size(module)
            fail(
                "mesh-too-large",
                f"the {mesh} mesh does not fit the {width}x{height} cores of the device",
                notes=(violates("P"),),
                help=f"use at most --mesh {width}x{height}",
            )
        device = module.the_device()
        told = "cores" in device.numbers and "kind" in device.facts and device.kind == "mesh"
        if places is not None and told and mesh.columns * mesh.rows > device.cores:
            fail(
                "mesh-too-large",
                f"a {mesh} mesh has more than the {device.cores} cores of the device",
                notes=(violates("P"),),
            )
        count = self.regions or self.needed(module, places, report)
        if count > 1 and not any(isinstance(op, ops.Repeat) for op in module.function.body.ops):
            fail(
                "bad-option",
                f"{count} regions share the layers of a loop, and this program has none",
                help="use one region",
            )
        if places is not None and count > places.count:
            fail(
                "does-not-fit",
                f"{count} regions of {mesh} cores: there is room for {places.count}",
                notes=(violates("P"),),
            )
        if count > 1:
            origins = places.first(count) if places is not None else ()
            module.mesh = mesh.in_regions(module.axes.outer, origins, count)
            carry_through(module)
            split_layers(module)
            self.leave_room(module, report)
            self.explain(module, report)
        return module

    def leave_room(self, module: Module, report: Diagnostics) -> None:
        """Let reductions go to first cores again, and operands turn one way: channels over the
        edges of regions leave no queues for others, and sums of these channels end there."""
        folded = any(op.folded for op in module.walk() if isinstance(op, ops.AllReduce))
        if folded or any(op.both_ways for op in module.walk() if isinstance(op, Turning)):
            SelectCollective(fold=False, both_ways=False).run(module, report)
        if folded:
            report.remark("collective", "reductions in several regions are not folded")

    def needed(self, module: Module, places: Places | None, report: Diagnostics) -> int:
        """Fewest regions whose cores hold their share of the layers."""
        room = module.the_device().room_bytes
        loops = [o for o in module.function.body.ops if isinstance(o, ops.Repeat)]
        if room is None or not loops:
            return 1
        if len(loops) > 1:
            self.check_one_region(module, loops, room)
            return 1
        (loop,) = loops
        layers = module.dims[loop.dim]
        alone = footprint(module, loop.dim, 1, self.kept)
        share = fitting_layers(module, loop.dim, 1, alone, room, self.kept)
        if share >= layers:
            return 1
        need, spots = alone, places.count if places is not None else 1
        if spots > 1:
            need = footprint(module, loop.dim, 2, self.kept)
            share = fitting_layers(module, loop.dim, 2, need, room, self.kept)
        if share * spots < layers:
            self.refuse(module, need, room, layers, (share, spots))
        return ceil_div(layers, share)

    def check_one_region(self, module: Module, loops: list[ops.Repeat], room: int) -> None:
        """Refuse layers of several loops, which are not dealt, where one region cannot hold all."""
        need = whole_footprint(module, self.kept)
        if need.fixed_bytes <= room:
            return
        counts = " + ".join(str(module.dims[loop.dim]) for loop in loops)
        fail(
            "does-not-fit",
            f"{counts} layers need {need.fixed_bytes} bytes on each core of a {module.the_mesh()} "
            f"mesh, which has {room}: {need.fixed_bytes - room} bytes short, and layers of "
            f"{len(loops)} loops are not dealt to regions",
            loops[1].span,
            [*_biggest(need, "in all"), violates("M")],
            help="use a larger mesh or a shorter sequence (--seq)",
        )

    def refuse(
        self, module: Module, need: Footprint, room: int, layers: int, fit: tuple[int, int]
    ) -> None:
        """Say by how much the model does not fit, and what would; ``fit`` is the layers that a
        region holds and the regions there is room for."""
        mesh = module.the_mesh()
        fits = fit[0] * fit[1]
        used = need.fixed_bytes + layers * need.layer_bytes
        device = module.the_device()
        notes = [
            f"{need.layer_bytes} bytes per layer (weights and KV cache) and "
            f"{need.fixed_bytes} bytes that do not depend on the layers, on every core; "
            f"{device.reserved_bytes} bytes are kept for {device.reserved_for}",
            *_biggest(need, "with one layer"),
            violates("M"),
        ]
        if fits:
            regions = "one such region" if fit[1] == 1 else f"{fit[1]} such regions"
            limit = f"the device has room for only {regions}"
            help_text = f"--layers {fits} is the largest number whose buffers fit this mesh"
        else:
            limit = "not even one layer fits"
            help_text = "use a larger mesh or a shorter sequence (--seq)"
        fail(
            "does-not-fit",
            f"{layers} layers need {used} bytes on each core of a {mesh} region, which has {room}: "
            f"{used - room} bytes short, and {limit}",
            notes=notes,
            help=help_text,
        )

    def explain(self, module: Module, report: Diagnostics) -> None:
        """Regions, their places, and what is left of the device."""
        mesh = module.the_mesh()
        width, height = device_size(module)
        text = f"{mesh.regions} regions of {mesh} cores"
        if mesh.origins:
            left = width * height - mesh.cores
            spots = ", ".join(f"({x}, {y})" for x, y in mesh.origins)
            text += f" at columns and rows {spots}; {left} of {width * height} cores are left over"
        report.remark("regions", text)


def _biggest(need: Footprint, when: str) -> list[str]:
    """A note on each of the largest buffers."""
    return [f"buffer '{name}' takes {size} bytes {when}" for name, size in need.largest]


def split_layers(module: Module) -> None:
    """Split the layers over the axis that counts regions: what the loop takes a layer of, and what
    it collects."""
    mesh = module.the_mesh()
    (loop,) = (op for op in module.function.body.ops if isinstance(op, ops.Repeat))
    share = ceil_div(module.dims[loop.dim], mesh.regions)
    split = Split(loop.dim, mesh.outer, share)
    stacked = [*loop.tensors()[loop.carried :], *loop.results[loop.carried :]]
    for value in dict.fromkeys(stacked):
        kind = tensor_type(value)
        layout = kind.layout or Layout()
        value.type = kind.with_layout(replace(layout, splits=(split, *layout.splits)))
    module.function.result_types = [v.type for v in module.function.body.ops[-1].tensors()]


def device_size(module: Module) -> tuple[int, int]:
    """Columns and rows of the device; 0 where it does not limit them."""
    device = module.the_device()
    return (device.cores_x, device.cores_y) if device.enforced else (0, 0)


@dataclass(frozen=True)
class Places:
    """Rectangles of ``columns`` x ``rows`` cores: ``across`` beside each other, ``down`` below."""

    across: int
    down: int
    columns: int
    rows: int

    @property
    def count(self) -> int:
        """How many there are."""
        return self.across * self.down

    def first(self, count: int) -> tuple[tuple[int, int], ...]:
        """Origins (column, row) of so many, in snake order so that neighbours touch."""
        found = []
        for number in range(count):
            row, place = divmod(number, self.across)
            column = place if row % 2 == 0 else self.across - 1 - place
            found.append((column * self.columns, row * self.rows))
        return tuple(found)


def region_places(module: Module, mesh: Mesh) -> Places | None:
    """Where regions of the mesh's size fit the device; None where it does not limit them."""
    width, height = device_size(module)
    if not width or not height:
        return None
    return Places(width // mesh.columns, height // mesh.rows, mesh.columns, mesh.rows)
