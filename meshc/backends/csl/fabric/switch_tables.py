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
from meshc.backends.csl.fabric.painters import is_equal, routes
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.devices.csl import Targets
from meshc.support.diagnostics import fail

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


def painters(called: Collection[str]) -> list[csl.Function]:
    """The functions that set the routers of a line, those whose names are in ``called``."""
    return [
        write(name, row, ahead, behind)
        for row, ahead, behind in ((True, "EAST", "WEST"), (False, "SOUTH", "NORTH"))
        for way, write in ((1, _paint_up), (-1, _paint_down))
        if (name := painter(row, way)) in called
    ]


def _paint_up(name: str, row: bool, ahead: str, behind: str) -> csl.Function:
    remark = (
        "Cores of a line send in turn to those behind them: routers pass on what comes, until "
        "control wavelets turn the outputs away from the core and then the input to it."
    )
    pop = csl.record(always_pop=csl.TRUE)
    own, out = csl.record(rx="RAMP"), csl.record(tx=ahead)
    moving = csl.record(pos1=out, pos2=own, ring_mode=csl.TRUE, pop_mode=pop)
    return _painted(
        name,
        remark,
        _config(row, routes("RAMP", ahead), csl.record(pos1=own, pop_mode=pop)),
        _config(row, routes(behind, "RAMP")),
        _config(row, routes(behind, "RAMP", ahead), moving),
    )


def _paint_down(name: str, row: bool, ahead: str, behind: str) -> csl.Function:
    remark = (
        "Cores of a line send in turn to those before them and to themselves: routers listen to "
        "their own core until its turn is over, then to the one behind."
    )
    turned = csl.record(pos1=csl.record(rx=ahead))
    return _painted(
        name,
        remark,
        _config(row, routes("RAMP", "RAMP"), turned),
        _config(row, routes("RAMP", "RAMP", behind)),
        _config(row, routes("RAMP", "RAMP", behind), turned),
    )


def _painted(name: str, remark: str, first: csl.Do, last: csl.Do, others: csl.Do) -> csl.Function:
    """The function that sets the routers of a line: that of its first core, of its last one, and of
    those between."""
    at_last = is_equal("at", csl.Name("size") - 1)
    body = csl.chosen([(is_equal("at", 0), [first]), (at_last, [last]), (csl.TRUE, [others])])
    params = ["c: color", "line: i16", "start: i16", "size: i16"]
    return csl.function(name, params, [csl.loop("at", "size", body)], remark=remark)


def _config(row: bool, route: csl.Expression, switches: csl.Expression | None = None) -> csl.Do:
    place = csl.Name("start") + "at"
    core = (place, csl.Name("line")) if row else (csl.Name("line"), place)
    switched = {} if switches is None else {"switches": switches}
    return csl.do("@set_color_config", *core, "c", csl.record(routes=route, **switched))
