"""Which weights are to stay quantised, as passes are told it."""

from __future__ import annotations

from collections.abc import Sequence

from meshc.ir.codes import CODE_FORMATS, CodeFormat
from meshc.support.diagnostics import fail

ALL = "all"
IF_POSSIBLE = "?"


def formats_of(step: str, formats: Sequence[str]) -> dict[str, CodeFormat]:
    """The format of each weight that ``formats`` name, such as ``wq=q4_1``, or of :data:`ALL`. The
    pass called ``step`` is told of ``bad-option``."""
    found = {}
    for name, form in named(formats).items():
        text = f"{name}={form}"
        if not name or form not in CODE_FORMATS:
            fail(
                "bad-option",
                f"{step} has no formats={text}",
                help=f"it is NAME=FORMAT or NAME=FORMAT{IF_POSSIBLE}, NAME a weight or all; "
                f"{', '.join(CODE_FORMATS)}",
            )
        found[name] = CODE_FORMATS[form]
    return found


def named(formats: Sequence[str]) -> dict[str, str]:
    """What ``formats`` say of each weight, whether there is such a format or not."""
    parted = (text.removesuffix(IF_POSSIBLE).partition("=") for text in formats)
    return {name: form for name, _, form in parted}


def must_stay(formats: Sequence[str]) -> frozenset[str]:
    """The weights of ``formats`` that may not be decoded instead."""
    named = (text.partition("=")[0] for text in formats if not text.endswith(IF_POSSIBLE))
    return frozenset(named) - {ALL}
