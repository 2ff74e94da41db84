"""A phase of a model on a mesh of cores: what the compiler makes of it, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from meshc.backends import csl
from meshc.backends.request import CompileRequest
from meshc.backends.target import NO_ROOM
from meshc.cost.mesh_modules import searched
from meshc.cost.mesh_streams import Streams
from meshc.cost.predictions import Prediction, inputs_of
from meshc.cost.programs import inbound_channels, routing_paths
from meshc.driver.compiling import given_module
from meshc.driver.core_fit import Fit, fit_of
from meshc.driver.models import LoadedModel
from meshc.driver.planning.csl_clock import clocked
from meshc.driver.planning.held_tiles import stream_of
from meshc.driver.planning.plan_answers import PhasePlan, Room, Routes, Stream
from meshc.ir.clone import clone_module
from meshc.ir.core import tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.passes.base import Pass
from meshc.passes.manager import PassManager
from meshc.passes.mesh.split_regions import SplitRegions, region_places
from meshc.pipelines import pipeline_from
from meshc.support.diagnostics import Diagnostic, Diagnostics, MeshcError
from meshc.support.plmr import letter_of

_AMPLE = 1 << 30
"""Bytes of a core that has room for anything."""
_DECODING = "decoding of weights that stay quantised"


@dataclass(frozen=True)
class Program:
    """The program of a phase as a :class:`Fit`, or None where nothing more than ``refused`` is
    known. ``refused`` says why there is no such program: for want of memory, where ``fit`` is what
    it would take, or of something else."""

    fit: Fit | None
    refused: Diagnostic | None


@dataclass(frozen=True)
class MeshPhase:
    """A ``phase`` of a model on the mesh that ``request`` names; passes run once for all that is
    asked of it. What the passes of a ``trial`` leave is not verified: it answers only whether
    there is a program, and what is expected of it."""

    loaded: LoadedModel
    phase: str
    request: CompileRequest
    trial: bool = False

    @property
    def emitted(self) -> bool:
        """Whether the device has CSL, in which programs for it are emitted."""
        return self.request.the_device().csl_arch is not None

    @cached_property
    def asked(self) -> CompileRequest:
        """The request of the program that would be compiled."""
        if self.emitted:
            return self.request.changed(target="csl", phase=self.phase)
        return self.request.changed(compile_to="tile", phase=self.phase)

    @cached_property
    def graph(self) -> Module:
        """The graph that passes begin with."""
        return given_module(self.loaded, self.phase, self.asked, Diagnostics())

    def passes(self, kept: tuple[str, ...]) -> tuple[list[Pass], list[Pass]]:
        """The passes that choose layouts and algorithms, and those from the dealing of layers to
        regions to the tile level, of weights of which some are ``kept`` quantised."""
        settings = self.asked.changed(keep_quantised=kept).settings()
        every = pipeline_from(self.graph, "tile", settings)
        at = [one.NAME for one in every].index(SplitRegions.NAME)
        return every[:at], every[at:]

    @cached_property
    def chosen(self) -> Module:
        """The module whose layouts and algorithms are chosen, before layers are dealt to regions.
        Raises what passes do."""
        choosing, _ = self.passes(self.asked.keep_quantised)
        return self.run(choosing, self.graph)

    @cached_property
    def dealt(self) -> Module:
        """The module whose layers are dealt to regions, which may reduce by other algorithms than
        one that has none. Raises what the pass does."""
        _, (dealing, *_) = self.passes(self.asked.keep_quantised)
        return self.run([dealing], self.chosen)

    def run(self, passes: Sequence[Pass], module: Module, trial: bool = False) -> Module:
        """What ``passes`` make of a copy of ``module``. Raises what they do."""
        verified = not (trial or self.trial)
        return PassManager(passes, verified=verified).run(clone_module(module))

    def with_layers(self, layers: Mapping[str, int]) -> Module:
        """The module whose layouts are chosen, with other extents of the dims of its loops."""
        return replace(self.chosen, dims={**self.chosen.dims, **layers})

    def fit(
        self,
        layers: Mapping[str, int] | None = None,
        kept: tuple[str, ...] = (),
        trial: bool = False,
    ) -> Fit:
        """The program as it is emitted. ``layers`` are other extents of the dims of its loops,
        ``kept`` the weights that stay quantised where others than those that were asked for.
        Raises what passes and the back end do, of ``NO_ROOM`` where it does not fit."""
        _, rest = self.passes(kept or self.asked.keep_quantised)
        tiles = self.run(rest, self.with_layers(layers or {}), trial)
        fit = fit_of(tiles, verified=not (trial or self.trial))
        if self.emitted:
            csl.check(fit.module)
        return fit

    @cached_property
    def program(self) -> Program:
        """The program, or what it would take on cores with ample memory. Raises ``mesh-too-large``
        for a mesh that the device does not have."""
        try:
            return Program(self.fit(), None)
        except MeshcError as error:
            refused = error.diagnostics[0]
            if refused.code == "mesh-too-large":
                raise
        for dealt in (True, False) if refused.code in NO_ROOM else ():
            try:
                return Program(self._ample(dealt), refused)
            except MeshcError:
                continue
        return Program(None, refused)

    def streamed(self) -> tuple[Fit, Stream, Room] | None:
        """The program whose cores hold a few tiles at a time of what lies in the memory that they
        share: on cores with room for it, what streams, and what cores then hold. None where the
        device has no such memory, or cores no room even so."""
        device = self.chosen.the_device()
        if not device.global_memory_bytes:
            return None
        try:
            alone = self._ample(dealt=False)
        except MeshcError:
            return None
        found = stream_of(device, alone, self.chosen)
        return None if found is None else (alone, *found)

    def _ample(self, dealt: bool) -> Fit:
        """The program on cores that have room for its buffers, its layers dealt to as many regions
        as there is room for, or not. Nobody runs it."""
        device = self.chosen.the_device()
        module = replace(self.chosen, device=device.with_numbers(memory_bytes=_AMPLE))
        places = region_places(module, module.the_mesh())
        _, (dealing, *rest) = self.passes(self.asked.keep_quantised)
        assert isinstance(dealing, SplitRegions)
        loops = [op for op in module.function.body.ops if isinstance(op, ops.Repeat)]
        if dealt and places is not None and len(loops) == 1 and not dealing.regions:
            dealing = replace(dealing, regions=min(places.count, module.dims[loops[0].dim]))
        tiles = self.run([dealing, *rest], module, trial=True)
        held = max((b.address or 0) + b.type.bytes for b in tiles.buffers)
        size = max(device.memory_bytes or 0, held + device.reserved_bytes)
        tiles.device = device.with_numbers(memory_bytes=size)
        fit = fit_of(tiles, short=True, verified=False)
        return replace(fit, uses={name: fit.uses[name] for name in fit.uses if name != "left"})


def phase_on_mesh(phase: MeshPhase, clock: bool = False) -> PhasePlan:
    """The plan of a phase; its time is what the search expects, or with ``clock`` what the clock of
    the emitted program says. Energy is the power of the whole device over that time, as published
    comparisons count it, however many of its cores the mesh has.

    Raises what passes raise that lay the model over the mesh.
    """
    program, device = phase.program, phase.request.the_device()
    fit, refused, stream = program.fit, program.refused, None
    room = None
    if fit is not None:
        uses = {name: taken for name, taken in fit.uses.items() if name != "left"}
        room = Room(device.memory_bytes, uses, fit.buffers)
    if refused is not None and refused.code in NO_ROOM and (found := phase.streamed()):
        (fit, stream, room), refused = found, None
    regions = fit.module.the_mesh().regions if fit is not None else 1
    streams = None if stream is None else Streams(phase.chosen, "caches" in stream.uses)
    prediction, silent = _prediction(phase, regions, clock, refused, streams)
    tokens = phase.graph.capacity if phase.phase == "prefill" else phase.request.requests
    joules = None
    if device.watts is not None and prediction is not None:
        joules = device.watts * prediction.seconds / tokens
        power = inputs_of(device, ("watts",))
        prediction = replace(prediction, inputs=(*prediction.inputs, *power))
    return PhasePlan(
        phase.phase,
        tokens,
        phase.asked.grid,
        regions,
        prediction,
        silent,
        room,
        _routes(fit.module) if fit is not None else None,
        refused,
        violates=dict(_violations(phase.chosen, refused, room)),
        joules=joules,
        stream=stream,
    )


def _prediction(
    phase: MeshPhase,
    regions: int,
    clock: bool,
    refused: Diagnostic | None,
    streams: Streams | None,
) -> tuple[Prediction | None, str]:
    """What is predicted, or why nothing is."""
    if clock and refused is not None:
        return None, "the clock is that of an emitted program, and this one does not fit"
    if clock and not phase.emitted:
        return None, f"no CSL is emitted for {phase.request.device_name}, so no clock runs"
    if clock:
        return clocked(phase.loaded, phase.asked), ""
    module = replace(phase.chosen)
    if regions > 1 and refused is None:
        module = phase.dealt
    elif regions > 1 and module.the_mesh().regions == 1:
        module.mesh = module.the_mesh().in_regions(module.axes.outer, (), regions)
    apart = phase.emitted and phase.phase == "decode"
    found = searched(module, phase.request.requests if apart else 1, streams)
    if phase.request.keep_quantised:
        found = replace(found, left_out=(*found.left_out, _DECODING))
    return found, ""


def _routes(module: Module) -> Routes:
    device = module.the_device()
    return Routes(
        routing_paths(module),
        inbound_channels(module),
        device.free("colors"),
        device.free("input_queues"),
    )


def _violations(
    module: Module, refused: Diagnostic | None, room: Room | None
) -> Iterator[tuple[str, str]]:
    """Letters of PLMR that a program of a mesh-level ``module`` violates."""
    if idle := list(dict.fromkeys(_idle(module))):
        yield "P", f"cores without work ({', '.join(idle)})"
    if far := list(dict.fromkeys(_far(module))):
        yield "L", f"ways that grow with the mesh ({', '.join(far)})"
    letter = "" if refused is None else letter_of(refused)
    if letter == "M" and room is not None:
        yield letter, f"{room.needed} bytes on a core that has {room.size}"
    elif refused is not None and letter:
        yield letter, refused.message


def _idle(module: Module) -> Iterator[str]:
    """Dims of weights that together are shorter than the axis they are dealt to."""
    mesh = module.the_mesh()
    for param in module.function.params:
        layout = tensor_type(param.value).layout
        if layout is None or param.role != "weight":
            continue
        for axis in dict.fromkeys(split.axis for split in layout.splits):
            mine = [split for split in layout.splits if split.axis == axis]
            have = prod(module.dims[split.dim] for split in mine)
            parts = mesh.size(axis) // max(split.copies for split in mine)
            if have < parts:
                names = " x ".join(split.dim for split in mine)
                yield f"{names} = {have} on the {parts} parts of {axis}"


def _far(module: Module) -> Iterator[str]:
    """Collectives and products whose ways, or stages of ways, grow with the cores of an axis."""
    mesh = module.the_mesh()
    for op in module.walk():
        if isinstance(op, (ops.AllReduce, ops.Reduce)) and mesh.size(op.axis) > 3:
            if op.algo == "ring" or len(op.groups) == 1:
                name = "ring" if op.algo == "ring" else "pipeline"
                yield f"{name} over the {mesh.size(op.axis)} cores of {op.axis}"
        elif isinstance(op, (ops.Gemm, ops.GemmT)) and op.algo in ("cannon", "summa"):
            yield f"{op.algo} over the {mesh.size(op.axis)} cores of {op.axis}"
