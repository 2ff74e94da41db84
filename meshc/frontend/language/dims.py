"""What ``@``, ``+`` and ``transpose`` do to named dims. Pure functions on tuples of names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from meshc.ir.ops.graph import matmul_dims

BATCH = "B"
ROWS = "L"
CAPACITY = "S"

Dims = tuple[str, ...]
HeadPair = tuple[str, str]


@dataclass(frozen=True)
class Contraction:
    """How ``left @ right`` pairs dims: those summed over, and the head pair (H, G) or nothing."""

    contract: Dims
    group: Dims
    result: Dims


def show(dims: Iterable[str]) -> str:
    """Dims as they are written: ``[B, L, E]``."""
    return f"[{', '.join(dims)}]"


def contraction(left: Dims, right: Dims, heads: Sequence[HeadPair]) -> Contraction | None:
    """The meaning of ``left @ right``, or None when there is none.

    Leading dims that both sides share are batch dims, unless nothing of a side would be left.
    Of the rest, the longest run that ends the left side and begins the right side is contracted;
    other dims of both sides are batch dims too.
    """
    if left == right:
        return None
    for batch in _batch_lengths(left, right):
        contract = _joint(left[batch:], right[batch:])
        if contract:
            return _result(left, right, contract, left[:batch], heads)
    return None


def rows_meet(left: Dims, right: Dims) -> str:
    """The dim that keeps ``left @ right`` from having a meaning because both sides have it.

    A product such as ``[L, E] @ [E, L]`` would need two dims called L; empty when that is not so.
    """
    batch = next(_batch_lengths(left, right))
    contract = _joint(left[batch:], right[batch:])
    rest = [d for d in right[batch:] if d not in contract]
    return rest[-1] if contract and rest and rest[-1] in left else ""


def transposed(dims: Dims, first: str, second: str) -> Dims:
    """``dims`` with two of them exchanged."""
    swap = {first: second, second: first}
    return tuple(swap.get(d, d) for d in dims)


def outer_pair(dims: Dims) -> HeadPair | None:
    """What a bare ``transpose`` exchanges: the first and the last dim, a leading B left alone."""
    rest = dims[1:] if dims[:1] == (BATCH,) else dims
    return (rest[0], rest[-1]) if len(rest) > 1 else None


def helpful_transpose(left: Dims, right: Dims, heads: Sequence[HeadPair]) -> Dims | None:
    """Two dims of ``right`` to exchange so that ``left @ right`` means something.

    Empty when the bare ``transpose`` does it, None when no exchange does.
    """
    bare = outer_pair(right)
    for pair in ([bare] if bare else []) + list(combinations(right, 2)):
        if contraction(left, transposed(right, *pair), heads):
            return () if pair == bare else pair
    return None


def spreads_over(small: Dims, large: Dims) -> bool:
    """Whether ``small`` is ``large`` with dims left out, in the same order."""
    remaining = iter(large)
    return all(d in remaining for d in small)


def _batch_lengths(left: Dims, right: Dims) -> Iterator[int]:
    shared = 0
    while shared < min(len(left), len(right)) and left[shared] == right[shared]:
        shared += 1
    yield shared
    if shared == min(len(left), len(right)) and shared:
        yield 1 if left[0] == BATCH else 0


def _joint(left: Dims, right: Dims) -> Dims:
    """The longest run that ends ``left`` and begins ``right``."""
    for length in range(min(len(left), len(right)), 0, -1):
        if left[-length:] == right[:length]:
            return right[:length]
    return ()


def _result(
    left: Dims, right: Dims, contract: Dims, batch: Dims, heads: Sequence[HeadPair]
) -> Contraction | None:
    group = _group(left, right, contract, heads)
    result = matmul_dims(left, right, contract, group)
    repeated = [d for d in right if d in left and d not in contract and d not in batch]
    news = [d for d in result if d not in left]
    # [L, E] @ [E, L]: a reader expects two dims L, not the diagonal.
    if not result or (repeated and not news):
        return None
    return Contraction(contract, group, result)


def _group(left: Dims, right: Dims, contract: Dims, heads: Sequence[HeadPair]) -> Dims:
    for many, few in heads:
        free = many not in contract and few not in contract
        if free and many in left and few in right and many not in right and few not in left:
            return (many, few)
    return ()
