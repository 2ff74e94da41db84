"""How much a block of a step that is made of tasks asks for at once."""

from __future__ import annotations

from meshc.analysis.cuda.blocks import FRAGMENT_BYTES
from meshc.devices import Device
from meshc.support.diagnostics import fail

USUAL_BYTES = 16_384
"""Of a device that does not say it (``tile_bytes``)."""


def tile_bytes(device: Device) -> int:
    """Whole blocks of a matrix. Raises ``device-number`` for others."""
    if "tile_bytes" not in device.numbers:
        return USUAL_BYTES
    given = device.whole("tile_bytes")
    if given % FRAGMENT_BYTES:
        fail(
            "device-number",
            f"tile_bytes of device '{device.name}' is {given}, no multiple of {FRAGMENT_BYTES}",
        )
    return given
