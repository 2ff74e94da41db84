"""The kernels that fused ops become, by their names."""

from __future__ import annotations

from meshc.backends.cuda.kernels.chunk_attention.launch import AttentionBlock
from meshc.backends.cuda.kernels.embed.launch import Embed
from meshc.backends.cuda.kernels.ffn_block.launch import FeedForward
from meshc.backends.cuda.kernels.fused import FusedKernel
from meshc.backends.cuda.kernels.head.launch import Head
from meshc.ir.ops import graph
from meshc.support.diagnostics import fail

KERNELS: tuple[FusedKernel, ...] = (AttentionBlock(), FeedForward(), Head(), Embed())

_BY_NAME = {kernel.NAME: kernel for kernel in KERNELS}


def kernel_of(op: graph.Fuse) -> FusedKernel:
    """The kernel of a fused op. Raises ``cuda-graph`` for a name that none has, and for operands
    that are not the kernel's."""
    found = _BY_NAME.get(op.kernel)
    if found is None:
        known = ", ".join(_BY_NAME)
        fail("cuda-graph", f"there is no kernel '{op.kernel}', but {known}", op.span)
    found.check_operands(op)
    return found
