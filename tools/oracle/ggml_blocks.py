"""Record what ggml makes of blocks whose codes name points of its grids.

Usage: python tools/oracle/ggml_blocks.py LIBRARY [tests/data/ggml_blocks.json]

LIBRARY is ``libggml-base.so`` of a built llama.cpp, which packages of Node and of Python ship. For
each encoding two blocks are drawn, and their numbers are those of ``dequantize_row_NAME``.
"""

from __future__ import annotations

import base64
import ctypes
import json
import sys
from pathlib import Path

import numpy as np

BYTES = {
    "IQ1_S": 50,
    "IQ1_M": 56,
    "IQ2_XXS": 66,
    "IQ2_XS": 74,
    "IQ2_S": 82,
    "IQ3_XXS": 98,
    "IQ3_S": 110,
}
"""Of a block of 256 elements."""
_BLOCKS = 2


def record(library: ctypes.CDLL, name: str) -> dict[str, str]:
    """Blocks of the encoding ``name`` in hexadecimal digits, their float32 numbers in base64."""
    random = np.random.default_rng(len(name))
    blocks = random.integers(0, 256, (_BLOCKS, BYTES[name]), dtype=np.uint8)
    numbers = np.full((_BLOCKS, 256), np.nan, "<f4")
    while not np.isfinite(numbers).all():
        blocks[:, :2] = random.integers(0, 256, (_BLOCKS, 2))
        blocks[:, 48:56] = random.integers(0, 256, blocks[:, 48:56].shape)
        decode = getattr(library, f"dequantize_row_{name.lower()}")
        decode.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        decode.restype = None
        decode(blocks.ctypes.data, numbers.ctypes.data, numbers.size)
    return {"blocks": blocks.tobytes().hex(), "numbers": base64.b64encode(numbers).decode()}


def main() -> None:
    """Write the file."""
    library = ctypes.CDLL(sys.argv[1])
    target = Path(sys.argv[2] if len(sys.argv) > 2 else "tests/data/ggml_blocks.json")
    found = {name: record(library, name) for name in BYTES}
    target.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
