"""``meshc devices``: what can be compiled for, and its numbers."""

from __future__ import annotations

import argparse

from meshc.cli.output import columns, print_json
from meshc.devices import describe, device, device_names


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
