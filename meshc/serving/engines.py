"""What a server asks of a program: reading prompts by pieces and by layers, and steps of all who
decode.

A program has places for requests, numbered from 0 on, and is told which tokens of which are read or
continued next; who is there, and in which order, is the scheduler's business. Where the tokens of a
request lie is said in one of two ways: each place has caches of its own, or a table of pages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

Array = NDArray[Any]


class Engine(Protocol):
    """A program that serves: ``requests`` at once, each with ``capacity`` tokens in its caches. It
    reads at most ``most`` tokens of a prompt at once; tokens are numbered from 0 to ``vocab`` - 1.
    Whoever asks knows that tokens and positions are there.
    """

    @property
    def requests(self) -> int:
        """How many requests are stepped at once."""

    @property
    def capacity(self) -> int:
        """How many tokens the caches of one request hold."""

    @property
    def most(self) -> int:
        """How many tokens of a prompt are read at once at the most."""

    @property
    def vocab(self) -> int:
        """How many tokens there are, and so logits of one."""

    @property
    def multiple(self) -> int:
        """Pieces of prompts begin at multiples of so many tokens."""

    def embedded(self, ids: Sequence[int], position: int) -> Array:
        """What the first layer takes of ``ids``, a row for each, the first one at ``position``."""

    def read(self, request: int, rows: Array, position: int, layers: range) -> Array:
        """Let ``rows`` pass ``layers``, behind ``position`` tokens that are cached of ``request``;
        what the layer behind these takes of them."""

    def step(self, tokens: Mapping[int, tuple[int, int]]) -> dict[int, Array]:
        """The logits ``[vocab]`` behind a token of each request, by its place, at a position."""


class WholeEngine(Engine, Protocol):
    """One whose places have caches of their own."""

    def begin(self, request: int, known: int) -> None:
        """Another request comes to the caches of ``request``: forget what they hold but for the
        first ``known`` tokens. Behind these they hold numbers that do not matter."""


@runtime_checkable
class VerifyingEngine(Engine, Protocol):
    """One whose steps may read up to ``drafts`` drafts behind the next token of a request."""

    @property
    def drafts(self) -> int:
        """How many drafts a step reads of each request at the most."""

    def verify(self, tokens: Mapping[int, tuple[Sequence[int], int]]) -> dict[int, Array]:
        """The logits ``[tokens, vocab]`` behind each of some tokens of each request, by its place,
        the first of which stands at a position. They are those that :meth:`step` gives of one token
        after the other."""


@runtime_checkable
class ChoosingEngine(Engine, Protocol):
    """One whose program may choose tokens itself, so that no logits leave it."""

    @property
    def chooses(self) -> bool:
        """Whether it does."""

    def choose(
        self, tokens: Mapping[int, tuple[int, int]], draws: Mapping[int, tuple[Array, Array]]
    ) -> dict[int, int | None]:
        """What :meth:`step` does of ``tokens``, and for each place of ``draws`` the next token, as
        the :attr:`~meshc.serving.sampling.Sampler.draw` there says; None where its logits give
        none."""


@runtime_checkable
class MixingEngine(Engine, Protocol):
    """One whose steps read up to ``tokens`` tokens of any requests, those of prompts beside those
    that go on. What a token has depends on nothing that is read beside it, and its text may be cut
    anywhere."""

    @property
    def tokens(self) -> int:
        """How many tokens a step reads at the most."""

    def mix(
        self, tokens: Mapping[int, tuple[Sequence[int], int]], asked: Collection[int]
    ) -> dict[int, Array]:
        """Read some tokens of each request, by its place, of which the first stands at a position;
        the logits ``[vocab]`` behind the last one of those that are ``asked`` for."""

    def mix_chosen(
        self,
        tokens: Mapping[int, tuple[Sequence[int], int]],
        draws: Mapping[int, tuple[Array, Array]],
    ) -> dict[int, int | None]:
        """Read the same; the next token of each place of ``draws``, as of a
        :class:`ChoosingEngine`."""


@runtime_checkable
class PagedEngine(Engine, Protocol):
    """One whose caches lie in ``pages`` pages of ``page`` tokens, those of any request in any of
    them. What it leaves there of a whole piece of a prompt, which begins at a multiple of
    ``multiple`` tokens and has so many, depends on the tokens up to there alone, to the bit. Of
    ``page`` and ``multiple`` one is a multiple of the other."""

    @property
    def pages(self) -> int:
        """How many pages there are, for all requests together."""

    @property
    def page(self) -> int:
        """How many tokens a page holds."""

    def lay(self, request: int, pages: Sequence[int]) -> None:
        """The tokens of ``request`` lie in these pages from now on, in their order. What pages hold
        behind the tokens that are there does not matter."""
