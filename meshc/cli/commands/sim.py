"""``meshc sim``: stand-ins for the CSL tools, and CSL programs on the fabric simulator."""

from __future__ import annotations

import argparse
from importlib import import_module


def run(options: argparse.Namespace) -> int:
    """Hand over to the action."""
    if getattr(options, "report", None) is not None:
        # Pages are loaded where one is asked for, not to read the flags.
        return int(import_module("meshc.cli.reported_scripts").run_reported(options))
    code: int = options.handler(options)
    return code
