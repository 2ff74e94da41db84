"""``meshc man``: the manual page."""

from __future__ import annotations

import argparse
from importlib import import_module

from meshc.cli.manual import manual


def run(options: argparse.Namespace) -> int:
    """Print the page."""
    # The parser knows this command, so that this cannot be loaded before it.
    print(manual(import_module("meshc.cli.command_parser").parser()), end="")
    return 0
