"""Norms and products of all tokens of a chunk as launches."""

from __future__ import annotations

from functools import partial

from meshc.analysis.cuda.blocks import FRAGMENT, THREADS
from meshc.backends.cuda.chunk import Chunk
from meshc.backends.cuda.kernels.arena import Arena
from meshc.backends.cuda.kernels.chunk_product import kernel
from meshc.backends.cuda.kernels.chunk_product.kernel import ChunkProduct
from meshc.backends.cuda.launches import Launch
from meshc.backends.cuda.program import Buffer

_NORM_THREADS = 256


def columns(chunk: Chunk, name: str, width: int) -> str:
    """A buffer for ``width`` values of each token of a chunk, as products read them; its name."""
    own = chunk.own(name)
    shape = -(-width // FRAGMENT), chunk.tokens, FRAGMENT
    chunk.buffers[own] = Buffer(chunk.dtype, shape, "scratch")
    return own


def normed(
    chunk: Chunk, name: str, source: str, gain: str, width: int, epsilon: float
) -> list[Launch]:
    """The norm of ``source`` by a kernel called ``name``, into the columns ``normed``. Raises
    DoesNotFit."""
    tokens = chunk.tokens
    text = partial(kernel.norm_text, tokens=tokens, width=width, dtype=chunk.dtype, epsilon=epsilon)
    made = chunk.add_kernel(
        chunk.own(name), text, kernel.norm_blocks(tokens), Arena(), _NORM_THREADS
    )
    return [Launch(made, (source, gain, chunk.own("count"), columns(chunk, "normed", width)))]


def product(
    chunk: Chunk, name: str, shape: ChunkProduct, source: str, weights: tuple[str, ...],
    given: tuple[str, ...],
) -> Launch:  # fmt: skip
    """The product of ``source`` with ``weights``, a matrix and a bias where there is one, by a
    kernel called ``name``; ``given`` are what is added, if anything, and the output. Raises
    DoesNotFit."""
    plan = kernel.plan(shape, chunk.device)
    text = partial(kernel.text, plan)
    cluster = plan.tile.cluster
    made = chunk.add_kernel(
        chunk.own(name), text, plan.blocks, plan.arena, THREADS, cluster=cluster
    )
    return Launch(made, (source, *weights, chunk.own("count"), *given))
