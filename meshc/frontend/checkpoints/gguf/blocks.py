"""The codes and scales of blocks of GGUF files, without making numbers of them.

A row is ``[blocks, bytes]``, in the order of ``meshc.ir.codes``: what ggml stores from -128 or -32
on begins at 0 here, and a least number is the negative of ggml's ``min``. Source: the block
structures of ``ggml-common.h`` and the functions ``dequantize_row`` of ``ggml-quants.c``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshc.frontend.checkpoints.tensor_source import Encoded
from meshc.ir.stored import E2M1


def _numbers(blocks: np.ndarray) -> np.ndarray:
    """Neighbouring numbers of f16, as float32."""
    return np.ascontiguousarray(blocks).view("<f2").astype(np.float32)


def _row(codes: np.ndarray) -> np.ndarray:
    """Codes ``[.., blocks, elements]`` as rows."""
    return codes.reshape(*codes.shape[:-2], -1)


def _halves(codes: np.ndarray) -> np.ndarray:
    """Codes of four bits, those in the low halves of all bytes first."""
    return np.concatenate((codes & np.uint8(15), codes >> np.uint8(4)), axis=-1)


def _fields(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes of so many bits: of 32 bytes first the lowest of all, then the next ones."""
    parts = codes.reshape(*codes.shape[:-1], -1, 1, 32)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return (parts >> shifts & np.uint8((1 << bits) - 1)).reshape(*codes.shape[:-1], -1)


def _fifth_bits(blocks: np.ndarray) -> np.ndarray:
    """Bits of a word of 32 of them, as the highest of five."""
    return np.unpackbits(blocks, axis=-1, bitorder="little") << np.uint8(4)


def _q4_0(blocks: np.ndarray) -> Encoded:
    return Encoded(_row(_halves(blocks[..., 2:])), _numbers(blocks[..., :2])[..., 0])


def _q4_1(blocks: np.ndarray) -> Encoded:
    numbers = _numbers(blocks[..., :4])
    return Encoded(_row(_halves(blocks[..., 4:])), numbers[..., 0], numbers[..., 1])


def _q5_0(blocks: np.ndarray) -> Encoded:
    codes = _halves(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6])
    return Encoded(_row(codes), _numbers(blocks[..., :2])[..., 0])


def _q5_1(blocks: np.ndarray) -> Encoded:
    codes, numbers = _halves(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8]), blocks[..., :4]
    found = _numbers(numbers)
    return Encoded(_row(codes), found[..., 0], found[..., 1])


def _q8_0(blocks: np.ndarray) -> Encoded:
    codes = blocks[..., 2:] ^ np.uint8(0x80)  # from -128 .. to 0 ..
    return Encoded(_row(codes), _numbers(blocks[..., :2])[..., 0])


def _mxfp4(blocks: np.ndarray) -> Encoded:
    with np.errstate(over="ignore"):
        scales = np.ldexp(np.float32(1.0), blocks[..., 0].astype(np.int32) - 127)
    return Encoded(_row(_halves(blocks[..., 1:])).view(E2M1), scales)


def _lifted(codes: np.ndarray, scales: np.ndarray, least: np.ndarray, both: np.ndarray) -> Encoded:
    """Codes of a K-quant whose scales and least numbers are codes, of the two units ``both``."""
    units = _numbers(both)
    first, second = (_row(part).astype(np.float32) for part in (scales, least))
    return Encoded(_row(codes), first, second, units[..., 0], -units[..., 1])


def _q2_k(blocks: np.ndarray) -> Encoded:
    scales = blocks[..., :16]
    codes = _fields(blocks[..., 16:80], 2)
    return _lifted(codes, scales & np.uint8(15), scales >> np.uint8(4), blocks[..., 80:84])


def _q3_k(blocks: np.ndarray) -> Encoded:
    high = _fields(blocks[..., :32], 1) << np.uint8(2)
    codes = _fields(blocks[..., 32:96], 2) | high
    low, more = blocks[..., 96:104], blocks[..., 104:108]
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    upper = (more[..., None, :] >> shifts & np.uint8(3)).reshape(*more.shape[:-1], 16)
    scales = _row(_halves(low) | upper << np.uint8(4)).astype(np.float32)
    return Encoded(_row(codes), scales, units=_numbers(blocks[..., 108:110])[..., 0])


def _scales_of_k(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eight scales and eight least numbers of six bits, of twelve bytes."""
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    high = [(one >> np.uint8(2)) & np.uint8(0x30) for one in (first, second)]
    low = (third & np.uint8(15), third >> np.uint8(4))
    found = [
        np.concatenate((one & np.uint8(63), own | above), axis=-1)
        for one, own, above in zip((first, second), low, high, strict=True)
    ]
    return found[0], found[1]


def _q4_k(blocks: np.ndarray) -> Encoded:
    scales, least = _scales_of_k(blocks[..., 4:16])
    return _lifted(_fields(blocks[..., 16:], 4), scales, least, blocks[..., :4])


def _q5_k(blocks: np.ndarray) -> Encoded:
    scales, least = _scales_of_k(blocks[..., 4:16])
    codes = _fields(blocks[..., 48:], 4) | _fields(blocks[..., 16:48], 1) << np.uint8(4)
    return _lifted(codes, scales, least, blocks[..., :4])


def _q6_k(blocks: np.ndarray) -> Encoded:
    low = blocks[..., :128].reshape(*blocks.shape[:-1], 2, 64)
    codes = _halves(low).reshape(*blocks.shape[:-1], 256)
    codes = codes | _fields(blocks[..., 128:192], 2) << np.uint8(4)
    scales = _row(blocks[..., 192:208] ^ np.uint8(0x80)).astype(np.float32)
    return Encoded(_row(codes), scales, units=_numbers(blocks[..., 208:210])[..., 0])


CODES_OF: dict[int, Callable[[np.ndarray], Encoded]] = {
    2: _q4_0,
    3: _q4_1,
    6: _q5_0,
    7: _q5_1,
    8: _q8_0,
    10: _q2_k,
    11: _q3_k,
    12: _q4_k,
    13: _q5_k,
    14: _q6_k,
    39: _mxfp4,
}
"""By the number that files have of an encoding: of blocks ``[.., blocks, bytes]`` their codes and
scales."""
