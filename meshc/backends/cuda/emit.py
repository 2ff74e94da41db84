"""A decode step and what reads its prompts as the files of a directory."""

from __future__ import annotations

from collections.abc import Sequence

from meshc.backends.cuda.chunk_launches import ChunkGraph
from meshc.backends.cuda.library import headers
from meshc.backends.cuda.memory import check_memory, memory_of
from meshc.backends.cuda.program import StepProgram
from meshc.backends.cuda.tasks.step import TaskGraph, step_of_tasks
from meshc.backends.templates import render

MANIFEST = "manifest.json"


def emit(
    tasks: TaskGraph,
    model: str,
    page: int,
    transport: str = "multimem",
    kernels: ChunkGraph | None = None,
    prompts: Sequence[TaskGraph] = (),
    choice: TaskGraph | None = None,
) -> dict[str, str]:
    """Kernels, headers, ``manifest.json`` and ``run.py`` by name; of the graph of a rank one
    program that serves all ranks, which give each other what they have by ``transport``.
    ``kernels``, ``prompts`` and ``choice`` are those of :func:`step_of_tasks`. Raises what that
    does, and ``does-not-fit`` for more than the GPU's memory."""
    program, texts = step_of_tasks(tasks, model, page, transport, kernels, prompts, choice)
    check_memory(program, tasks.placed.the_device())
    run = render("meshc.backends.cuda", "run.py.jinja", ranks=program.ranks, nodes=program.nodes)
    return {**texts, **headers(), MANIFEST: program.to_json(), "run.py": run}


def summary(program: StepProgram) -> list[str]:
    """A line on memory, and one on each kernel."""
    held = memory_of(program)
    lines = []
    if program.ranks is not None:
        lines.append(
            f"{program.ranks.count} GPUs, which meet {program.meetings} times in a step "
            f"({program.ranks.transport}); of each of them:"
        )
    if program.nodes is not None:
        lines.append(
            f"GPUs of {program.nodes.count} nodes, which pass {program.nodes.of_each} layers each; "
            "of each of them:"
        )
    lines += [
        f"{held.total} bytes of the GPU's memory: {held.weights} of weights, {held.caches} of "
        f"caches of {program.capacity} tokens, {held.buffers} of other buffers"
    ]
    for name, kernel in program.kernels.items():
        words = [f"{kernel.blocks} blocks of {kernel.threads} threads"]
        if kernel.cluster > 1:
            words.append(f"clusters of {kernel.cluster}")
        words.append(f"{kernel.shared_bytes} bytes of shared memory")
        lines.append(f"{name}: {', '.join(words)}")
    return lines
