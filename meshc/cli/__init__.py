"""The command line. ``main`` is the console script ``meshc``."""

from meshc.cli.entry import main

__all__ = ["main"]
