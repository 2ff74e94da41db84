"""Values that a loop over layers carries in parts: each core its own rows, normalised by rows."""

from __future__ import annotations

from collections.abc import Sequence

from meshc.ir.core import Block, Op, tensor_type
from meshc.ir.ops import mesh as ops
from meshc.ir.rewriter import Rewriter
from meshc.ir.types import Layout, TensorType
from meshc.ir.values import Value


def carry_own_rows(rewriter: Rewriter) -> None:
    """Let a loop carry a core's own rows of a value that its body takes apart (``part``) and puts
    together at its end (``all_gather``).

    A norm of such a value is computed by rows, in the body and behind the loop, and what is
    normalised is gathered in its place; any other use has the value gathered in front of it.
    """
    for block in list(rewriter.blocks()):
        for loop in [op for op in block.ops if isinstance(op, ops.Repeat)]:
            for position in range(loop.carried):
                _carry(rewriter, block, loop, position)


def _carry(rewriter: Rewriter, block: Block, loop: ops.Repeat, position: int) -> None:
    (body,) = loop.regions
    arg, ending = body.args[position], body.ops[-1].operands[position]
    gather = next((op for op in body.ops if ending in op.results), None)
    if not isinstance(gather, ops.AllGather):
        return
    end = gather.tensors()[0]
    own, whole = tensor_type(end), tensor_type(arg)
    users = rewriter.users(arg)
    part = next((op for op in users if isinstance(op, ops.Part) and op.result.type == own), None)
    if part is None or part not in body.ops or (part.axis, part.dim) != (gather.axis, gather.dim):
        return
    result = loop.results[position]
    uses = [(arg, body, [op for op in users if op is not part])]
    uses.append((result, block, rewriter.users(result)))
    _enter(rewriter, block, loop, position, part)
    rewriter.replace_op(part, [arg])
    body.ops[-1].operands[position] = end
    if not rewriter.users(gather.result):
        rewriter.erase(gather)
    for value, within, others in uses:
        value.type = own
        left = _normalise_by_rows(rewriter, within, value, part, others)
        _gather_for(rewriter, within, value, whole, part, left)


def _enter(
    rewriter: Rewriter, block: Block, loop: ops.Repeat, position: int, part: ops.Part
) -> None:
    """Give the loop what ``part`` takes of its first value, which may be there already."""
    first = loop.tensors()[position]
    gather = next((op for op in block.ops if first in op.results), None)
    if isinstance(gather, ops.AllGather) and tensor_type(gather.operands[0]) == part.result.type:
        loop.operands[position] = gather.operands[0]
        if not rewriter.users(first):
            rewriter.erase(gather)
        return
    entering = ops.Part([first], axis=part.axis, dim=part.dim)
    name, kinds = f"{first.name}.own", [part.result.type]
    loop.operands[position] = rewriter.before(loop).add(entering, name, types=kinds)[0]


def _normalise_by_rows(
    rewriter: Rewriter, block: Block, value: Value, part: ops.Part, users: Sequence[Op]
) -> list[Op]:
    """Norms among the ``users`` of a value that is now in parts as ``part`` gives them; the other
    users."""
    own = tensor_type(value)
    left = list(users)
    for squares in users:
        readers = rewriter.users(squares.result) if isinstance(squares, ops.SquareSum) else []
        scale = readers[0] if len(readers) == 1 else None
        if not isinstance(scale, ops.RmsScale) or scale not in left or squares not in block.ops:
            continue
        taken = scale.operands[0] is value and scale.operands[2] is not value
        if not taken or scale not in block.ops or part.dim in (scale.dim, *scale.also):
            continue
        sums, normed = tensor_type(squares.result), tensor_type(scale.result)
        squares.result.type = sums.with_layout(_restricted(own, sums.dims))
        scale.result.type = own
        gather = ops.AllGather([scale.result], axis=part.axis, dim=part.dim)
        name = scale.result.name
        rewriter.rename(scale.result, f"{name}.own")
        (gathered,) = rewriter.after(scale).add(gather, name, types=[normed])
        rewriter.replace_uses({scale.result: gathered})
        gather.operands = [scale.result]
        left = [op for op in left if op is not squares and op is not scale]
    return left


def _restricted(kind: TensorType, dims: Sequence[str]) -> Layout:
    """How ``dims`` of a value lie."""
    layout = kind.layout or Layout()
    return Layout(tuple(split for split in layout.splits if split.dim in dims))


def _gather_for(
    rewriter: Rewriter,
    block: Block,
    value: Value,
    whole: TensorType,
    part: ops.Part,
    users: Sequence[Op],
) -> None:
    """All rows of ``value`` in front of the first of ``users``, for them."""
    if not users:
        return
    first = next(op for op in block.ops if any(user in (op, *_inside(op)) for user in users))
    gather = ops.AllGather([value], axis=part.axis, dim=part.dim)
    (gathered,) = rewriter.before(first).add(gather, f"{value.name}.all", types=[whole])
    for user in users:
        user.operands = [gathered if operand is value else operand for operand in user.operands]


def _inside(op: Op) -> list[Op]:
    return [inner for region in op.regions for inner in region.walk()]
