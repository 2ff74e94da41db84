"""What would fit where a model does not: flags that were tried, each by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from meshc.backends.cuda.kernels.collective.kernel import MOST_GPUS
from meshc.backends.request import CompileRequest
from meshc.driver.planning.gpus import GpuPhases
from meshc.driver.planning.node_phases import NodePhases
from meshc.driver.planning.parts import bytes_held
from meshc.driver.planning.plan_answers import PhasePlan
from meshc.driver.planning.wafers import MeshPhase
from meshc.ir.core import tensor_type
from meshc.ir.ops import mesh as ops
from meshc.ir.printer import print_module
from meshc.support.diagnostics import MeshcError

_FORMATS = ("q8_0", "q4_0")
_HALVINGS = (1, 3, 5)
"""How often the tokens are halved, in turn."""
_GPUS = (2, 4, 8, 16)
_OF_PROMPTS = 100
"""What reads prompts takes some megabytes beside a step, surely less than this part of a GPU's
memory."""


def cures_on_mesh(phase: MeshPhase, made: PhasePlan) -> tuple[str, ...]:
    """Flags with which a phase fits its device: another mesh, weights that stay quantised, fewer
    tokens or layers."""
    return tuple(_of_mesh(phase, made))


def _of_mesh(phase: MeshPhase, made: PhasePlan) -> Iterator[str]:
    if held_at_most(phase):
        for columns, rows in _larger_meshes(phase):
            mesh = f"{columns}x{rows}"
            if _may_hold(phase, columns, rows) and _fits(phase, mesh=mesh):
                yield f"--mesh {mesh}"
                break
    asked = phase.request
    if phase.phase == "decode" and phase.emitted and not asked.keep_quantised:
        for name in _FORMATS:
            if _fitted(phase, kept=(f"all={name}",)):
                yield f"--keep-quantised {name}"
                break
    device = phase.request.the_device()
    room, streams = device.data_bytes, device.global_memory_bytes
    held = made.room is not None and room is not None and made.room.uses["weights"] < room
    if held or streams:
        for seq in (phase.graph.capacity >> n for n in _HALVINGS):
            if seq and _fits(phase, seq=seq):
                yield f"--seq {seq}"
                break
    layers = _layers_that_fit(phase, made)
    if layers:
        yield f"--layers {layers}"


def held_at_most(phase: MeshPhase) -> bool:
    """Whether all cores of the device together have the bytes of the weights, without which no mesh
    holds them."""
    device = phase.chosen.the_device()
    return device.data_bytes is None or weight_bytes(phase) <= device.cores * device.data_bytes


def weight_bytes(phase: MeshPhase) -> int:
    """Bytes of the weights that cores hold, each once."""
    module = phase.chosen
    kinds = [tensor_type(p.value) for p in module.function.params if p.role == "weight"]
    return sum(kind.dtype.bytes * prod(kind.shape(module.dims)) for kind in kinds)


def _may_hold(phase: MeshPhase, columns: int, rows: int) -> bool:
    """Whether the cores of a mesh, in as many regions as the layers may be dealt to, have the bytes
    of the weights: those of several loops are dealt to no regions."""
    device = phase.chosen.the_device()
    loops = [op for op in phase.chosen.function.body.ops if isinstance(op, ops.Repeat)]
    places = (device.cores_x // columns) * (device.cores_y // rows) if len(loops) == 1 else 1
    room = device.data_bytes
    return room is None or weight_bytes(phase) <= columns * rows * places * room


def _larger_meshes(phase: MeshPhase) -> Iterator[tuple[int, int]]:
    """All of the device, and its halves along both axes, which regions share."""
    device = phase.chosen.the_device()
    mine = phase.chosen.the_mesh()
    for parts in (1, 2):
        columns, rows = device.cores_x // parts, device.cores_y // parts
        if columns and rows and (columns, rows) != (mine.columns, mine.rows):
            yield columns, rows


def _fits(phase: MeshPhase, **changes: Any) -> bool:
    """Whether the program of the request with other fields fits."""
    return _fitted(_changed(phase, **changes))


def _changed(phase: MeshPhase, **changes: Any) -> MeshPhase:
    """The phase of the request with other fields, of which no more is asked than whether it
    fits."""
    return MeshPhase(phase.loaded, phase.phase, phase.request.changed(**changes), trial=True)


def _fitted(phase: MeshPhase, **changes: Any) -> bool:
    try:
        phase.fit(**changes, trial=True)
    except MeshcError:
        return not changes and _streamed(phase)
    return True


def _streamed(phase: MeshPhase) -> bool:
    """Whether a program fits whose cores hold tiles of what lies in the memory that they share."""
    try:
        return phase.streamed() is not None
    except MeshcError:
        return False


def _layers_that_fit(phase: MeshPhase, made: PhasePlan) -> int:
    """The most of the first layers that fit; 0 for none, and for layers of several loops."""
    loops = [op for op in phase.chosen.function.body.ops if isinstance(op, ops.Repeat)]
    if len(loops) != 1:
        return 0
    dim = loops[0].dim
    low, high = 0, phase.chosen.dims[dim]
    expected = _layers_expected(made, high)
    likely = [expected, expected + 1]
    while high - low > 1:
        middle = next((n for n in likely if low < n < high), (low + high) // 2)
        if _fitted(phase, layers={dim: middle}):
            low = middle
        else:
            high = middle
    return low if low and _alone(phase, dim, low) else 0


def _alone(phase: MeshPhase, dim: str, layers: int) -> bool:
    """Whether a model of so many layers fits, the first of ``phase`` of which do: it may have
    layouts of its own."""
    other = _changed(phase, layers=layers)
    try:
        same = print_module(other.chosen) == print_module(phase.with_layers({dim: layers}))
    except MeshcError:
        return False
    return same or _fitted(other)


def _layers_expected(made: PhasePlan, layers: int) -> int:
    """How many layers fit where each takes as much of the weights and caches as any other."""
    room, regions = made.room, made.regions or 1
    if room is None or room.left is None:
        return 0
    share = -(-layers // regions)
    of_layer = max(1, (room.uses["weights"] + room.uses["caches"]) // share)
    return max(0, share + room.left // of_layer) * regions


def cures_on_gpus(phases: GpuPhases) -> tuple[str, ...]:
    """Flags with which a model fits GPUs of its kind: more of them, or fewer tokens."""
    return tuple(_of_gpus(phases))


def _of_gpus(phases: GpuPhases) -> Iterator[str]:
    mine = phases.request
    for count in _GPUS if phases.options.nodes > 1 else ():
        if phases.options.nodes < count and _on_nodes(mine.changed(nodes=count), phases):
            yield f"--nodes {count}"
            break
    for count in _GPUS if phases.options.nodes == 1 else ():
        if phases.options.gpus < count <= MOST_GPUS:
            request = mine.changed(gpus=count)
            if _undealt(request, phases):
                yield f"--gpus {count}"
                break
    if phases.capacity:
        yield f"--seq {phases.capacity}"


def _undealt(request: CompileRequest, phases: GpuPhases) -> bool:
    """Whether the program of ``request`` fits. It has all that its part of the model reads and
    keeps, so that none is compiled where that alone does not fit, and what reads prompts is
    compiled only where a step leaves little room for it."""
    other = GpuPhases(phases.loaded, request)
    step, room = replace(other, trial=True), other.device.global_memory_bytes
    try:
        held = sum(sum(sizes.values()) for sizes in bytes_held(other.part).values())
        if held > room or step.memory.total > room:
            return False
        return step.memory.total <= room - room // _OF_PROMPTS or other.refusal() is None
    except MeshcError:
        return False


def _on_nodes(request: CompileRequest, phases: GpuPhases) -> bool:
    """Whether the program of ``request`` fits, whose layers are dealt to nodes."""
    try:
        return GpuPhases(phases.loaded, request).refusal() is None
    except MeshcError:
        return False


def cures_on_node(phases: NodePhases) -> tuple[str, ...]:
    """More of the GPUs of a node with which a model fits it."""
    for count in range(phases.gpus + 1, phases.device.cores + 1):
        other = NodePhases(phases.loaded, phases.request.changed(gpus=count))
        try:
            if other.refusal() is None:
                return (f"--gpus {count}",)
        except MeshcError:
            continue
    return ()
