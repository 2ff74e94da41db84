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


def _q2_k(block: bytes) -> list[np.float32]:
    """Sixteen groups of 16 codes, whose scales and minima have 4 bits each."""
    scale, least = _half(block, 80), _half(block, 82)
    found = []
    for i in range(256):
        own, code = block[i // 16], _quarter(block[16:80], i)
        found.append(scale * np.float32(own & 15) * np.float32(code) - least * np.float32(own >> 4))
    return found


def _quarter(codes: bytes, i: int) -> int:
    """Element ``i`` of 256: of 128 elements, 32 bytes have the lowest two bits of the first 32."""
    half, place = divmod(i, 128)
    return codes[32 * half + place % 32] >> 2 * (place // 32) & 3


def _q3_k(block: bytes) -> list[np.float32]:
    """Sixteen groups of 16 codes of 3 bits, the highest of them apart; scales have 6 bits, the
    lowest four of them in eight bytes, the others in four."""
    high, packed, found = block[:32], block[96:108], []
    for i in range(256):
        group = i // 16
        low = packed[group % 8] >> 4 * (group // 8) & 15
        own = low | (packed[8 + group % 4] >> 2 * (group // 4) & 3) << 4
        code = _quarter(block[32:96], i) | (high[i % 32] >> i // 32 & 1) << 2
        found.append(_half(block, 108) * np.float32(own - 32) * np.float32(code - 4))
    return found


def _iq4_xs(block: bytes) -> list[np.float32]:
    """Eight groups of 32 codes, whose scales of 6 bits lie in two and in four bits."""
    high, low, codes = int.from_bytes(block[2:4], "little"), block[4:8], block[8:]
    found = []
    for i in range(256):
        group = i // 32
        own = low[group // 2] >> 4 * (group % 2) & 15 | (high >> 2 * group & 3) << 4
        value = IQ4_VALUES[_nibble(codes[16 * group : 16 * group + 16], i % 32)]
        found.append(_half(block, 0) * np.float32(own - 32) * np.float32(value))
    return found


def _tq1_0(block: bytes) -> list[np.float32]:
    """Five digits of base 3 in a byte, as a fraction of 256: 32 bytes with 160 of them, 16 with 80
    and 4 bytes with four digits each."""
    places = [(n, m) for n in range(5) for m in range(32)]
    places += [(n, 32 + m) for n in range(5) for m in range(16)]
    places += [(n, 48 + m) for n in range(4) for m in range(4)]
    digits = [(block[m] * 3**n & 255) * 3 >> 8 for n, m in places]
    return [_half(block, 52) * np.float32(digit - 1) for digit in digits]


def _tq2_0(block: bytes) -> list[np.float32]:
    return [_half(block, 64) * np.float32(_quarter(block, i) - 1) for i in range(256)]


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
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
    "MXFP4": _mxfp4,
}

# Codes that name points of grids, which are tables of ggml: `tests/data/ggml_blocks.json` has
# numbers of its library.
GRIDS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")

# Where the 16-bit floats of a block stand.
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    "IQ1_S": (0,),
    "IQ1_M": (),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
    "MXFP4": (),
}
