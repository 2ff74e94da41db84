"""The device in the header of a module: facts first, then its numbers by where they come from.

    device name = toy, kind = mesh, topology = mesh, push = false, enforced = true
      datasheet cores_x = 16, cores_y = 16, memory_bytes = 8192
      calibrated route_cycles = 24.5
      assumed colors = unlimited

Units are those of the keys. The source of a number stays in the device's file.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshc.devices import FACTS, KEYS, KINDS, NUMBERS, Device, Number, device_of
from meshc.ir.attributes import Raw, attribute_text
from meshc.ir.tokens import Tokens
from meshc.support.diagnostics import fail
from meshc.support.spans import Span

_FACTS = {key.name for key in FACTS}
_NUMBERS = {key.name for key in NUMBERS}


def pairs_text(values: Mapping[str, object]) -> str:
    """``a = 1, b = 2``, as every section of a header is written."""
    return ", ".join(f"{name} = {attribute_text(value)}" for name, value in values.items())


def device_lines(device: Device) -> list[str]:
    """The lines of the section ``device``, those of numbers indented."""
    lines = ["device " + pairs_text(device.facts)]
    for kind in KINDS:
        given = {
            name: KEYS[name].without if number.value is None else number.value
            for name, number in device.numbers.items()
            if number.kind == kind
        }
        if given:
            lines.append(f"  {kind} {pairs_text(given)}")
    return lines


def read_device(tokens: Tokens, start: Span) -> Device:
    """The device of a header, from the token behind the word ``device`` on.

    Fails with ``bad-meshir`` for what is no fact or number of a device or stands twice. Whether
    values make sense is for :func:`meshc.devices.check_device` to say.
    """
    facts: dict[str, str | bool] = {}
    for name, raw in tokens.pairs().items():
        if name in _NUMBERS:
            fail(
                "bad-meshir",
                f"the number '{name}' of the device does not say where it comes from",
                start,
                help=f"write numbers behind one of {', '.join(KINDS)}; compile again what an older "
                "version printed",
            )
        facts[name] = _known(tokens, name, raw, _FACTS, start)  # type: ignore[assignment]
    if "name" not in facts:
        fail("bad-meshir", "the device has no name", start, help="write device name = ..")
    numbers: dict[str, Number] = {}
    while (kind := next((k for k in KINDS if k == tokens.token), None)) is not None:
        tokens.advance()
        for name, raw in tokens.pairs().items():
            if name in numbers:
                fail("bad-meshir", f"the number '{name}' of the device is given twice", start)
            numbers[name] = Number(_known(tokens, name, raw, _NUMBERS, start), kind)
    return device_of(facts, numbers)


def _known(
    tokens: Tokens, name: str, raw: Raw, names: set[str], start: Span
) -> int | float | bool | str:
    if name not in names:
        fail("bad-meshir", f"a device has no '{name}' here", start)
    return tokens.as_scalar(raw, start)
