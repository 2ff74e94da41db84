"""Programs of ranks: a step of tasks, and kernels that read prompts many tokens at once."""

from __future__ import annotations

from meshc.backends.cuda import ChunkGraph, StepProgram, TaskGraph
from meshc.backends.cuda.overlapping import Splitting
from meshc.backends.cuda.tasks.step import step_of_tasks
from meshc.ir.clone import clone_module
from meshc.ir.module import Module
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.pipelines import DEALING, graph_passes, pipeline_to_tasks


def dealt(count: int) -> str:
    """The pass that deals a model to ``count`` ranks, which look up whole tables."""
    return f"{DEALING}{{ranks={count},multiple=8,keep=[V]}}"


def of_ranks(module: Module, count: int, more: str = "") -> Module:
    """The graph of a rank, fused into the kernels of a chunk; ``more`` are options of the sums."""
    steps = parse_pipeline(f"{dealt(count)},fuse-all-reduce{more},fuse-chunk")
    return PassManager(steps).run(clone_module(module))


def rank_program(
    whole: Module,
    count: int,
    transport: str = "multimem",
    chunk: int = 0,
    splitting: Splitting | None = None,
) -> tuple[StepProgram, dict[str, str]]:
    """The program of each of ``count`` ranks and its texts; kernels read up to ``chunk`` tokens of
    a prompt at once, perhaps in halves, or for 0 steps read them."""
    settings = {DEALING: dealt(count)}
    graph = PassManager(graph_passes(settings)).run(clone_module(whole))
    passes = pipeline_to_tasks(settings)[len(graph_passes(settings)) :]
    tasks = TaskGraph(PassManager(passes).run(clone_module(graph)), graph)
    kernels = ChunkGraph(of_ranks(whole, count), chunk, splitting) if chunk else None
    return step_of_tasks(tasks, "llama", 16, transport, kernels)
