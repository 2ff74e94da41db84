"""csl_words: a CSL program says the tables and the words of state that it has, no more, no less."""

from __future__ import annotations

from meshc.analysis.csl.words import wrong_words
from meshc.ir.module import Module
from meshc.support.diagnostics import fail


def check(module: Module) -> None:
    """Tables of angles and turns, and the words of state by what they are for, are those that the
    program needs."""
    wrong = wrong_words(module)
    if wrong is not None:
        fail("csl-words-wrong", wrong, help="the pass plan-csl-words counts them")
