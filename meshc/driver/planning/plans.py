"""Whether a model fits a device, how fast it is there and why: the question, and who answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from meshc.backends.request import CompileRequest
from meshc.backends.target_options import CudaOptions, MeshOptions
from meshc.devices import Device
from meshc.driver.capacity import capacity
from meshc.driver.models import LoadedModel
from meshc.driver.phase_costs import host_words
from meshc.driver.planning.best_mesh import best_mesh
from meshc.driver.planning.cures import cures_on_gpus, cures_on_mesh, cures_on_node
from meshc.driver.planning.gpus import GpuPhases, phase_on_gpus
from meshc.driver.planning.held_tiles import tokens_streamed
from meshc.driver.planning.node_phases import NodePhases, phase_on_node
from meshc.driver.planning.plan_answers import PhasePlan, Plan, Transition
from meshc.driver.planning.wafers import MeshPhase, phase_on_mesh
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.support.diagnostics import fail

_PHASES = ("prefill", "decode")
Watch = Callable[[str], None]
"""Told what is being done."""


def _unwatched(_: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class PlanRequest:
    """What to plan: fields of a compile, and ``clock`` to have the time of wafers from the clock of
    the emitted program in the place of the search's costs. ``gpus`` None takes one GPU, or all of a
    node; an empty ``mesh`` is the best one."""

    compile: CompileRequest
    gpus: int | None = None
    clock: bool = False


def plan(loaded: LoadedModel, request: PlanRequest, watch: Watch = _unwatched) -> Plan:
    """The plan of ``loaded``. Memory that is short is no error but part of the answer.

    Raises ``bad-argument`` for what does not go together, ``bad-phase`` for a model without the
    phases that are asked for, and what compiling raises for another reason than memory.
    """
    device = request.compile.the_device()
    kinds = {"mesh": _on_meshes, "cluster": _on_gpus, "node": _on_node}
    phases = phases_of(loaded, request.compile)
    if request.compile.chunk is not None:
        _check_chunk(request.compile.chunk, device, phases)
    asked = request.compile.options_of(CudaOptions)
    if asked.codes_caches and device.kind != "cluster":
        words = f"--kv-dtype is {asked.kv_dtype}, and {device.name} is no GPU"
        fail("bad-argument", words, help="--device h200 is one; leave out --kv-dtype")
    if request.clock and device.kind != "mesh":
        fail("bad-argument", f"--clock is of emitted CSL, and {device.name} is no wafer")
    return kinds[device.kind](loaded, request, device, phases, watch)


def _check_chunk(chunk: int, device: Device, phases: tuple[str, ...]) -> None:
    """Raise ``bad-argument`` where no program reads prompts in chunks that are asked for."""
    if device.kind != "cluster":
        other = "--device h200 --gpus N has kernels that are compiled"
        if device.kind == "mesh":
            other = "--phases says what programs for wafers take that read prompts in chunks"
        words = f"--chunk is {chunk}, and {device.name} is no GPU"
        fail("bad-argument", words, help=other)
    if "prefill" not in phases:
        fail("bad-argument", f"--chunk is {chunk}, but --phase is decode, which reads no prompts")


def phases_of(loaded: LoadedModel, request: CompileRequest) -> tuple[str, ...]:
    """The phases of ``loaded`` that are planned. Raises ``bad-argument`` and ``bad-phase``."""
    if loaded.model is None:
        fail("bad-argument", f"'{loaded.name}' is compiled already; plans are of models")
    phases = _asked(loaded, request.phase)
    wafer = request.the_device().kind == "mesh"
    if wafer and request.keep_quantised and phases != ("decode",):
        fail(
            "bad-argument",
            "--keep-quantised is given, and products of prompts move weights from core to core",
            help="--phase decode: decode steps read prompts then",
        )
    return phases


def _asked(loaded: LoadedModel, phase: str) -> tuple[str, ...]:
    known = loaded.phases()
    if "decode" not in known:
        fail(
            "bad-phase",
            f"'{loaded.name}' has no phases prefill and decode, of which plans are",
            help="--plmr compares algorithms of a product M K N",
        )
    if phase != "both" and phase not in _PHASES:
        words = ", ".join((*_PHASES, "both"))
        fail("bad-argument", f"--phase cannot be '{phase}'", help=f"it is one of {words}")
    if phase != "both" and phase not in known:
        fail("bad-phase", f"'{loaded.name}' has no phase '{phase}'")
    return tuple(one for one in _PHASES if phase == one or (phase == "both" and one in known))


# --- wafers


def _on_meshes(
    loaded: LoadedModel,
    request: PlanRequest,
    device: Device,
    phases: tuple[str, ...],
    watch: Watch,
) -> Plan:
    if request.gpus is not None:
        fail("bad-argument", f"--gpus is given, and {device.name} is no GPU but a mesh of cores")
    asked = request.compile.changed(phase="both")
    _checked(asked, device)
    found: dict[str, tuple[MeshPhase, PhasePlan]] = {}
    for phase in phases:
        own = asked
        if not asked.options_of(MeshOptions).mesh:
            own = asked.changed(mesh=best_mesh(loaded, phase, asked, watch))
        watch(f"{loaded.name}, {phase} on {own.mesh_name} cores of {device.name}")
        one = MeshPhase(loaded, phase, own)
        found[phase] = one, phase_on_mesh(one, request.clock)
    found = _in_alike_regions(found, request.clock)
    plans = {}
    for phase, (one, made) in found.items():
        watch(f"{loaded.name}, what {phase} leaves room for")
        plans[phase] = replace(
            made,
            cures=cures_on_mesh(one, made) if made.refused is not None else (),
            kv_tokens=_held(one, made) if phase == "decode" and made.fits else None,
        )
    first = next(iter(found.values()))[0]
    moved = None
    if len(found) > 1:
        streams = all(made.stream is not None for made in plans.values())
        moved = _between({phase: one for phase, (one, _) in found.items()}, streams)
    return _plan(loaded, request, first.graph, tuple(plans.values()), None, moved)


def _checked(asked: CompileRequest, device: Device) -> None:
    """Raise for a request that no compile for the device takes."""
    if device.csl_arch is not None:
        asked.changed(target="csl").check()
    else:
        asked.changed(compile_to="tile").check()


def _in_alike_regions(
    found: dict[str, tuple[MeshPhase, PhasePlan]], clock: bool
) -> dict[str, tuple[MeshPhase, PhasePlan]]:
    """On one mesh a core has the same layers in both phases, whose caches it keeps: both phases in
    as many regions as the one that needs more."""
    meshes = {one.request.options_of(MeshOptions).mesh for one, _ in found.values()}
    regions = {made.regions or 1 for _, made in found.values()}
    fits = all(made.fits for _, made in found.values())
    if len(meshes) > 1 or len(regions) == 1 or not fits:
        return found
    most, result = max(regions), {}
    for phase, (one, made) in found.items():
        if made.regions != most:
            axes = one.request.the_device().axes
            columns, rows, _ = axes.sizes_of(one.request.mesh_name)
            mesh = f"{axes.outer}={most},{axes.down}={rows},{axes.across}={columns}"
            one = MeshPhase(one.loaded, phase, one.request.changed(mesh=mesh))
            made = phase_on_mesh(one, clock)
        result[phase] = one, made
    return result


def _held(phase: MeshPhase, made: PhasePlan) -> int | None:
    """The most tokens that caches hold, of the cores or of the memory that these share."""
    if made.stream is None:
        return _cached(phase)
    return tokens_streamed(made.stream, phase.chosen)


def _cached(phase: MeshPhase) -> int | None:
    """The most tokens that caches hold in the place of those that are asked for; None without
    caches and without a limit of memory."""
    appends = (op.policy for op in phase.chosen.walk() if isinstance(op, ops.Append))
    policy = next(appends, None)
    if policy is None or phase.chosen.the_device().room_bytes is None:
        return None
    fit = phase.program.fit
    known = () if fit is None else (fit,)
    return capacity(phase.loaded, phase.asked.changed(kv=policy), known=known).tokens


def _between(phases: dict[str, MeshPhase], streams: bool) -> Transition | None:
    """What passes between two programs on a wafer: caches to the host and back, and weights;
    nothing where weights lie in memory that cores share. None where there is no decode step."""
    prefill, decode = phases["prefill"], phases["decode"]
    if decode.program.fit is None:
        return None
    if streams:
        why = (
            "prompts leave caches where steps read them, and weights in the memory that cores share"
        )
        return Transition(0, "cycles", why)
    words = host_words(decode.program.fit.module)
    why = (
        "the host copies caches to itself and back and the weights of decode, a word a cycle at "
        "best on one channel"
    )
    if prefill.request.mesh_name == decode.request.mesh_name:
        why += "; --phases says what one program for both phases would take"
    return Transition(words, "cycles", why)


# --- GPUs


def _on_gpus(
    loaded: LoadedModel,
    request: PlanRequest,
    device: Device,
    phases: tuple[str, ...],
    watch: Watch,
) -> Plan:
    _without_mesh(request, device)
    gpus = 1 if request.gpus is None else request.gpus
    asked = request.compile.changed(target="cuda", phase="both", gpus=gpus)
    asked.check()
    nodes = asked.options_of(CudaOptions).nodes
    watch(f"{loaded.name} on {gpus} {device.name}" + (f" of {nodes} nodes" if nodes > 1 else ""))
    one = GpuPhases(loaded, asked)
    cures = cache(lambda: cures_on_gpus(one))
    made = tuple(_with_cures(phase_on_gpus(one, phase), cures) for phase in phases)
    found = _plan(loaded, request, one.graph, made, gpus, _nothing_between(phases))
    return replace(found, nodes=nodes)


def _on_node(
    loaded: LoadedModel,
    request: PlanRequest,
    device: Device,
    phases: tuple[str, ...],
    watch: Watch,
) -> Plan:
    _without_mesh(request, device)
    if request.compile.keep_quantised:
        fail(
            "bad-argument",
            f"--keep-quantised is given, and kernels of {device.name} read weights of 16 bits",
            help="meshc schedule --weights FORMAT has servers of quantised weights",
        )
    asked = request.compile.changed(phase="both", compile_to="graph")
    asked.check()
    gpus = device.cores if request.gpus is None else request.gpus
    if not 1 <= gpus <= device.cores:
        fail("bad-argument", f"--gpus is {gpus}, not 1 to {device.cores} of '{device.name}'")
    watch(f"{loaded.name} on {gpus} GPUs of {device.name}")
    one = NodePhases(loaded, asked.changed(gpus=gpus))
    made = tuple(
        _with_cures(phase_on_node(one, phase), lambda: cures_on_node(one)) for phase in phases
    )
    return _plan(loaded, request, one.graph, made, gpus, _nothing_between(phases))


def _without_mesh(request: PlanRequest, device: Device) -> None:
    if mesh := request.compile.options_of(MeshOptions).mesh:
        what = "a GPU" if device.kind == "cluster" else "a node of GPUs"
        fail(
            "bad-argument",
            f"--mesh is {mesh}, and {device.name} is {what}",
            help="--gpus says to how many GPUs a model is dealt",
        )


def _with_cures(made: PhasePlan, cures: Callable[[], tuple[str, ...]]) -> PhasePlan:
    return made if made.refused is None else replace(made, cures=cures())


def _nothing_between(phases: tuple[str, ...]) -> Transition | None:
    why = "both phases read the same weights and caches in the memory of the GPUs"
    return Transition(0, "seconds", why) if len(phases) > 1 else None


def _plan(
    loaded: LoadedModel,
    request: PlanRequest,
    graph: Module,
    phases: tuple[PhasePlan, ...],
    gpus: int | None,
    between: Transition | None,
) -> Plan:
    asked = request.compile
    return Plan(
        loaded.name,
        asked.device_name,
        graph.dtype().value,
        graph.capacity,
        asked.requests,
        asked.layers,
        gpus,
        phases,
        between,
    )
