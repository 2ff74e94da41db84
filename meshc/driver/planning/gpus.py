"""A phase of a model on one GPU of thread blocks, or dealt to several of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from meshc.backends import cuda
from meshc.backends.cuda.halves import node_of
from meshc.backends.cuda.memory import Memory, capacity_that_fits, memory_of
from meshc.backends.cuda.nodes import on_each
from meshc.backends.cuda.program import Prefill
from meshc.backends.request import CompileRequest
from meshc.backends.target_options import CudaOptions
from meshc.cost.nodes.iteration_batches import Chunk
from meshc.cost.nodes.iteration_predictions import predicted_schedule
from meshc.cost.nodes.overlap import fused_only
from meshc.cost.nodes.ranks import Kernel, Ranks
from meshc.cost.predictions import Input, Prediction, in_turn, inputs_of, interpolated
from meshc.cost.prompt_kernels import PromptKernels
from meshc.cost.served_graphs import served_of
from meshc.cost.tasks.predicting import predicted_prompt, predicted_step
from meshc.cost.tasks.tile_times import Links
from meshc.devices import Device
from meshc.driver.compiled import Compiled
from meshc.driver.compiling import compile_loaded, given_module
from meshc.driver.models import LoadedModel
from meshc.driver.planning.parts import bytes_held, part_of, served_by_ranks
from meshc.driver.planning.plan_answers import PhasePlan, Room
from meshc.ir.batch import POSITION
from meshc.ir.module import Module
from meshc.ir.ranks import RANK
from meshc.passes.manager import PassManager
from meshc.pipelines import pipeline_to, pipeline_to_tasks
from meshc.support.diagnostics import Diagnostic, Diagnostics, MeshcError, fail
from meshc.support.plmr import violates

_POWER = "busy_watts", "joules_per_byte"
_CHOSEN = {
    "prefill": ("prompt-of-kernels", "prompt-of-tasks", "chunk-of-fewer", "prompt-by-steps"),
    "decode": ("columns-in-memory",),
}
"""Codes of what compiling says of how it reads prompts, and steps their vectors."""
_NO_PROGRAM = frozenset({"no-tasks", "cuda-graph", "cuda-shape"})
"""Codes of refusals of models that the CUDA target does not compute."""


@dataclass(frozen=True)
class GpuPhases:
    """The phases of a model on ``gpus`` GPUs of the device of ``request``; in a ``trial`` those of
    a program without what reads prompts."""

    loaded: LoadedModel
    request: CompileRequest
    trial: bool = False

    @property
    def options(self) -> CudaOptions:
        """What is asked of kernels."""
        return self.request.options_of(CudaOptions)

    @cached_property
    def device(self) -> Device:
        """The kind of GPU."""
        return self.request.the_device()

    @cached_property
    def asked(self) -> CompileRequest:
        """The request of the decode step, on a GPU whose memory holds anything."""
        free = self.device.unlimited()
        return self.request.changed(target="cuda", phase="both", device=free)

    @cached_property
    def graph(self) -> Module:
        """The graph of the decode step of the whole model."""
        return given_module(self.loaded, "decode", self.asked, Diagnostics())

    @cached_property
    def part(self) -> Module:
        """The graph of one GPU's part."""
        return part_of(self.loaded, self.asked)

    @cached_property
    def compiled(self) -> Compiled | Diagnostic:
        """The program of the decode step, or why there is none. Raises what compiling raises for
        another reason than that the CUDA target does not compute such models, and for any where
        caches are not those that tensors of the model would be."""
        try:
            return compile_loaded(self.loaded, self.asked, trial=self.trial, verified=False)
        except MeshcError as refusal:
            first = refusal.diagnostics[0]
            if first.code not in _NO_PROGRAM or self.options.codes_caches:
                raise
            return first

    @cached_property
    def memory(self) -> Memory:
        """Bytes of a GPU: those of its program or, where there is none, of what its part of the
        model reads and keeps."""
        if self.program is not None:
            return memory_of(self.program)
        held = bytes_held(self.part)
        return Memory(sum(held["weight"].values()), sum(held["state"].values()), 0)

    @cached_property
    def program(self) -> cuda.StepProgram | None:
        """The manifest of the program of the decode step, None where there is none."""
        if isinstance(self.compiled, Compiled):
            return cuda.from_json(self.compiled.files[cuda.MANIFEST])
        return None

    @property
    def capacity(self) -> int:
        """The most tokens that caches of a request hold beside all else."""
        room = self.device.global_memory_bytes
        if self.program is not None:
            return capacity_that_fits(self.program, room)
        of_token = self.memory.caches // self.graph.capacity
        left = max(0, room - self.memory.weights - self.memory.buffers)
        return left // of_token if of_token else 0

    def refusal(self) -> Diagnostic | None:
        """Why the model does not fit, if it does not."""
        room, memory = self.device.global_memory_bytes, self.memory
        if memory.total <= room:
            return None
        several = self.options.gpus > 1 or self.options.nodes > 1
        of = "each of the GPUs" if several else "the GPU"
        return Diagnostic(
            "error",
            "does-not-fit",
            f"the model needs {memory.total} bytes of the memory of {of}, {self.device.name}, "
            f"which has {room}: {memory.total - room} bytes short",
            notes=(violates("M"),),
        )


