"""The encodings of tensors in GGUF files that meshc reads.

A row is stored as blocks, each of which has codes and what turns them into numbers. Source: ggml's
type table (``ggml_type`` and the block structures in ``ggml-common.h``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Encoding:
    """One type of tensors: ``block_bytes`` bytes hold ``elements`` elements of a row."""

    name: str
    elements: int
    block_bytes: int


ENCODINGS: dict[int, Encoding] = {
    0: Encoding("F32", 1, 4),
    1: Encoding("F16", 1, 2),
    2: Encoding("Q4_0", 32, 18),
    3: Encoding("Q4_1", 32, 20),
    6: Encoding("Q5_0", 32, 22),
    7: Encoding("Q5_1", 32, 24),
    8: Encoding("Q8_0", 32, 34),
    12: Encoding("Q4_K", 256, 144),
    13: Encoding("Q5_K", 256, 176),
    14: Encoding("Q6_K", 256, 210),
    20: Encoding("IQ4_NL", 32, 18),
    30: Encoding("BF16", 1, 2),
}
"""By the number that files have of it."""
