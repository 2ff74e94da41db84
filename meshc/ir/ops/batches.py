"""Graph level: batches of tokens of any requests, and parts of such a batch.

A token has a position and an owner, the request whose caches it reads and extends: the run-time
scalars ``pos`` and ``owner`` (:mod:`meshc.ir.batch`). The dim B, or a part of it that the header
names, counts tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshc.ir.core import Op, register, tensor_type
from meshc.ir.ops.graph import Append
from meshc.ir.types import TensorType, Type


@register("graph.append_tokens", "cache, new -> grown: like cache")
@dataclass(eq=False)
class AppendTokens(Append):
    """Caches of all requests with entries of a batch of tokens.

    The cache has the dim ``requests`` where new entries have ``tokens``. Row ``pos`` of ``dim`` of
    the owner of each token is replaced by what is new of that token, whose dim ``rows`` is 1;
    tokens at position -1 are absent and leave all as it is.
    """

    requests: str = ""
    tokens: str = ""

    def verify(self, extents: Mapping[str, int]) -> None:
        cache, new = (tensor_type(o).dims for o in self.operands)
        wanted = {self.requests: self.tokens, self.dim: self.rows}
        if not {*wanted} <= {*cache} or {*new} != {wanted.get(d, d) for d in cache}:
            self.reject(f"the dims {', '.join(new)} do not enter a cache of {', '.join(cache)}")
        if extents.get(self.rows) != 1:
            self.reject(f"a token has one row, not {extents.get(self.rows)}")


@register("graph.token_caches", "cache -> own")
@dataclass(eq=False)
class TokenCaches(Op):
    """For each of ``tokens`` the cache of its owner, one of ``requests``: a view, nothing moves. Of
    absent tokens it is that of any request."""

    requests: str = ""
    tokens: str = ""

    def infer(self, extents: Mapping[str, int]) -> list[Type] | None:
        kind = tensor_type(self.operands[0])
        if self.requests not in kind.dims or self.tokens not in extents:
            self.reject(f"{self.operands[0]} has no dim '{self.requests}' of requests")
        dims = tuple(self.tokens if d == self.requests else d for d in kind.dims)
        return [TensorType(kind.dtype, dims)]


@register("graph.take_tokens", "x -> part")
@dataclass(eq=False)
class TakeTokens(Op):
    """The tokens ``tokens``, a part that the header names, of a value over all tokens ``of``."""

    tokens: str = ""
    of: str = ""

    def infer(self, extents: Mapping[str, int]) -> list[Type] | None:
        kind = tensor_type(self.operands[0])
        if self.of not in kind.dims or self.tokens not in extents:
            self.reject(f"{self.operands[0]} has no dim '{self.of}' of tokens")
        dims = tuple(self.tokens if d == self.of else d for d in kind.dims)
        return [TensorType(kind.dtype, dims)]


@register("graph.join_tokens", "part+ -> x")
@dataclass(eq=False)
class JoinTokens(Op):
    """Parts of a batch of tokens, in their order, side by side as all tokens ``of``."""

    of: str = ""

    def infer(self, extents: Mapping[str, int]) -> list[Type] | None:
        kinds = [tensor_type(operand) for operand in self.operands]
        (axis,) = {*_differing([kind.dims for kind in kinds])} or {-1}
        if axis < 0 or self.of not in extents:
            self.reject("its operands differ in one dim, that of their tokens")
        if sum(extents[kind.dims[axis]] for kind in kinds) != extents[self.of]:
            self.reject(f"its parts are not all of {self.of}")
        dims = (*kinds[0].dims[:axis], self.of, *kinds[0].dims[axis + 1 :])
        return [TensorType(kinds[0].dtype, dims)]

    @property
    def place(self) -> int:
        """Which of the dims of its operands counts their tokens."""
        (axis,) = _differing([tensor_type(operand).dims for operand in self.operands])
        return axis


def _differing(dims: list[tuple[str, ...]]) -> list[int]:
    """Places at which the dims of several values differ, one where that is all they differ in."""
    if len({len(d) for d in dims}) > 1:
        return []
    found = [i for i, names in enumerate(zip(*dims, strict=True)) if len({*names}) > 1]
    return found if len(found) == 1 else []
