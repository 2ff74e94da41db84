"""Norms and products of all tokens of a chunk as launches."""

from __future__ import annotations

from functools import partial

from meshc.analysis.cuda.blocks import FRAGMENT, THREADS
from meshc.backends.cuda.gathering import Step
from meshc.backends.cuda.kernels.arena import Arena
from meshc.backends.cuda.kernels.rows_product import chunk
from meshc.backends.cuda.kernels.rows_product.chunk import ChunkProduct
from meshc.backends.cuda.launches import Launch
from meshc.backends.cuda.program import Buffer

_NORM_THREADS = 256


def columns(step: Step, name: str, width: int) -> str:
    """A buffer for ``width`` values of each token of a chunk, as products read them; its name."""
    own = step.own(name)
    shape = -(-width // FRAGMENT), step.columns, FRAGMENT
    step.buffers[own] = Buffer(step.dtype, shape, "scratch")
    return own


def normed(
    step: Step, name: str, source: str, gain: str, width: int, epsilon: float
) -> list[Launch]:
    """The norm of ``source`` by a kernel called ``name``, into the columns ``normed``. Raises
    DoesNotFit."""
    tokens = step.columns
    text = partial(chunk.norm_text, tokens=tokens, width=width, dtype=step.dtype, epsilon=epsilon)
    made = step.add_kernel(
        step.own(name), text, chunk.norm_blocks(tokens), 1, Arena(), _NORM_THREADS
    )
    return [Launch(made, (source, gain, step.own("count"), columns(step, "normed", width)))]


def product(
    step: Step, name: str, shape: ChunkProduct, source: str, weights: tuple[str, ...],
    given: tuple[str, ...],
) -> Launch:  # fmt: skip
    """The product of ``source`` with ``weights``, a matrix and a bias where there is one, by a
    kernel called ``name``; ``given`` are what is added, if anything, and the output. Raises
    DoesNotFit."""
    plan = chunk.plan(shape, step.device)
    text = partial(chunk.text, plan)
    made = step.add_kernel(step.own(name), text, plan.blocks, 1, plan.arena, THREADS)
    return Launch(made, (source, *weights, step.own("count"), *given))
