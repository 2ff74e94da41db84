"""A fused decode graph as kernels and launches.

The residual stream stays in f32 in two buffers. The attention block adds its output and the
residual to ``sums``, which holds zeros; the feed-forward block reads ``sums``, writes the next
residual and leaves zeros in ``sums`` again. So no kernel writes what another block of it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from meshc.backends.cuda.ahead import with_prefetches
from meshc.backends.cuda.chain import check_chain
from meshc.backends.cuda.gathering import Launches, Step
from meshc.backends.cuda.kernels.collective.launch import fused_sum
from meshc.backends.cuda.kernels.fused import Fused
from meshc.backends.cuda.kernels.registry import kernel_of
from meshc.backends.cuda.kernels.tiles import DoesNotFit
from meshc.backends.cuda.launches import Launch, Stage
from meshc.backends.cuda.overlapping import Splitting
from meshc.backends.cuda.prefill import chunk_of, joined
from meshc.backends.cuda.program import Prefill, StepProgram
from meshc.backends.cuda.ranks import share_of
from meshc.backends.cuda.targets import kind_of, target_of
from meshc.backends.cuda.tasks.step import TaskGraph, step_of_tasks
from meshc.ir.batch import POSITION
from meshc.ir.core import Op
from meshc.ir.module import Module
from meshc.ir.ops import graph, ranks
from meshc.ir.values import Value
from meshc.support.diagnostics import fail


def step_program(
    module: Module,
    model: str,
    page: int,
    transport: str = "multimem",
    chunk: int = 0,
    splitting: Splitting | None = None,
    tasks: TaskGraph | None = None,
) -> tuple[StepProgram, dict[str, str]]:
    """The step of a fused decode graph, and the text of each file; for the graph of a rank, with
    collectives by ``transport`` (:data:`meshc.backends.cuda.program.TRANSPORTS`). Prompts are read
    up to ``chunk`` tokens at a time, each weight once; for 0 as many as decode kernels take. Ranks
    may read chunks in two halves on two streams, by ``splitting``. With ``tasks`` the decode step
    is one kernel that is made of them, and the others read prompts.

    Raises ``cuda-graph`` for what is not fused into the kernels of one step, ``cuda-dtype`` for
    element types other than f16 and bf16, ``cuda-shape`` for what does not fit a block.
    """
    dtype = kind_of(module)
    check_chain(module)
    step = Step(module, page, dtype, transport)
    launches = _launches(step)
    prefill = _prefill(step, chunk, splitting)
    if tasks is not None:
        return step_of_tasks(tasks, model, page, step, prefill, transport)
    if module.ranks is None:
        launches, prefill = with_prefetches(step, launches, prefill)
    program = StepProgram(
        model,
        target_of(module.the_device()),
        step.batch,
        module.capacity,
        step.buffers["logits"].shape[-1],
        page,
        tuple(step.frequencies),
        step.kernels,
        step.buffers,
        step.weights,
        launches.before,
        launches.stages,
        launches.after,
        prefill,
        share_of(module, transport),
    )
    return program, step.texts


def _prefill(step: Step, tokens: int, splitting: Splitting | None) -> Prefill | None:
    """How prompts are read, up to ``tokens`` at a time if that is not 0."""
    chunk = chunk_of(step, tokens, splitting)
    if chunk is None:
        return None
    try:
        return joined(step, chunk, _launches(chunk), splitting)
    except DoesNotFit as reason:
        fail(
            "cuda-shape",
            f"no kernels read {tokens} tokens of a prompt at once: {reason}",
            help="without --chunk prompts are read by the kernels of decode steps",
        )


def _launches(step: Step) -> Launches:
    origin = {p.value: p.value.name for p in step.module.function.params}
    before: list[Launch] = []
    stages: list[Stage] = []
    after: list[Launch] = []
    if step.module.scalars.get(POSITION, (0, 0))[0] < 0:
        fail("cuda-graph", "the kernels of a step continue all of its requests")
    ops = step.module.function.body.ops
    for op, following in zip(ops, [*ops[1:], None], strict=True):
        if isinstance(op, graph.Repeat):
            if op.rounds:
                fail("cuda-graph", f"the kernels of a step pass all layers of {op.dim}", op.span)
            step.stage, step.layers = len(stages), step.module.dims[op.dim]
            stages.append(Stage(step.layers, tuple(_layer(step, op, origin))))
            step.stage, step.layers = 0, 0
        elif isinstance(op, graph.Fuse):
            (after if stages else before).extend(_fused(step, op, origin))
        elif isinstance(op, ranks.AllReduceResidualRmsNorm):
            after += _sum(step, op, following, origin)
        elif isinstance(op, ranks.ZerosLike):
            continue  # the look-up leaves them
        elif not isinstance(op, graph.Return):
            _unfused(op)
    step.add_fixed_buffers()
    return Launches(tuple(before), tuple(stages), tuple(after))


def _unfused(op: Op) -> NoReturn:
    fail(
        "cuda-graph",
        f"{op.NAME} is part of no kernel",
        op.span,
        help="the remarks of fuse-cluster say what it could not fuse (--remarks)",
    )


def _layer(step: Step, op: graph.Repeat, origin: Mapping[Value, str]) -> list[Launch]:
    (block,) = op.regions
    inner = {
        argument: origin.get(operand, "")
        for argument, operand in zip(block.args, op.operands, strict=True)
        if isinstance(operand, Value)
    }
    found = []
    for part, following in zip(block.ops, [*block.ops[1:], None], strict=True):
        if isinstance(part, graph.Fuse):
            found += _fused(step, part, inner)
        elif isinstance(part, ranks.AllReduceResidualRmsNorm):
            found += _sum(step, part, following, inner)
        elif not isinstance(part, graph.Yield):
            _unfused(part)
    return found


def _sum(
    step: Step,
    op: ranks.AllReduceResidualRmsNorm,
    following: Op | None,
    outer: Mapping[Value, str],
) -> list[Launch]:
    """A sum over ranks with residual and norm, in front of the block that reads what is normed."""
    if not isinstance(following, graph.Fuse):
        ends = isinstance(following, (graph.Yield, graph.Return))
        _unfused(op if following is None or ends else following)
    gain = outer.get(op.tensors()[2], "")
    roles = {param.value.name: param.role for param in step.module.function.params}
    if roles.get(gain) != "weight":
        fail("cuda-graph", f"the gain {op.operands[2]} of {op.NAME} is no weight", op.span)
    try:
        return fused_sum(step, op, kernel_of(following).GAIN, gain)
    except DoesNotFit as reason:
        if step.tiled:
            raise
        fail("cuda-shape", f"no kernel for {op.NAME}: {reason}", op.span)


def _fused(step: Step, op: graph.Fuse, outer: Mapping[Value, str]) -> list[Launch]:
    kernel = kernel_of(op)
    if step.module.ranks is not None and kernel.GAIN and "normed" not in op.takes:
        fail(
            "cuda-graph",
            f"the {op.kernel} of a rank begins with a norm of its own, behind a sum over ranks "
            "that is not fused with it",
            op.span,
            help="fuse-all-reduce comes in front of fuse-cluster; a bias behind the sum is no part "
            "of a kernel",
        )
    if step.module.ranks is not None and kernel.PARTIAL and not op.partial:
        fail(
            "cuda-graph",
            f"every rank computes the whole {op.kernel}, which no rank has a part of",
            op.span,
            help="kernels of ranks are of models whose heads and features are dealt to them",
        )
    if step.tiled:
        return kernel.chunk_launches(step, Fused(op, outer))
    try:
        return kernel.launches(step, Fused(op, outer))
    except DoesNotFit as reason:
        fail("cuda-shape", f"no kernel for this {op.kernel}: {reason}", op.span)
