"""A fused decode graph as the files of a directory."""

from __future__ import annotations

from meshc.backends.cuda.library import headers
from meshc.backends.cuda.memory import check_memory, memory_of
from meshc.backends.cuda.overlapping import Splitting
from meshc.backends.cuda.program import StepProgram
from meshc.backends.cuda.steps import step_program
from meshc.backends.cuda.tasks.step import TaskGraph, step_of_tasks
from meshc.backends.templates import render
from meshc.devices import Device
from meshc.ir.module import Module

MANIFEST = "manifest.json"


def emit(
    module: Module,
    model: str,
    page: int,
    transport: str = "multimem",
    chunk: int = 0,
    splitting: Splitting | None = None,
    tasks: TaskGraph | None = None,
) -> dict[str, str]:
    """Kernels, headers, ``manifest.json`` and ``run.py`` by name; of the graph of a rank one
    program that serves all ranks, with collectives by ``transport``. ``chunk``, ``splitting`` and
    ``tasks`` are those of :func:`step_program`. Raises what that does, and ``does-not-fit``
    for more than the GPU's memory."""
    made = step_program(module, model, page, transport, chunk, splitting, tasks)
    return _files(*made, module.the_device())


def emit_tasks(
    tasks: TaskGraph,
    model: str,
    page: int,
    transport: str = "multimem",
    prompts: TaskGraph | None = None,
) -> dict[str, str]:
    """The same of a step that is made of ``tasks`` alone; those of ``prompts`` read prompts, or
    without them steps do. Raises what :func:`step_of_tasks` does, and ``does-not-fit`` for more
    than the GPU's memory."""
    made = step_of_tasks(tasks, model, page, transport=transport, prompts=prompts)
    return _files(*made, tasks.placed.the_device())


def _files(program: StepProgram, texts: dict[str, str], device: Device) -> dict[str, str]:
    check_memory(program, device)
    run = render("meshc.backends.cuda", "run.py.jinja", ranks=program.ranks)
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
    lines += [
        f"{held.total} bytes of the GPU's memory: {held.weights} of weights, {held.caches} of "
        f"caches of {program.capacity} tokens, {held.buffers} of other buffers"
    ]
    for name, kernel in program.kernels.items():
        words = [f"{kernel.blocks} blocks of {kernel.threads} threads"]
        if kernel.cluster > 1:
            words.append(f"clusters of {kernel.cluster}")
            words.append(f"{kernel.dsmem_bytes} bytes of DSMEM traffic")
        words.append(f"{kernel.shared_bytes} bytes of shared memory")
        lines.append(f"{name}: {', '.join(words)}")
    return lines
