"""What kernels of a chunk share: why one does not fit, and how templates take numbers."""

from __future__ import annotations

PAGES = (1, 16, 64)
"""Tokens of a page of a cache."""


class DoesNotFit(Exception):
    """No kernel of this shape can be made; the message says why."""


def page_misfits(page: int) -> list[str]:
    """What keeps a cache from having pages of this many tokens, in words."""
    known = ", ".join(map(str, PAGES))
    return [] if page in PAGES else [f"pages of {page} tokens are none of {known}"]


def literal(value: float) -> str:
    """``value`` as a constant of type float."""
    return f"{value!r}f"


def optional_factor(factor: float) -> str:
    """A multiplier as a template takes it: its literal, or nothing where it changes nothing."""
    return "" if factor == 1.0 else literal(factor)
