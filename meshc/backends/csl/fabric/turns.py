"""Channels with turns: switch tables of routers, and the control wavelets that end a turn.

A switch position replaces the input or the outputs of the one before by one direction, so that
only position 0 has two outputs (vendor's documentation; the same table is in its public
factorisation and stencil). Hence a color for each way:

- up: a router hears the core before it and passes on; then its outputs become the next router
  alone, then its input the own core. Two control wavelets behind the last message bring the next
  router there, and the second turns the own one back to position 0 (ring mode). Each router takes
  one command off a wavelet, so those further on find nothing to do.
- down: a router hears its own core first and the core behind it afterwards. Its core's control
  wavelet advances it; the routers before it are at their last position already. The last core of
  the line resets them all instead. A core hears itself, as its two outputs remain.

After a round every router is as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from meshc.analysis.traffic.turns import Turns
from meshc.devices.csl import Targets
from meshc.support.diagnostics import fail

_PAD = "    "
_NOTHING, _ADVANCE, _RESET = 0, 1, 2
_COMMANDS = 8
_NO_TASK = 0x1F << 16


def control_word(commands: Sequence[int]) -> int:
    """A control wavelet whose first commands are ``commands``, the others nothing, which no core
    takes notice of: two bits and an ignore bit for each command."""
    word = _NO_TASK
    for number in range(_COMMANDS):
        code = commands[number] if number < len(commands) else _NOTHING
        field = code | 4
        if number < 2:
            word |= field << 22 + 3 * number
        elif number == 2:
            word |= (field & 3) << 28 | field >> 2
        else:
            word |= field << 3 * number - 8
    return word


@dataclass(frozen=True)
class Handover:
    """The control wavelets of a core whose turn is over, and of the last core of the line."""

    words: tuple[int, ...]
    last: tuple[int, ...]


def handover(turns: Turns) -> Handover:
    """What follows the last message of a turn."""
    if turns.way > 0:
        words = (
            control_word((_NOTHING, _ADVANCE)),
            control_word((_ADVANCE, _ADVANCE)),
        )
        return Handover(words, words)
    return Handover((control_word((_ADVANCE,)),), (control_word((_RESET,)),))


def check_colors(name: str, colors: set[int], targets: Targets) -> None:
    """Refuse colors that have no switch. Raises ``csl-route``."""
    fixed = sorted(colors - {*targets.switch_colors})
    if fixed:
        without = [each.name for each in targets.devices if fixed[0] not in each.switch_colors]
        fail(
            "csl-route",
            f"the cores of channel @{name} take turns on color {fixed[0]}, which has no switch on "
            f"{' and '.join(without)}",
            help="the pass allocate-routes gives channels with turns the first colors",
        )


def painter(row: bool, way: int) -> str:
    """Name of the layout's function that sets the routers of a row, or else of a column."""
    return f"{'row' if row else 'column'}_turns_{'up' if way > 0 else 'down'}"


def painters(called: Collection[str]) -> list[str]:
    """The functions that set the routers of a line, those whose names are in ``called``."""
    lines: list[str] = []
    for row, ahead, behind in ((True, "EAST", "WEST"), (False, "SOUTH", "NORTH")):
        for way, write in ((1, _paint_up), (-1, _paint_down)):
            name = painter(row, way)
            if name in called:
                core = "start + at, line" if row else "line, start + at"
                lines += ["", *write(name, core, ahead, behind)]
    return lines


def _paint_up(name: str, core: str, ahead: str, behind: str) -> list[str]:
    first = _switched(f".pos1 = .{{ .rx = RAMP }}, {_POP}")
    moving = f".pos1 = .{{ .tx = {ahead} }}, .pos2 = .{{ .rx = RAMP }}, .ring_mode = true, {_POP}"
    return [
        "// Cores of a line send in turn to those behind them: routers pass on what comes, until",
        "// control wavelets turn the outputs away from the core and then the input to it.",
        f"fn {name}(c: color, line: i16, start: i16, size: i16) void {{",
        f"{_PAD}for (@range(i16, size)) |at| {{",
        f"{2 * _PAD}if (at == 0) {{",
        *_config(core, "RAMP", ahead, first),
        f"{2 * _PAD}}} else if (at == size - 1) {{",
        *_config(core, behind, "RAMP", ""),
        f"{2 * _PAD}}} else {{",
        *_config(core, behind, f"RAMP, {ahead}", _switched(moving)),
        f"{2 * _PAD}}}",
        f"{_PAD}}}",
        "}",
    ]


def _paint_down(name: str, core: str, ahead: str, behind: str) -> list[str]:
    turned = _switched(f".pos1 = .{{ .rx = {ahead} }}")
    return [
        "// Cores of a line send in turn to those before them and to themselves: routers listen to",
        "// their own core until its turn is over, then to the one behind.",
        f"fn {name}(c: color, line: i16, start: i16, size: i16) void {{",
        f"{_PAD}for (@range(i16, size)) |at| {{",
        f"{2 * _PAD}if (at == 0) {{",
        *_config(core, "RAMP", "RAMP", turned),
        f"{2 * _PAD}}} else if (at == size - 1) {{",
        *_config(core, "RAMP", f"RAMP, {behind}", ""),
        f"{2 * _PAD}}} else {{",
        *_config(core, "RAMP", f"RAMP, {behind}", turned),
        f"{2 * _PAD}}}",
        f"{_PAD}}}",
        "}",
    ]


_POP = ".pop_mode = .{ .always_pop = true }"


def _switched(positions: str) -> str:
    return f".switches = .{{ {positions} }}"


def _config(core: str, rx: str, tx: str, switches: str) -> list[str]:
    routes = f".routes = .{{ .rx = .{{ {rx} }}, .tx = .{{ {tx} }} }}"
    if not switches:
        return [f"{3 * _PAD}@set_color_config({core}, c, .{{ {routes} }});"]
    return [
        f"{3 * _PAD}@set_color_config({core}, c, .{{",
        f"{4 * _PAD}{routes},",
        f"{4 * _PAD}{switches},",
        f"{3 * _PAD}}});",
    ]
