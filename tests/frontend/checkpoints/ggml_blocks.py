"""One block of each encoding of ggml as numbers, element by element.

Written from the block structures in ``ggml-common.h`` and the formulas of ``dequantize_row_*`` in
``ggml-quants.c``, without the ``gguf`` package, so that it can judge what that package decodes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _half(block: bytes, at: int) -> np.float32:
    return np.float32(struct.unpack_from("<e", block, at)[0])


def _nibble(codes: bytes, i: int) -> int:
    """Element ``i`` of 32: the low halves of 16 bytes come first, their high halves behind."""
    return codes[i] & 15 if i < 16 else codes[i - 16] >> 4


def _fifth(bits: bytes, i: int) -> int:
    return int.from_bytes(bits, "little") >> i & 1


def _q4_0(block: bytes) -> list[np.float32]:
    return [_half(block, 0) * np.float32(_nibble(block[2:], i) - 8) for i in range(32)]


def _q4_1(block: bytes) -> list[np.float32]:
    scale, least = _half(block, 0), _half(block, 2)
    return [scale * np.float32(_nibble(block[4:], i)) + least for i in range(32)]


def _q5_0(block: bytes) -> list[np.float32]:
    codes = [_nibble(block[6:], i) | _fifth(block[2:6], i) << 4 for i in range(32)]
    return [_half(block, 0) * np.float32(code - 16) for code in codes]


def _q5_1(block: bytes) -> list[np.float32]:
    codes = [_nibble(block[8:], i) | _fifth(block[4:8], i) << 4 for i in range(32)]
    return [_half(block, 0) * np.float32(code) + _half(block, 2) for code in codes]


def _q8_0(block: bytes) -> list[np.float32]:
    return [_half(block, 0) * np.float32(code) for code in struct.unpack_from("<32b", block, 2)]


def _iq4_nl(block: bytes) -> list[np.float32]:
    return [_half(block, 0) * np.float32(IQ4_VALUES[_nibble(block[2:], i)]) for i in range(32)]


def _mxfp4(block: bytes) -> list[np.float32]:
    """A sign, two bits of an exponent and one of a fraction, times a power of two."""
    found = []
    for i in range(32):
        code = _nibble(block[1:], i)
        exponent, fraction = code >> 1 & 3, code & 1
        size = (2 + fraction) * 2.0 ** (exponent - 2) if exponent else fraction / 2
        found.append(np.float32((-size if code & 8 else size) * 2.0 ** (block[0] - 127)))
    return found


def _scale_and_min(packed: bytes, group: int) -> tuple[int, int]:
    """Six bits each, of one of eight groups, in twelve bytes (``get_scale_min_k4``)."""
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    low, high = packed[group + 4], (packed[group - 4] >> 6, packed[group] >> 6)
    return low & 15 | high[0] << 4, low >> 4 | high[1] << 4


def _k_groups(block: bytes, code: Callable[[int], int]) -> list[np.float32]:
    """Eight groups of 32 codes with scales and minima, of Q4_K and Q5_K."""
    scale, least = _half(block, 0), _half(block, 2)
    found = []
    for i in range(256):
        own_scale, own_min = map(np.float32, _scale_and_min(block[4:16], i // 32))
        found.append(scale * own_scale * np.float32(code(i)) - least * own_min)
    return found


def _k_nibble(codes: bytes, i: int) -> int:
    """Of 64 elements, the low halves of 32 bytes come first, their high halves behind."""
    byte = codes[i // 64 * 32 + i % 32]
    return byte >> 4 if i % 64 >= 32 else byte & 15


def _q4_k(block: bytes) -> list[np.float32]:
    return _k_groups(block, lambda i: _k_nibble(block[16:], i))


def _q5_k(block: bytes) -> list[np.float32]:
    high = block[16:48]
    return _k_groups(block, lambda i: _k_nibble(block[48:], i) | (high[i % 32] >> i // 32 & 1) << 4)


def _q6_k(block: bytes) -> list[np.float32]:
    low, high, scales = block[:128], block[128:192], struct.unpack_from("<16b", block, 192)
    found = []
    for i in range(256):
        half, place = divmod(i, 128)
        quarter, lane = divmod(place, 32)
        byte = low[64 * half + lane + 32 * (quarter % 2)]
        nibble = byte >> 4 if quarter >= 2 else byte & 15
        code = nibble | (high[32 * half + lane] >> 2 * quarter & 3) << 4
        found.append(_half(block, 208) * np.float32(scales[i // 16]) * np.float32(code - 32))
    return found


DECODERS: dict[str, Callable[[bytes], list[np.float32]]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "MXFP4": _mxfp4,
}

# Where the 16-bit floats of a block stand.
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "MXFP4": (),
}
