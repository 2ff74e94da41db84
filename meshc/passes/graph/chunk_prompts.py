"""chunk-prompts: prompts are read in chunks, and decoding goes on beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.ir.batch import LENGTH, POSITION
from meshc.ir.module import Module
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, fail


@dataclass(frozen=True)
class ChunkPrompts(Pass):
    """Let a run of prefill read any part of a prompt behind what is cached of it already.

    A prefill phase gets the run-time scalar ``pos``, the tokens of the prompt that are cached: its
    rows stand at positions ``pos .. pos + len - 1`` and see all before them. Chunks begin at
    multiples of ``multiple`` tokens, which must be one of the rows of the mesh, since prompts are
    dealt to these from their first token on. A chunk has at most ``most`` tokens, any number where
    that is 0; a program of short chunks needs little memory.

    While the prompt of one request is read, others are continued by the same decode step; a request
    that is not among them has the position -1, and the step leaves its caches alone.

    Before::

        scalars len = 1..8
        %grown = graph.append %cache, %k {dim = S, rows = L} : f32[S, G, D]

    After::

        scalars len = 1..8, pos = 0..7 by 2
        %grown = graph.append %cache, %k {dim = S, rows = L} : f32[S, G, D]

    A module without caches is an error, ``unsupported-op``, and ``bad-option`` where the longest
    chunk ends before the next one may begin.
    """

    NAME: ClassVar[str] = "chunk-prompts"
    LEVELS: ClassVar[tuple[str, ...]] = ("graph",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    multiple: int = 1
    most: int = 0

    def run(self, module: Module, report: Diagnostics) -> Module:
        if self.multiple < 1:
            fail("bad-option", f"chunks cannot begin at multiples of {self.multiple}")
        if LENGTH in module.scalars:
            self._bound(module)
            module.scalars[POSITION] = (0, module.capacity - 1)
            module.multiples.pop(POSITION, None)  # of a run before this one
            if self.multiple > 1:
                module.multiples[POSITION] = self.multiple
            words = f"chunks begin at multiples of {self.multiple} tokens"
            report.remark("chunked-prompts", words)
        elif POSITION in module.scalars:
            module.scalars[POSITION] = (-1, module.scalars[POSITION][1])
        else:
            fail(
                "unsupported-op",
                f"'{module.name}' keeps no caches that a chunk of a prompt could stand behind",
                help="chunk-prompts is for the phases prefill and decode",
            )
        return module

    def _bound(self, module: Module) -> None:
        """Let a run have at most ``most`` rows of a prompt."""
        least, longest = module.scalars[LENGTH]
        if not self.most or self.most >= longest:
            return
        if self.most < max(self.multiple, least):
            fail(
                "bad-option",
                f"chunks of at most {self.most} tokens cannot begin at multiples of "
                f"{self.multiple} tokens",
                help="a chunk has at least a token for each row of cores",
            )
        module.scalars[LENGTH] = (least, self.most)
        module.dims[module.row_dim] = self.most
