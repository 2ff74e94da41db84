"""plan-csl-words: tables and words of state in the memory of a core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.analysis.csl.words import tables_of, words_of
from meshc.ir.module import Module
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics


@dataclass(frozen=True)
class PlanCslWords(Pass):
    """Say which tables a program has, in words of 32 bits, and how many words of 16 bits it keeps.

    ``angles`` are cosines and sines for RoPE, ``turns`` the control wavelets that end turns. Words
    are the host's ``pointers`` to buffers, ``stamps`` of time, ``pc``, ``scalars``, extents
    ``kept`` from the start, variables of ``loops`` that wait inside, messages ``sent`` in a turn,
    ``flags`` of waits that overlap, ``coordinates`` that code reads when it runs, and the largest
    element of ``rows``.

    Before::

        tasks resume = 24, joined_a = 25
        buffer %a : f32[4] {role = in}

    After::

        tasks resume = 24, joined_a = 25
        tables angles = 4
        words pointers = 5, stamps = 6, pc = 1, scalars = 1, coordinates = 1
        buffer %a : f32[4] {role = in}
    """

    NAME: ClassVar[str] = "plan-csl-words"
    LEVELS: ClassVar[tuple[str, ...]] = ("tile",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset({"csl_words"})
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    def run(self, module: Module, report: Diagnostics) -> Module:
        module.resources["tables"] = tables_of(module)
        module.resources["words"] = words_of(module)
        return module
