"""What a header states of a module's dims, held against the module: rows of tokens, attention,
parts of ranks and of tokens, weights whose lanes are reordered."""

from __future__ import annotations

from collections.abc import Iterator

from meshc.ir.module import Module
from meshc.ir.ranks import rank_mistakes
from meshc.ir.rows import attention_mistakes, paired_mistakes, rows_mistakes, token_part_mistakes
from meshc.ir.types import TensorType


def stated_mistakes(module: Module) -> Iterator[tuple[str, str, str]]:
    """The line of the header, what is wrong with it, and what would be right."""
    dims, rows = module.dims, module.rows
    for line, mistakes, help in (
        ("rows", rows_mistakes(rows, dims), "such as: rows dim = L, capacity = S"),
        (
            "attention",
            attention_mistakes(module.attention, rows, dims),
            "such as: attention query = H, key = G, lane = D, keys = S",
        ),
        (
            "tokens",
            token_part_mistakes(module.token_parts, "B", dims),
            "each token once: tokens dim = B_first, first = 0, then one for the others",
        ),
        (
            "ranks",
            rank_mistakes(module.ranks, dims, module.level),
            "such as: ranks count = 2, and a line: part dim = F_rank, whole = F",
        ),
        (
            "paired",
            paired_mistakes(module.paired, _weights(module), dims),
            "names of weights and a dim of each, such as: paired wq = D",
        ),
    ):
        for words in mistakes:
            yield line, words, help


def _weights(module: Module) -> dict[str, TensorType]:
    """What the host packs, by name."""
    params = (p.value for f in module.functions for p in f.params if p.role == "weight")
    found = {value.name: value.type for value in params if isinstance(value.type, TensorType)}
    return found | {port.name: port.tensor for port in module.ports if port.direction == "in"}
