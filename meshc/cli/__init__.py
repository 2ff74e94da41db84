"""The command line. ``main`` is the console script ``meshc``."""

from meshc.cli.main import main

__all__ = ["main"]
