"""What fuse-cluster chooses for attention blocks, and what it expects of the other choices.

    python benchmarks/cluster_choice.py [--device h200] [--counted]

Tables in Markdown, which docs/cuda.md repeats: the choice by heads, head size and cached tokens;
that for query heads that share key heads; predicted time by cluster size; both dataflows; with
``--counted`` the bytes between blocks of a cluster as predicted and as the CPU executor counts them
while it runs the emitted kernels.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import numpy as np

from meshc.analysis.cuda.blocks import THREADS
from meshc.backends.cuda.executor import QUICK, Grid, Library
from meshc.backends.cuda.kernels.attention_block import kernel as attention
from meshc.cost.clusters import Attention, Choice, choose, collectives, step_cost, traffic
from meshc.devices import Device, device

HIDDEN = 4096
HEADS = (32, 64, 128)
HEAD_SIZES = (64, 128, 256)
CONTEXTS = (1024, 4096, 16384)
SIZES = (1, 2, 4, 8, 16)
# Query heads, key/value heads, residual: Llama-3-8B, Qwen2-7B, Llama-3.2-3B, Llama-3-70B.
GROUPED = ((32, 8, 4096), (28, 4, 3584), (24, 8, 3072), (64, 8, 8192))
# Two blocks on a core: what the published kernel's 101,312 bytes of shared memory allow.
PUBLISHED_RESIDENT = 2
# Dataflow, heads, key/value heads, head size, blocks of a cluster.
COUNTED = (
    ("split_token", 32, 32, 128, 4),
    ("split_token", 64, 64, 128, 4),
    ("split_token", 128, 128, 128, 2),
    ("split_token", 32, 8, 128, 8),
    ("split_token", 9, 3, 64, 16),
    ("split_head", 32, 32, 128, 4),
    ("split_head", 9, 3, 64, 2),
)
COUNTED_HIDDEN, COUNTED_CACHED = 512, 40
PAGE = 16


def markdown(header: Sequence[str], rows: Iterator[Sequence[object]]) -> str:
    """A table without a trailing newline."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def choices(target: Device) -> str:
    """The choice for multi-head attention over a residual of ``HIDDEN`` values, batch 1."""
    header = "heads", "head", "cached", "dataflow", "cluster", "on a core", "us", "DSMEM bytes"
    return markdown(header, _choices(target))


def _choices(target: Device) -> Iterator[Sequence[object]]:
    for heads in HEADS:
        for head in HEAD_SIZES:
            for context in CONTEXTS:
                found = choose(target, Attention(HIDDEN, heads, heads, head), context)
                yield heads, head, context, *(_cells(found) if found else ("none", *"----"))


def _cells(choice: Choice) -> tuple[object, ...]:
    seconds = f"{1e6 * choice.seconds:.1f}"
    return choice.dataflow, choice.cluster, choice.resident, seconds, choice.dsmem_bytes


def shares(target: Device) -> str:
    """The choice where query heads share key heads, and what it would be with one cluster for each
    key head; batch 1, heads of 128."""
    header = "heads", "key/value heads", "hidden", "cached"
    chosen = "heads of a cluster", "cluster", "blocks", "us"
    alone = "cluster", "blocks", "us"
    return markdown((*header, *chosen, *(f"alone: {name}" for name in alone)), _shares(target))


def _shares(target: Device) -> Iterator[Sequence[object]]:
    for heads, kv_heads, hidden in GROUPED:
        for context in CONTEXTS:
            shape = Attention(hidden, heads, kv_heads, 128)
            best = choose(target, shape, context)
            alone = choose(target, shape, context, heads=shape.group)
            if best and alone:
                times = [f"{1e6 * choice.seconds:.1f}" for choice in (best, alone)]
                yield (
                    heads, kv_heads, hidden, context, best.heads, best.cluster, best.blocks,
                    times[0], alone.cluster, alone.blocks, times[1],
                )  # fmt: skip


def sizes(target: Device) -> str:
    """Predicted us of each cluster size where two blocks share a core (Figure 11)."""
    header = "heads", "cached", *(f"{n} blocks" for n in SIZES)
    return markdown(header, _sizes(target))


