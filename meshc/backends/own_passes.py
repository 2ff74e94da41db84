"""Passes that a compile is asked for inside its pipeline, before or after one of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshc.backends.request import CompileRequest, flag_of
from meshc.passes.base import Pass
from meshc.passes.registry import parse_pipeline
from meshc.support.diagnostics import fail

_FLAGS = ("passes_before", "passes_after")


def with_own_passes(request: CompileRequest, passes: Sequence[Pass]) -> list[Pass]:
    """``passes`` with those that ``request`` asks for beside them; a place that is none of them is
    passed over, as these may be a part of a pipeline. Raises what parsing a pipeline does."""
    found = list(passes)
    for flag in _FLAGS:
        for where, text in _asked(request, flag):
            places = [number for number, one in enumerate(found) if where == one.NAME]
            for place in reversed(places):
                at = place + (flag == "passes_after")
                found[at:at] = parse_pipeline(text)
    return found


def check_own_passes(request: CompileRequest, passes: Sequence[Pass]) -> None:
    """Raise ``bad-argument`` for a place that is none of ``passes``, all that a compile has."""
    known = list(dict.fromkeys(one.NAME for one in passes))
    for flag in _FLAGS:
        for where, text in _asked(request, flag):
            if where not in known:
                fail(
                    "bad-argument",
                    f"{flag_of(flag)} is {where}={text}, but no pass '{where}' runs there",
                    help=f"passes of this compile: {', '.join(known)}",
                )


def _asked(request: CompileRequest, flag: str) -> Iterable[tuple[str, str]]:
    """Places and pipelines. Raises ``bad-argument`` for a text that is no such pair."""
    for text in getattr(request, flag):
        where, equals, pipeline = text.partition("=")
        if not equals or not pipeline:
            fail("bad-argument", f"{flag_of(flag)} is {text}, not PASS=PIPELINE")
        yield where, pipeline
