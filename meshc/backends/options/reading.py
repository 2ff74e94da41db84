"""Options of a target from text, as they stand behind its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshc.backends.options.base import TargetOptions
from meshc.support.diagnostics import fail


def read_options(
    record: type[TargetOptions], texts: Mapping[str, str | tuple[str, ...]]
) -> dict[str, Any]:
    """The values that ``texts`` spell of options of ``record``. Raises ``bad-argument`` for an
    option that it does not declare, and for a text that is no such value."""
    known = {one.name.replace("_", "-"): one for one in record.declared()}
    found = {}
    for name, text in texts.items():
        if name not in known:
            words = f"the target has no option '{name}'"
            fail("bad-argument", words, help=f"its options: {', '.join(known) or 'none'}")
        one = known[name]
        value = _value(text, one.default, "int" in str(one.type))
        if value is None:
            fail("bad-argument", f"{name} cannot be '{text}'")
        found[one.name] = value
    return found


def _value(text: str | tuple[str, ...], usual: object, whole: bool) -> object:
    """What ``text`` says of an option whose default is ``usual``; None for nothing."""
    if isinstance(usual, tuple):
        return text if isinstance(text, tuple) else (text,)
    if isinstance(text, tuple):
        return None
    if isinstance(usual, bool):
        return {"true": True, "false": False}.get(text)
    if whole:
        return int(text) if text.lstrip("-").isdecimal() else None
    return text
