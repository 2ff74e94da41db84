"""``meshc devices``: what can be compiled for, and its numbers."""

from __future__ import annotations

import argparse
from typing import Any

from meshc.cli.output import columns, print_json
from meshc.devices import describe, device, device_names


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("devices", help="list devices, or show one")
    parser.add_argument("name", nargs="?", metavar="NAME|FILE.toml")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """List or show."""
    if options.name is not None:
        found = device(options.name)
        if options.json:
            print_json(found.numbers)
        else:
            print(describe(found))
        return 0
    known = {name: device(name).description for name in device_names()}
    if options.json:
        print_json({"devices": known})
    else:
        print(columns(known.items()))
    return 0
