"""code-caches: caches keep floats of eight bits, with a scale for each token of each head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.ir.coded_rows import ROW_CODES
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, fail


@dataclass(frozen=True)
class CodeCaches(Pass):
    """Let all caches keep the floats ``to`` (e4m3), with a scale for each token of each head, which
    enters with it (:mod:`meshc.ir.coded_rows`).

    So a step reads about half the bytes of its caches, and attends to keys and values of four bits.
    Tasks of a GPU alone keep such caches; whatever else is made of the graph refuses it.

    Before::

        %keys = graph.append %cache_k, %k {dim = S, rows = L} : f16[B, S, G, D]

    After::

        %keys = graph.append %cache_k, %k {dim = S, rows = L, coded = e4m3} : f16[B, S, G, D]
    """

    NAME: ClassVar[str] = "code-caches"
    LEVELS: ClassVar[tuple[str, ...]] = ("graph",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()
    ROUNDS: ClassVar[bool] = True

    to: str = ROW_CODES[0]

    def run(self, module: Module, report: Diagnostics) -> Module:
        if self.to not in ROW_CODES:
            words = f"code-caches: caches are not coded as '{self.to}'"
            fail("bad-pass-option", words, help=f"to is one of {', '.join(ROW_CODES)}")
        for op in module.walk():
            if isinstance(op, graph.Append):
                op.coded = self.to
        return module
