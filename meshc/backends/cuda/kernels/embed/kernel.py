"""The look-up of embeddings."""

from __future__ import annotations

from meshc.backends.cuda.kernels.chunk_tiles import optional_factor
from meshc.backends.templates import render

THREADS = 256


def text(
    name: str, hidden: int, vocabulary: int, dtype: str, sums: str = "f32", factor: float = 1.0
) -> str:
    """The kernel called ``name`` that looks up rows of ``hidden`` values, times ``factor``;
    ``sums`` is the type of the zeros that it leaves for sums."""
    return render(
        "meshc.backends.cuda.kernels.embed",
        "embed.cu.jinja",
        kernel=name,
        dtype=dtype,
        hidden=hidden,
        vocabulary=vocabulary,
        rounded_sums=sums != "f32",
        factor=optional_factor(factor),
    )
