"""The encodings of tensors in GGUF files that meshc reads.

A row is stored as blocks, each of which has codes and what turns them into numbers. Source: ggml's
type table (``ggml_type`` and the block structures in ``ggml-common.h``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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
    10: Encoding("Q2_K", 256, 84),
    11: Encoding("Q3_K", 256, 110),
    12: Encoding("Q4_K", 256, 144),
    13: Encoding("Q5_K", 256, 176),
    14: Encoding("Q6_K", 256, 210),
    16: Encoding("IQ2_XXS", 256, 66),
    17: Encoding("IQ2_XS", 256, 74),
    18: Encoding("IQ3_XXS", 256, 98),
    19: Encoding("IQ1_S", 256, 50),
    20: Encoding("IQ4_NL", 32, 18),
    21: Encoding("IQ3_S", 256, 110),
    22: Encoding("IQ2_S", 256, 82),
    23: Encoding("IQ4_XS", 256, 136),
    29: Encoding("IQ1_M", 256, 56),
    30: Encoding("BF16", 1, 2),
    34: Encoding("TQ1_0", 256, 54),
    35: Encoding("TQ2_0", 256, 66),
    39: Encoding("MXFP4", 32, 17),
}
"""By the number that files have of it."""

MXFP4 = 39

# Numbers of 4 bits (e2m1), times 2: the sign is the highest bit.
_E2M1 = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), np.float32)


def decode_mxfp4(rows: np.ndarray) -> np.ndarray:
    """The float32 numbers of ``rows`` of MXFP4 blocks, uint8 [rows, bytes]: a byte, the exponent of
    a power of two, and 16 bytes with two codes each. Older ``gguf`` packages do not decode them."""
    blocks = rows.reshape(len(rows), -1, 17)
    scales = np.ldexp(np.float32(1.0), blocks[..., :1].astype(np.int32) - 128)
    codes = blocks[..., 1:]
    numbers = _E2M1[np.concatenate((codes & np.uint8(15), codes >> np.uint8(4)), axis=-1)]
    return np.asarray(scales * numbers).reshape(len(rows), -1)