def phase_on_gpus(phases: GpuPhases, phase: str) -> PhasePlan:
    """The plan of a ``phase``, ``prefill`` or ``decode``. Raises what compiling raises where there
    is no such program for another reason than memory or a kernel that is missing."""
    memory, refused = phases.memory, phases.refusal()
    uses = {"weights": memory.weights, "caches": memory.caches, "other buffers": memory.buffers}
    room = Room(phases.device.global_memory_bytes, uses, _buffers(phases))
    prediction, silent = None, ""
    try:
        prediction = _step(phases) if phase == "decode" else _prompt(phases)
    except MeshcError as error:
        silent = error.diagnostics[0].message
    tokens = phases.request.requests if phase == "decode" else phases.graph.capacity
    joules = None
    if prediction is not None:
        joules, power = _joules(phases, prediction)
        prediction = replace(prediction, inputs=(*prediction.inputs, *power))
    return PhasePlan(
        phase,
        tokens,
        prediction=prediction,
        silent=silent,
        room=room,
        refused=refused,
        violates={} if refused is None else {"M": refused.message},
        kv_tokens=phases.capacity,
        joules=None if joules is None else joules / tokens,
        chosen=_chosen(phases, phase),
    )


def _joules(phases: GpuPhases, found: Prediction) -> tuple[float | None, tuple[Input, ...]]:
    """What all GPUs take for what was predicted of one of them, and the numbers that this rests on:
    their power while kernels run, and the energy of what they read. None where the device does not
    say these, or nobody counts the bytes."""
    device = phases.device
    if found.bytes is None or not {*_POWER} <= device.numbers.keys():
        return None, ()
    watts, of_byte = map(device.real, _POWER)
    spent = phases.options.gpus * (watts * found.seconds + of_byte * found.bytes)
    return spent, inputs_of(device, _POWER)


def _chosen(phases: GpuPhases, phase: str) -> tuple[str, ...]:
    """What compiling says of how its program does ``phase``."""
    if not isinstance(phases.compiled, Compiled):
        return ()
    found = (one.message for one in phases.compiled.remarks if one.code in _CHOSEN[phase])
    return tuple(dict.fromkeys(found))


def _buffers(phases: GpuPhases) -> dict[str, int]:
    """Bytes of each weight and buffer of a GPU."""
    if phases.program is not None:
        program = on_each(phases.program)
        sizes = {name: weight.bytes for name, weight in program.weights.items()}
        return sizes | {name: buffer.bytes for name, buffer in program.buffers.items()}
    held = bytes_held(phases.part)
    return {**held["weight"], **held["state"]}


