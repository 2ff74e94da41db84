"""What programs of a script left on the fabric of a simulated wafer, as maps of its cores."""

from __future__ import annotations

import json
from typing import Any

from meshc.driver.record_files import FABRIC
from meshc.view.recorded import Recorded

_MAPS = {
    "memory": ("Bytes of variables", "bytes", "Code and stack are not counted."),
    "busy": (
        "Cycles in which code ran",
        "cycles",
        "Cycles in which code stands still until a word comes or may leave are not counted.",
    ),
    "words": (
        "Words over links",
        "words",
        "Words that a router handed on to its neighbours, those of its core and those that passed.",
    ),
}


def fabrics(recorded: Recorded) -> list[dict[str, Any]]:
    """The maps of each program, and the routes of each color."""
    if FABRIC not in recorded.files:
        return []
    return [
        {
            "name": f"program {number}: {one['cycles']:,} cycles, {one['tasks']:,} tasks",
            "maps": [
                {"name": name, "unit": unit, "words": words, "rows": one[key]}
                for key, (name, unit, words) in _MAPS.items()
            ],
            "routes": one["routes"],
        }
        for number, one in enumerate(json.loads(recorded.files[FABRIC])["fabrics"], 1)
    ]
