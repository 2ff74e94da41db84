"""Weights of AWQ and GPTQ: 4 bits of each in words of 32, with scales and zero points of groups.

An element is ``(code - zero) * scale``. Both store a weight of ``inputs`` and ``outputs`` as

| tensor | AWQ | GPTQ |
|---|---|---|
| ``qweight`` | I32 [inputs, outputs / 8] | I32 [inputs / 8, outputs] |
| ``qzeros`` | I32 [groups, outputs / 8] | I32 [groups, outputs / 8] |
| ``scales`` | F16 [groups, outputs] | F16 [groups, outputs] |
| ``g_idx`` | | I32 [inputs], the group of each input |

Nibble i of a word, from the low end, is element i of eight; in AWQ it is element `_AWQ_ORDER` [i].
GPTQ stores zero points less 1, in ``gptq_v2`` as they are. Sources: ``WQLinear_GEMM`` of AutoAWQ
and ``QuantLinear`` of AutoGPTQ, their methods ``from_linear`` and ``pack``.
"""

from __future__ import annotations

import numpy as np

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_CHUNK_ELEMENTS = 1 << 22


def nibbles(words: np.ndarray) -> np.ndarray:
    """The 4-bit codes of words int32 [rows, n]: uint8 [rows, n, 8], from the low end."""
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    found = words.view(np.uint32)[..., None] >> shifts & np.uint32(15)
    return found.astype(np.uint8)


def awq_codes(words: np.ndarray) -> np.ndarray:
    """The codes of AWQ words int32 [rows, n]: uint8 [rows, 8 n], one for each output."""
    stored = nibbles(words)
    codes = np.empty_like(stored)
    codes[..., list(_AWQ_ORDER)] = stored
    return codes.reshape(len(words), -1)


def gptq_weight_codes(words: np.ndarray) -> np.ndarray:
    """The codes of GPTQ weights, words int32 [n, outputs]: uint8 [8 n, outputs]."""
    return nibbles(words).swapaxes(1, 2).reshape(-1, words.shape[1])


def gptq_zero_codes(words: np.ndarray) -> np.ndarray:
    """The codes of GPTQ zero points, words int32 [groups, n]: uint8 [groups, 8 n]."""
    return nibbles(words).reshape(len(words), -1)


def decoded(
    codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray, group_of: np.ndarray
) -> np.ndarray:
    """The weight float32 [outputs, inputs] of ``codes`` uint8 [inputs, outputs], with ``zeros`` and
    ``scales`` [groups, outputs] and the group of each input."""
    inputs, outputs = codes.shape
    found = np.empty((outputs, inputs), np.float32)
    step = max(1, _CHUNK_ELEMENTS // max(outputs, 1))
    for start in range(0, inputs, step):
        own = group_of[start : start + step]
        centred = codes[start : start + step].astype(np.float32) - zeros[own]
        found[:, start : start + step] = (centred * scales[own]).T
    return found