def _step(phases: GpuPhases) -> Prediction:
    """A decode step with full caches but for the token that comes: that of its tasks. Raises
    ``no-tasks``, ``device-number`` and ``bad-argument``."""
    compiled = phases.compiled
    if isinstance(compiled, Compiled) and compiled.modules["decode"].level == "task":
        tasks = compiled.modules["decode"]
    else:
        passes = pipeline_to_tasks()[len(pipeline_to("graph")) :]
        tasks = PassManager(passes).run(phases.part)
    position = {POSITION: phases.graph.capacity - 1} | ({} if tasks.ranks is None else {RANK: 0})
    found = _of_ranks(phases, lambda links: predicted_step(tasks, position, links))
    return _of_nodes(phases, found)


def _of_nodes(phases: GpuPhases, found: Prediction, *others: str) -> Prediction:
    """``found`` of all layers, as the nodes pass theirs one behind the other; it leaves out what
    they hand on, which no device file knows, and what ``others`` say."""
    if phases.options.nodes == 1:
        return found
    return replace(found, left_out=(*found.left_out, "what nodes hand on to each other", *others))


def _of_ranks(phases: GpuPhases, predict: Callable[[Links | None], Prediction]) -> Prediction:
    """What is predicted of tasks on each GPU, which tell and give each other their sums over the
    links of a node; where no device file says what these take they are left out, which the
    prediction says. Ranks do alike, so that one stands for all."""
    count = phases.options.gpus
    if count == 1:
        return predict(None)
    try:
        node = node_of(phases.device, count).watched()
        links = Links.of(node)
    except MeshcError as unknown:
        words = f"what {count} GPUs tell each other ({unknown.diagnostics[0].message})"
        return replace(predict(None), left_out=(words,))
    found = predict(links)
    return replace(found, inputs=(*found.inputs, *inputs_of(node, node.asked)))


def _prompt(phases: GpuPhases) -> Prediction:
    """A prompt as long as the caches, read as the program reads it: by kernels of many tokens, by
    tasks, by steps. Raises ``no-tasks`` where there are none, and ``device-number`` and
    ``bad-argument``."""
    compiled, tokens = phases.compiled, phases.graph.capacity
    if not isinstance(compiled, Compiled) or compiled.modules["decode"].level != "task":
        fail("no-tasks", "nothing predicts prompts that no tasks read")
    readers, step = tuple(compiled.prompts.values()), compiled.modules["decode"]
    found, kernels = _kernels(compiled), None
    if found is not None and phases.options.gpus > 1:
        return _kernels_of_ranks(phases, found.tokens)
    if found is not None:
        model = served_of(phases.graph)
        kernels = PromptKernels(phases.device, model, found.tokens, found.least)
    told = _of_ranks(phases, lambda links: predicted_prompt(readers, step, tokens, kernels, links))
    return _of_nodes(phases, told, "that nodes read different pieces of a prompt at once")


def _kernels(compiled: Compiled) -> Prefill | None:
    """The kernels that read many tokens of a prompt at once, if the program has such."""
    program = cuda.from_json(compiled.files[cuda.MANIFEST])
    return next((one for one in program.prefills if one.inputs == cuda.KERNELS), None)


def _kernels_of_ranks(phases: GpuPhases, tokens: int) -> Prediction:
    """A prompt by kernels of so many tokens at once on each of several GPUs, chunk by chunk."""
    count, last = phases.options.gpus, phases.graph.capacity
    node = node_of(phases.device, count).watched()
    costs = Ranks(served_by_ranks(phases.graph), node, count, phases.options.in_switch)
    whole = max(0, -(-last // tokens) - 1)

    def chunk(at: int, behind: tuple[Kernel, ...] = ()) -> Prediction:
        batch = (Chunk(at * tokens, min((at + 1) * tokens, last)),)
        return predicted_schedule(fused_only(costs, batch), node, behind)

    found = [interpolated(whole, chunk)] if whole else []
    return in_turn([*found, chunk(whole, (costs.head(1),))])
