"""A placed program of tasks as one kernel and the program of a decode step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshc.backends.cuda.chunk import Chunk
from meshc.backends.cuda.chunk_launches import ChunkGraph, chunk_of
from meshc.backends.cuda.gpu_shares import NodeShare
from meshc.backends.cuda.launches import Launch, Stage
from meshc.backends.cuda.program import (
    LONG,
    TASKS,
    Buffer,
    Kernel,
    Prefill,
    StepProgram,
    Weight,
)
from meshc.backends.cuda.ranks import share_of
from meshc.backends.cuda.targets import kind_of, target_of
from meshc.backends.cuda.tasks.kernel_parts import (
    KernelPart,
    every_part,
    kernel_parts,
    launched,
)
from meshc.backends.cuda.tasks.prompt_weights import Known
from meshc.backends.cuda.tasks.step_text import OWN, StepText
from meshc.backends.cuda.tasks.storage import LOGITS, Storage
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.support.diagnostics import fail


@dataclass(frozen=True)
class TaskGraph:
    """A placed program of tasks, and the graph that it was made of."""

    placed: Module
    graph: Module


def step_of_tasks(
    tasks: TaskGraph,
    model: str,
    page: int,
    transport: str = "multimem",
    kernels: ChunkGraph | None = None,
    prompts: Sequence[TaskGraph] = (),
    choice: TaskGraph | None = None,
) -> tuple[StepProgram, dict[str, str]]:
    """A decode step of ``tasks`` and the text of its kernel; ``kernels`` of a fused graph read
    prompts, and a kernel of the tasks of each of ``prompts``, those of most tokens first, what the
    next one takes several launches for, over the same
    weights and caches. Without either prompts are read by steps. With a ``choice`` among the logits
    of the step the program chooses tokens itself. Ranks give each other what they have by
    ``transport``.

    Raises ``cuda-dtype`` for element types other than f16 and bf16, ``cuda-graph`` for other
    devices than GPUs and what tasks do that kernels do not, ``cuda-shape`` for rows that are no
    whole fragments and too many requests, ``does-not-fit`` for more than a block has, and what
    :func:`~meshc.backends.cuda.chunk_launches.chunk_of` does.
    """
    module = tasks.placed
    kind_of(module)
    if module.the_device().clusters is None:
        fail("cuda-graph", f"device {module.the_device().name} is no GPU with clusters")
    if any(isinstance(op, graph.ArgMax | graph.Draw) for op in tasks.graph.walk()):
        words = "a step gives logits, by which a program of its own chooses tokens"
        fail("cuda-graph", words, help="leave choose-token out")
    results = [buffer.value for buffer in module.buffers if buffer.role == "out"]
    if len(results) > 1:
        fail(
            "cuda-graph",
            f"a step gives the logits and its caches, not {', '.join(map(str, results))}",
        )
    known, angles = Known(), tuple[tuple[float, ...], ...]()
    chunk: Chunk | None = None
    prefills: list[Prefill] = []
    if kernels is not None:
        chunk, prefill = chunk_of(kernels, page, transport)
        prefills.append(prefill)
        known = Known(chunk.weights, chunk.buffers, chunk.caches)
        angles = tuple(chunk.frequencies)
    storage = Storage(module, tasks.graph, page, known, frequencies=[*angles])
    written = _written(storage, transport)
    texts = {"step.cu": written.text}
    made = written.kernels, storage.buffers, storage.weights
    frequencies = tuple(storage.frequencies)
    if chunk is not None:
        made = _with_kernels(made, chunk)
        texts |= chunk.texts
    counts = [one.placed.dims["L"] for one in prompts]
    for number, one in enumerate(prompts):
        last = number + 1 == len(prompts)
        reader, least = (TASKS, 1) if last else (LONG, counts[number + 1] + 1)
        made, more, prefill, frequencies = _with_tasks(
            storage, made, one, transport, reader, least, frequencies
        )
        prefills.append(prefill)
        texts |= more
    chooses: Launch | None = None
    if choice is not None:
        made, more, chooses = _with_choice(made, choice, storage.requests, page)
        texts |= more
    sources = {source for weight in made[2].values() for source in weight.sources}
    program = StepProgram(
        model,
        target_of(module.the_device()),
        storage.requests,
        storage.capacity,
        storage.buffers[LOGITS].shape[-1],
        page,
        frequencies,
        *made,
        (),
        (Stage(1, ()),),
        written.launches,
        tuple(prefills),
        share_of(tasks.graph, [module, *(one.placed for one in prompts)], sources, transport),
        chooses,
        written.nodes,
    )
    return program, texts


@dataclass(frozen=True)
class _Step:
    """The text of the kernels of a step, and how these are launched; what each of its nodes passes,
    if there are several."""

    text: str
    kernels: dict[str, Kernel]
    launches: tuple[Launch, ...]
    nodes: NodeShare | None = None


def _written(storage: Storage, transport: str) -> _Step:
    """The step whose memory is ``storage``, one kernel or, where that is cut, several."""
    parts = kernel_parts(storage.module)
    if not parts:
        whole = StepText(storage, transport)
        text, kernel, arguments = whole.text()
        nodes = NodeShare(whole.nodes, whole.layers) if whole.nodes > 1 else None
        return _Step(text, {"step": kernel}, (Launch("step", arguments),), nodes)
    texts: list[str] = []
    kernels: dict[str, Kernel] = {}
    arguments_of: dict[KernelPart, tuple[str, ...]] = {}
    for part in every_part(parts):
        text, kernels[part.name], arguments_of[part] = StepText(storage, part=part).text(not texts)
        texts.append(text)
    return _Step("\n".join(texts), kernels, tuple(launched(parts, arguments_of.__getitem__)))


Parts = tuple[dict[str, Kernel], dict[str, Buffer], dict[str, Weight]]


def _with_tasks(
    step: Storage,
    made: Parts,
    prompts: TaskGraph,
    transport: str,
    reader: str,
    least: int,
    angles: tuple[tuple[float, ...], ...],
) -> tuple[Parts, dict[str, str], Prefill, tuple[tuple[float, ...], ...]]:
    """Kernels, buffers and weights of a step, whose memory is ``step``, with those of a kernel of
    tasks called ``reader``, which reads prompts of ``least`` tokens or more, its text, how it is
    launched, and the ``angles`` of all. Raises as :func:`step_of_tasks`."""
    kernels, buffers, weights = made
    caches = {
        buffer.value.name: step.cache(buffer.value).name
        for buffer in step.module.buffers
        if buffer.role == "state"
    }
    known = Known(weights, buffers, caches, step.requests)
    own = Storage(prompts.placed, prompts.graph, step.page, known, frequencies=[*angles])
    text, kernel, arguments = StepText(own, transport, reader).text()
    named = {
        f"{reader}_{name}" if name in OWN else name: buffer for name, buffer in own.buffers.items()
    }
    _check_caches(buffers, named, "tasks", "split_token keeps whole heads")
    parts = {**kernels, reader: kernel}, {**named, **buffers}, {**own.weights, **weights}
    prefill = Prefill(reader, own.tokens, least, (Launch(reader, arguments),), (), ())
    return parts, {f"{reader}.cu": text}, prefill, tuple(own.frequencies)


def _with_choice(
    made: Parts, choice: TaskGraph, requests: int, page: int
) -> tuple[Parts, dict[str, str], Launch]:
    """Kernels, buffers and weights of a step with the kernel of a ``choice``, its text, and how it
    is launched, but for the row of ``chosen`` that it fills. Raises as :func:`step_of_tasks`."""
    kernels, buffers, weights = made
    own = Storage(choice.placed, choice.graph, page, Known(weights, buffers, {}, requests))
    text, kernel, arguments = StepText(own).text()
    parts = {**kernels, "choose": kernel}, {**buffers, **own.buffers, **buffers}, weights
    return parts, {"choose.cu": text}, Launch("choose", arguments)


def _with_kernels(step: Parts, chunk: Chunk) -> Parts:
    """Kernels, buffers and weights of a step with those of ``chunk``, which read prompts. Raises
    ``cuda-graph`` where they would keep caches of their own."""
    kernels, buffers, weights = step
    _check_caches(buffers, chunk.buffers, "kernels", "without --chunk prompts are read by tasks")
    return {**kernels, **chunk.kernels}, {**chunk.buffers, **buffers}, {**chunk.weights, **weights}


def _check_caches(
    step: Mapping[str, Buffer], prompts: Mapping[str, Buffer], who: str, help: str
) -> None:
    """Raise ``cuda-graph`` where what reads prompts would keep caches of its own."""
    own, others = (
        {name for name, buffer in buffers.items() if buffer.role == "state"}
        for buffers in (step, prompts)
    )
    if own != others:
        words = f"{who} that read prompts keep caches in another order than those of a step"
        fail("cuda-graph", words, help=help)
