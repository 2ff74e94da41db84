"""Tokens of a batch that stand one behind the other in their request, and for which a block attends
at once: what is cached of the request comes once for all of them.

How many there are is known when a step runs, from how many tokens of its request each token has in
front of it. Blocks have even shares of such runs of neighbours, and compute of each token, in the
same order, what they compute of one that is read by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from meshc.backends.cuda.tasks.families import NOT_UNROLLED, Placed
from meshc.backends.cuda.tasks.statements import Text
from meshc.backends.cuda.tasks.storage import Storage
from meshc.ir.batch import AHEAD

BEFORE = "before"
"""What ``ahead`` is of the first of several neighbours; of them all it is that of the last."""


@dataclass
class Neighbours:
    """The tasks of a ``family``, of which those of up to ``most`` neighbours are computed at once,
    so many of them ``together`` by the same products; each by itself with 1. The dim of the tokens
    is the first one."""

    family: Placed
    storage: Storage
    most: int = 1
    together: int = 1

    def alone(self) -> None:
        """Let each be computed by itself."""
        self.most = self.together = 1

    @property
    def passes(self) -> int:
        """In how many parts products take them."""
        return self.most // self.together

    @property
    def kind(self) -> str:
        """What of the library knows them."""
        return f"mc::Neighbours<{self.most}>"

    @property
    def _of_token(self) -> int:
        """Tasks of a token."""
        _, *others = self.family.sizes.values()
        return prod(others)

    @property
    def run(self) -> str:
        """The declaration of the tasks that are a block's, of which there is one for neighbours."""
        return f"const mc::Run mine({self._of_token} * neighbours.count());"

    @contextmanager
    def each(self, text: Text) -> Iterator[None]:
        """A loop over the block's tasks, in which their dims and what a run tells of the token are
        known: of the last one of several neighbours."""
        (token, *others), family = self.family.op.dims, self.family
        if self.most == 1:
            with family.each(text):
                family.point(text, family.op.dims)
                if self.storage.has_lengths:
                    text.add(self.storage.told(token, attends=True))
                yield
            return
        text.add(NOT_UNROLLED)
        with text.within("for (int task = mine.begin; task < mine.end; task++) {"):
            family.point(text, others)
            own = f"task / {self._of_token}" if self._of_token > 1 else "task"
            text.add(
                f"const int front = neighbours.first({own}), {token} = neighbours.last({own});",
                self.storage.told(token, attends=True),
                f"const int rest = {token} - front, {BEFORE} = {AHEAD} - rest;",
            )
            yield

    @contextmanager
    def each_token(self, text: Text) -> Iterator[None]:
        """A loop over several neighbours, ``nth`` of them in turn, in which what is known of the
        token is that of this one."""
        text.add(NOT_UNROLLED)
        with text.within("for (int nth = 0; nth <= rest; nth++) {"):
            token = self.family.op.dims[0]
            text.add(f"const int {token} = front + nth, {AHEAD} = {BEFORE} + nth;")
            yield

    @contextmanager
    def each_pass(self, text: Text, unrolled: bool = True) -> Iterator[None]:
        """A loop over the parts that products take of several neighbours, in which it is known how
        many of the tokens of one are ``there``, and ``ahead`` of the first; ``unrolled`` where
        threads have something of each in registers."""
        if self.most == 1:
            yield
            return
        first = f"{self.together} * pass" if self.together > 1 else "pass"
        known = (
            f"const int there = min({self.together}, rest + 1 - {first});",
            f"const int {AHEAD} = {BEFORE} + {first};",
        )
        if not unrolled:
            text.add(NOT_UNROLLED)
            with text.within(f"for (int pass = 0; {first} <= rest; pass++) {{"):
                text.add(*known)
                yield
            return
        text.add("#pragma unroll")
        head = f"for (int pass = 0; pass < {self.passes}; pass++) {{"
        with text.within(head), text.within(f"if ({first} <= rest) {{"):
            text.add(*known)
            yield

    @contextmanager
    def each_of_pass(self, text: Text) -> Iterator[None]:
        """A loop over the tokens of a pass, ``nth`` of them in turn, in which their row is
        known."""
        token = self.family.op.dims[0]
        text.add(NOT_UNROLLED)
        with text.within("for (int nth = 0; nth < there; nth++) {"):
            text.add(f"const int {token} = front + {AHEAD} - {BEFORE} + nth;")
            yield
