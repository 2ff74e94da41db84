"""Products of warpgroups on a GPU beside those of NumPy, before kernels rely on them.

How tensor cores read the columns of such a product is said by a word of bits, and what they make
of another word is other numbers, not a fault. So a program with such products is preceded by one
of small whole numbers, whose sums are exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.driver.launch import Kernel
from meshc.backends.cuda.executor import Grid
from meshc.backends.templates import render
from meshc.support.diagnostics import fail

NAME, _CALL = "check_products", "multiply_64x16("
_ROWS, _COLUMNS, _WIDTH, _THREADS = 64, 256, 32, 128
_SHARED_BYTES = 2 * _WIDTH * (_ROWS + _COLUMNS)

TEXT = render(
    "meshc.backends.cuda",
    "check_products.cu.jinja",
    kernel=NAME,
    rows=_ROWS,
    columns=_COLUMNS,
    width=_WIDTH,
    threads=_THREADS,
)


def has_products(texts: Sequence[str]) -> bool:
    """Whether any of ``texts`` multiplies by warpgroups."""
    return any(_CALL in text for text in texts)


def check_products(device: Device, kernel: Kernel) -> None:
    """Multiply by ``kernel``, that of :data:`TEXT`. Raises MeshcError ``cuda-products`` for other
    numbers than those of NumPy."""
    rng = np.random.default_rng(0)
    rows, columns = (
        rng.integers(-8, 9, (count, _WIDTH)).astype(np.float16) for count in (_ROWS, _COLUMNS)
    )
    wanted = columns.astype(np.float32) @ rows.astype(np.float32).T
    memory = [device.upload(one) for one in (rows, columns, np.zeros_like(wanted))]
    kernel.launch(Grid(1, _THREADS, 1, _SHARED_BYTES), memory, device.stream)
    found = memory[-1].read(np.float32, wanted.shape)
    for one in memory:
        one.free()
    if (found != wanted).any():
        fail(
            "cuda-products",
            f"tensor cores of this GPU give {(found != wanted).mean():.0%} other products of "
            "warpgroups than those that kernels of prompts are made for",
            help="--chunk 16 lets tasks read prompts, whose products warps make; please report it",
        )
