"""``meshc devices``: what can be compiled for, and its numbers."""

from __future__ import annotations

import argparse

from meshc.cli.printing import columns, print_json
from meshc.devices import Device, brought_devices, describe, device, device_names, key_of


def run(options: argparse.Namespace) -> int:
    """List or show."""
    if options.name is not None:
        found = device(options.name)
        if options.json:
            print_json(device_object(found))
        else:
            print(describe(found))
        return 0
    names = (*device_names(), *brought_devices())
    known = {name: device(name).description for name in names}
    if options.json:
        print_json({"devices": known})
    else:
        print(columns(known.items()))
    return 0


def device_object(found: Device) -> dict[str, object]:
    """What ``--json`` prints: every fact and value by key, then each number with its unit, kind and
    source (its value null where the device has no such limit), and the titles of the sources. Keys
    of the links of a level stand behind its name and a dot."""
    numbers = {
        name: {
            "value": number.value,
            "unit": key_of(name).unit,
            "kind": number.kind,
            "source": number.source,
        }
        for name, number in found.every_number().items()
    }
    return {**found.flat(), "numbers": numbers, "sources": dict(found.sources)}
