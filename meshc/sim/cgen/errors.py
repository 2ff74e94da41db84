"""Why the C back end cannot run a program; the Python back end can then."""

from __future__ import annotations


class Unsupported(Exception):
    """A program uses something that cannot be written in C."""
