"""``meshc completion``: the script that lets a shell complete meshc."""

from __future__ import annotations

import argparse

from meshc.cli.shell_completion import script


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    print(script(options.shell))
    return 0