def _sizes(target: Device) -> Iterator[Sequence[object]]:
    for heads in HEADS:
        for context in CONTEXTS[1:]:
            shape = Attention(128 * heads, heads, heads, 128)
            times = {
                n: step_cost(target, shape, context, n, resident=PUBLISHED_RESIDENT).total
                for n in SIZES
            }
            best = min(times, key=times.__getitem__)
            texts = {n: f"{1e6 * seconds:.1f}" for n, seconds in times.items()}
            yield heads, context, *(f"**{t}**" if n == best else t for n, t in texts.items())


def dataflows(target: Device) -> str:
    """Both dataflows in clusters of four, Llama-2-7B: predicted us and bytes of one launch."""
    header = "cached", "split_token us", "split_head us", "split_token bytes", "split_head bytes"
    return markdown(header, _dataflows(target))


def _dataflows(target: Device) -> Iterator[Sequence[object]]:
    shape = Attention(HIDDEN, 32, 32, 128)
    for context in (1024, 2048, 4096, 8192, 16384):
        flows = "split_token", "split_head"
        times = (step_cost(target, shape, context, 4, f, PUBLISHED_RESIDENT).total for f in flows)
        moved = (32 * traffic(collectives(shape, 4, f, context), 4) for f in flows)
        yield context, *(f"{1e6 * seconds:.1f}" for seconds in times), *moved


def counted() -> str:
    """Bytes between blocks, predicted and counted while the executor runs the emitted kernel, of a
    residual of ``COUNTED_HIDDEN`` values and ``COUNTED_CACHED`` cached tokens."""
    header = "dataflow", "heads", "key/value heads", "head", "cluster", "predicted", "counted"
    return markdown(header, _counted())


def _counted() -> Iterator[Sequence[object]]:
    for flow, heads, kv_heads, head, cluster in COUNTED:
        shape = Attention(COUNTED_HIDDEN, heads, kv_heads, head)
        moved = traffic(collectives(shape, cluster, flow, COUNTED_CACHED + 1), cluster)
        found = _run(shape, cluster, flow)
        yield flow, heads, kv_heads, head, cluster, kv_heads * moved, found


def _run(shape: Attention, cluster: int, flow: str) -> int:
    """DSMEM bytes of one step of the kernel, on zeros."""
    sizes = shape.batch, shape.hidden, shape.heads, shape.kv_heads, shape.head
    seen = COUNTED_CACHED + 1
    one = attention.Attention(*sizes, "f16", PAGE, 1e-5, 1.0)
    plan = attention.plan(one, device("h200"), cluster, flow, seen)
    kv, hidden, rows, attended = shape.kv_heads, shape.hidden, shape.rows, shape.attended
    pages = np.arange(-(-seen // PAGE), dtype=np.int32)
    vectors = np.zeros((2, hidden), np.float32)
    weights = [np.zeros(s, np.uint16) for s in (hidden, (kv, rows, hidden), (kv, hidden, attended))]
    pools = [np.zeros((len(pages), kv, PAGE, shape.head), np.uint16) for _ in range(2)]
    tables = [np.zeros((seen, shape.head // 2), np.float32) for _ in range(2)]
    arguments = [vectors[0], vectors[1], *weights, *pools, pages, np.int32(len(pages))]
    arguments += [np.array([COUNTED_CACHED], np.int32), *tables]
    grid = Grid(plan.blocks, THREADS, cluster, plan.arena.bytes)
    counts = Library(attention.text(plan, "attention"), toolchain=QUICK).run(
        "attention", grid, arguments
    )
    return counts.dsmem_bytes


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="h200")
    parser.add_argument("--counted", action="store_true", help="run kernels in the executor too")
    arguments = parser.parse_args()
    target = device(arguments.device)
    tables = [choices(target), shares(target), sizes(target), dataflows(target)]
    if arguments.counted:
        tables.append(counted())
    print("\n\n".join(tables))


if __name__ == "__main__":
    main()
