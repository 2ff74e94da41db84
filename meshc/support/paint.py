"""Colours of messages on a terminal, in the manner of rustc and clang."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TextIO

Paint = Callable[[str, str], str]
"""A function of a style and a text, which gives the text in that style."""

_STYLES = {
    "error": "1;31",
    "warning": "1;33",
    "remark": "1;36",
    "missed": "1;35",
    "frame": "1;34",
    "label": "1",
}


def plain(style: str, text: str) -> str:
    """The text as it is."""
    return text


def coloured(style: str, text: str) -> str:
    """The text between the control sequences of a style (ECMA-48, SGR)."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


def paint_of(stream: TextIO) -> Paint:
    """How to write to ``stream``: in colour on a terminal that has it, unless ``NO_COLOR`` is set
    to something (no-color.org)."""
    refused = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return coloured if stream.isatty() and not refused else plain
