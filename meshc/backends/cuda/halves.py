"""Where chunks of prompts are cut in two on several GPUs: at a place that is given, or where the
cost of a node says that two halves beside each other are faster than one piece."""

from __future__ import annotations

from collections.abc import Iterator

from meshc.backends.cuda.overlapping import Splitting
from meshc.backends.cuda.program import MOST_CHUNK
from meshc.backends.cuda.queues import Cut
from meshc.backends.request import CompileRequest
from meshc.backends.target_options import NO_OVERLAP, CudaOptions
from meshc.cost.nodes.iteration_batches import prompts
from meshc.cost.nodes.overlap import fused_only, overlapped
from meshc.cost.nodes.ranks import Ranks
from meshc.cost.nodes.splitting import best_schedule, boundaries_tried, threshold_tokens
from meshc.cost.served_attention import LatentAttention
from meshc.cost.served_graphs import served_of
from meshc.devices import Device, device, device_names
from meshc.ir.module import Module
from meshc.support.diagnostics import Diagnostics, fail

AUTO_OVERLAP = "auto"
_STEP = 64
"""Tokens from one length of a chunk whose cut is looked for to the next."""


def splitting_of(request: CompileRequest, step: Module, report: Diagnostics) -> Splitting | None:
    """How chunks of the model are cut whose decode step is the graph ``step``, None where all are
    read in one piece, which a remark says.

    Raises ``bad-argument`` where nothing is known of the node, ``unsupported-architecture`` where
    nothing is of the model, ``device-number`` where the GPU gives collectives no multiprocessors,
    and what :class:`Ranks` does.
    """
    asked = request.options_of(CudaOptions)
    if asked.overlap == NO_OVERLAP or request.chunk is None:
        return None
    chunk, gpu = request.chunk, request.the_device()
    if asked.overlap != AUTO_OVERLAP:
        at = int(asked.overlap)
        return Splitting(chunk, gpu.whole("collective_blocks"), (Cut(at + 1, at),))
    node = node_of(gpu, asked.gpus)
    served = served_of(step)
    if isinstance(served.attention, LatentAttention):
        fail(
            "unsupported-architecture",
            f"chunks of '{step.name}' are not cut by their cost, which is known of servers that "
            "make keys of latents; emitted programs ask the latents",
            help="--overlap N cuts chunks behind N tokens",
        )
    ranks = Ranks(served, node, asked.gpus, asked.in_switch)
    blocks = _blocks(ranks, chunk)
    cuts = tuple(_cuts(ranks, chunk, blocks)) if blocks else ()
    if any(cut.at for cut in cuts):
        first = next(cut for cut in cuts if cut.at)
        report.remark(
            "overlap",
            f"chunks of {first.tokens} tokens and more are read in two halves, by the cost of "
            f"{node.name}; collectives have {blocks} multiprocessors",
        )
        return Splitting(chunk, blocks, cuts)
    threshold = threshold_tokens(ranks)
    pays = "never pay" if threshold is None else f"pay from {threshold} tokens on"
    report.remark(
        "overlap",
        f"chunks of {chunk} tokens are read in one piece: by the cost of {node.name} two halves "
        f"{pays}",
    )
    return None


def _blocks(ranks: Ranks, chunk: int) -> int:
    """The multiprocessors that collectives have in the best schedule of a chunk of so many tokens,
    or of the longest shorter one that is cut; 0 where none is."""
    for tokens in _lengths(chunk)[::-1]:
        schedule = best_schedule(ranks, prompts([tokens]))
        if schedule.split is not None:
            return min(span.multiprocessors for span in schedule.spans)
    return 0


def _cuts(ranks: Ranks, chunk: int, blocks: int) -> Iterator[Cut]:
    """From each length on where another cut is best: that cut, at 0 where one piece is."""
    last = 0
    for tokens in _lengths(chunk):
        batch = prompts([tokens])
        best, found = fused_only(ranks, batch).seconds, 0
        for at in boundaries_tried(ranks, tokens, blocks):
            seconds = overlapped(ranks, batch, at, blocks).seconds
            if max(at, tokens - at) <= MOST_CHUNK and seconds < best:
                best, found = seconds, at
        if found != last:
            yield Cut(tokens, found)
        last = found


def _lengths(chunk: int) -> list[int]:
    return [*range(_STEP, chunk, _STEP), chunk]


def node_of(gpu: Device, gpus: int) -> Device:
    """The smallest node of at least ``gpus`` GPUs like ``gpu`` whose collectives are costed; they
    have the multiprocessors that ``gpu`` gives them. Raises ``bad-argument`` where there is none.
    """
    known = [device(other) for other in device_names() if other.startswith(f"{gpu.name}x")]
    nodes = [d for d in known if d.kind == "node" and "collective_blocks" in d.numbers]
    fitting = [node for node in nodes if node.cores >= gpus]
    if not fitting:
        fail(
            "bad-argument",
            f"the cost of {gpus} GPUs {gpu.name} is not known",
            help="--overlap N cuts chunks behind N tokens; --device h100 has nodes of up to 8",
        )
    chosen = min(fitting, key=lambda node: node.cores)
    return chosen.with_numbers(collective_blocks=gpu.whole("collective_blocks"))
