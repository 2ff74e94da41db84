"""Attention as serving sees it: what a GPU multiplies with, keeps of a token and computes.

An object has the heads of one GPU. Values are elements, operations are multiplications and
additions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple

from meshc.analysis.heads import head_shares


class Projection(NamedTuple):
    """A product of each token with a weight ``[inner, columns]``."""

    name: str
    inner: int
    columns: int


class Work(NamedTuple):
    """Attention of some tokens beside its projections: operations, and values of memory that are
    written and read beside the caches."""

    flops: float
    values: float = 0.0


class ServedAttention(ABC):
    """Attention of a layer on one GPU."""

    @abstractmethod
    def projections(self, hidden: int) -> tuple[tuple[Projection, ...], tuple[Projection, ...]]:
        """The products in front of attention and those behind it, each in their order, in a model
        of ``hidden`` values."""

    @property
    @abstractmethod
    def cached_values(self) -> int:
        """Values that caches keep of a token."""

    @property
    @abstractmethod
    def prepared_values(self) -> int:
        """Values of a token that stand between the products and attention: they are normed, turned
        or stored."""

    @property
    @abstractmethod
    def step_flops(self) -> float:
        """Operations for each token that a request sees which gets its next token."""

    @abstractmethod
    def chunk(self, start: int, stop: int, window: int | None) -> Work:
        """Attention of the tokens ``start`` to ``stop`` (exclusive) of a prompt, each of which sees
        itself and those before it, at most ``window``."""

    @abstractmethod
    def share(self, ranks: int) -> ServedAttention:
        """The part of one of ``ranks`` GPUs, padded where heads do not come out even."""

    def parameters(self, hidden: int) -> int:
        """Parameters of all projections."""
        front, behind = self.projections(hidden)
        return sum(one.inner * one.columns for one in (*front, *behind))


@dataclass(frozen=True)
class GroupedAttention(ServedAttention):
    """``heads`` of queries, of which equal groups share one of ``key_heads`` of keys and values;
    all have ``head_dim`` lanes."""

    heads: int
    key_heads: int
    head_dim: int

    def projections(self, hidden: int) -> tuple[tuple[Projection, ...], tuple[Projection, ...]]:
        queries = self.heads * self.head_dim
        front = Projection("qkv", hidden, queries + self.cached_values)
        return (front,), (Projection("out", queries, hidden),)

    @property
    def cached_values(self) -> int:
        return 2 * self.key_heads * self.head_dim

    @property
    def prepared_values(self) -> int:
        return self.heads * self.head_dim + self.cached_values

    @property
    def step_flops(self) -> float:
        return 4.0 * self.heads * self.head_dim

    def chunk(self, start: int, stop: int, window: int | None) -> Work:
        return Work(self.step_flops * pairs_seen(start, stop, window))

    def share(self, ranks: int) -> GroupedAttention:
        own = head_shares(self.heads, self.key_heads, ranks)
        return replace(self, heads=own.queries, key_heads=own.keys)


@dataclass(frozen=True)
class LatentAttention(ServedAttention):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): of a token one vector of
    ``latent`` values and a key of ``turned`` lanes are kept, which all ``heads`` share.

    A head asks with ``plain`` lanes, which a weight takes into the latents, and with ``turned``
    ones, and gives ``given`` lanes. Queries come of the hidden values, or of ``query_latent``
    values of their own where these are not 0. A rank has whole latents and their caches, and a
    share of the heads.
    """

    heads: int
    latent: int
    plain: int
    turned: int
    given: int
    query_latent: int = 0

    def projections(self, hidden: int) -> tuple[tuple[Projection, ...], tuple[Projection, ...]]:
        queries = self.heads * (self.plain + self.turned)
        down = self.cached_values + (self.query_latent or queries)
        front = [Projection("qkv", hidden, down)]
        if self.query_latent:
            front.append(Projection("queries", self.query_latent, queries))
        front.append(Projection("absorb", self.plain, self.heads * self.latent))
        values = Projection("values", self.latent, self.heads * self.given)
        return tuple(front), (values, Projection("out", self.heads * self.given, hidden))

    @property
    def cached_values(self) -> int:
        return self.latent + self.turned

    @property
    def prepared_values(self) -> int:
        queries = self.heads * (self.plain + self.turned)
        return self.cached_values + self.query_latent + queries

    @property
    def step_flops(self) -> float:
        return 2.0 * self.heads * (2 * self.latent + self.turned)

    def chunk(self, start: int, stop: int, window: int | None) -> Work:
        """Whichever takes fewer operations: queries that ask latents, as in a step, or keys and
        values of all heads that are made of the latents seen. Those of new tokens take as much as
        absorbing their queries, which is a projection."""
        pairs = pairs_seen(start, stop, window)
        made = self.heads * (self.plain + self.given)
        first = max(0, start - (window or start))
        apart = 2.0 * self.heads * (self.plain + self.turned + self.given) * pairs
        apart += 2.0 * self.latent * made * (start - first)
        absorbed = self.step_flops * pairs
        return Work(absorbed) if absorbed <= apart else Work(apart, 2.0 * made * (stop - first))

    def share(self, ranks: int) -> LatentAttention:
        return replace(self, heads=-(-self.heads // ranks))


def pairs_seen(start: int, stop: int, window: int | None) -> float:
    """Pairs of a token of a chunk and a token that it sees, itself included."""
    if window is None or stop <= window:
        return (stop - start) * (start + stop + 1) / 2
    free = max(start, window)
    return (
        (stop - free) * window + pairs_seen(start, free, None)
        if start < free
        else (stop - start) * float(window)
    )
