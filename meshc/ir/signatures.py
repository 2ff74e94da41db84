"""How many operands, results and regions each op has: what the verifier holds text against."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.ir.core import Op
from meshc.ir.ops.tile import Compute

_MANY = 1 << 30


@dataclass(frozen=True)
class Signature:
    """Bounds of the operand count, results (None: as many as the op's text gives), regions."""

    least: int
    most: int
    results: int | None = 1
    regions: int = 0


_UNARY, _BINARY = Signature(1, 1), Signature(2, 2)
_PRODUCT = Signature(2, _MANY, None)
_END = Signature(0, _MANY, 0)
_LOOP = Signature(1, _MANY, None, 1)

SIGNATURES: dict[str, Signature] = {
    "graph.matmul": _PRODUCT,
    "graph.transpose": _UNARY,
    "graph.add": _BINARY,
    "graph.mul": _BINARY,
    "graph.scale": _UNARY,
    "graph.silu": _UNARY,
    "graph.gelu": _UNARY,
    "graph.rms_norm": _BINARY,
    "graph.rope": _UNARY,
    "graph.softmax": _UNARY,
    "graph.append": _BINARY,
    "graph.embed": _BINARY,
    "graph.repeat": _LOOP,
    "graph.fuse": _LOOP,
    "graph.yield": _END,
    "graph.return": _END,
    "mesh.gemv": _PRODUCT,
    "mesh.gemm": _PRODUCT,
    "mesh.gemm_t": _PRODUCT,
    "mesh.all_reduce": Signature(1, _MANY, None),
    "mesh.reduce": Signature(1, _MANY, None),
    "mesh.broadcast": _UNARY,
    "mesh.gather": _UNARY,
    "mesh.scatter": _UNARY,
    "mesh.all_gather": _UNARY,
    "mesh.reduce_scatter": _UNARY,
    "mesh.shift": _UNARY,
    "mesh.part": _UNARY,
    "mesh.relayout": _UNARY,
    "mesh.append": Signature(2, 4, None),
    "mesh.row_max": _UNARY,
    "mesh.at_least": _UNARY,
    "mesh.mask": _UNARY,
    "mesh.exp_sub": _BINARY,
    "mesh.row_sum": _UNARY,
    "mesh.square_sum": _UNARY,
    "mesh.rms_scale": Signature(3, 3),
    "mesh.inverse_rms": _UNARY,
    "mesh.rope": _UNARY,
    "mesh.add": _BINARY,
    "mesh.mul": _BINARY,
    "mesh.div": _BINARY,
    "mesh.scale": _UNARY,
    "mesh.silu": _UNARY,
    "mesh.gelu": _UNARY,
    "mesh.repeat": _LOOP,
    "mesh.yield": _END,
    "mesh.return": _END,
    "tile.send": _BINARY,
    "tile.recv": _BINARY,
    "tile.relay": Signature(3, 3),
    "tile.wait": Signature(1, _MANY, 0),
    "tile.for": Signature(0, 0, 0, 1),
    "tile.sweep": Signature(0, 0, 0, 1),
}


def signature_of(op: Op) -> Signature:
    """The signature of ``op``; that of a microkernel comes from its catalogue entry."""
    if isinstance(op, Compute):
        count = len(op.signature.operands)
        return Signature(count, count, 0)
    return SIGNATURES[op.NAME]


def count_mistake(op: Op) -> str | None:
    """What is wrong with the number of operands, results or regions, or None."""
    wanted = signature_of(op)
    given = len(op.operands)
    if not wanted.least <= given <= wanted.most:
        return f"takes {_range(wanted)} operands, not {given}"
    if wanted.results is not None and len(op.results) != wanted.results:
        return f"gives {wanted.results} results, not {len(op.results)}"
    if len(op.regions) != wanted.regions:
        return f"has {wanted.regions} regions, not {len(op.regions)}"
    return None


def _range(signature: Signature) -> str:
    if signature.least == signature.most:
        return str(signature.least)
    if signature.most == _MANY:
        return f"at least {signature.least}"
    return f"{signature.least} to {signature.most}"
