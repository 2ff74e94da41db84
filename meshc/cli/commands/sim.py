"""``meshc sim``: stand-ins for the CSL tools, and CSL programs on the fabric simulator."""

from __future__ import annotations

import argparse


def run(options: argparse.Namespace) -> int:
    """Hand over to the action."""
    code: int = options.handler(options)
    return code
