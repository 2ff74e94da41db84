"""Where schedules of a node of GPUs cut prompts in two, beside a cut in the middle.

    python benchmarks/node_schedules.py

How they compare with the latencies that TokenWeave reports: ``meshc reproduce tokenweave``.
"""

from __future__ import annotations

from measuring import table

from meshc.cost.nodes.iteration_batches import prompts
from meshc.cost.nodes.overlap import baseline
from meshc.cost.nodes.splitting import best_schedule, equal_split, threshold_tokens
from meshc.driver.reproduction.token_weave import ALONE, ranks_of

MODELS = ("llama-3.3-70b", "qwen2.5-72b", "qwen3-235b-a22b")
LENGTHS = (1024, 2048, 4096, 8192, 16384)


def splits(model: str) -> list[list[object]]:
    """Milliseconds by the equal and the chosen cut, with as many blocks for sums, and without
    communication, on eight H100."""
    ranks = ranks_of(model, "h100x8")
    rows: list[list[object]] = []
    for tokens in LENGTHS:
        batch = prompts([tokens])
        chosen = best_schedule(ranks, batch)
        given = min(span.multiprocessors for span in chosen.spans)
        blocks = ranks.blocks if chosen.split is None else given
        middle = equal_split(ranks, batch, blocks)
        times = (middle, chosen, baseline(ranks, batch, communicates=False))
        shown = [f"{t.seconds * 1e3:.1f}" for t in times]
        rows.append([model, tokens, *shown, chosen.split, blocks])
    return rows


def main() -> None:
    """Print the cuts and the shortest prompts that are cut."""
    head = ["model", "tokens", "equal cut, ms", "chosen, ms", f"{ALONE}, ms", "at", "blocks"]
    print(table(head, [row for model in MODELS for row in splits(model)]))
    for name in ("h100x8", "h100x4", "b200x8"):
        for model in MODELS:
            shortest = threshold_tokens(ranks_of(model, name))
            print(f"{model} on {name}: cut from {shortest} tokens on")


if __name__ == "__main__":
    main()
