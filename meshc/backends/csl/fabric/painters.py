"""Functions of a layout that set the routers of messages and multicasts along a line."""

from __future__ import annotations

from collections.abc import Collection

_PAD = "    "


def router_painters(called: Collection[str]) -> list[str]:
    """The functions that set routers, those whose names are in ``called``."""
    lines: list[str] = []
    for head, away, back in (("row", "EAST", "WEST"), ("column", "SOUTH", "NORTH")):
        for kind, write in _PAINTERS.items():
            if f"{head}_{kind}" in called:
                lines += ["", *write(head, away, back)]
    return lines


def _paint_message(head: str, up: str, down: str) -> list[str]:
    return [
        f"// A message along a {head}, from one place to another, through the routers between.",
        f"fn {head}_message(c: color, line: i16, from: i16, to: i16) void {{",
        f"{_PAD}const away = if (to > from) {up} else {down};",
        f"{_PAD}const back = if (to > from) {down} else {up};",
        f"{_PAD}const low = if (to > from) from else to;",
        f"{_PAD}const high = if (to > from) to else from;",
        f"{_PAD}for (@range(i16, low, high + 1, 1)) |at| {{",
        f"{2 * _PAD}const rx = if (at == from) RAMP else back;",
        f"{2 * _PAD}const tx = if (at == to) RAMP else away;",
        f"{2 * _PAD}{_config(head, 'rx', 'tx')}",
        f"{_PAD}}}",
        "}",
    ]


def _config(head: str, rx: str, *tx: str) -> str:
    core = "at, line" if head == "row" else "line, at"
    routes = f".{{ .rx = .{{ {rx} }}, .tx = .{{ {', '.join(tx)} }} }}"
    return f"@set_color_config({core}, c, .{{ .routes = {routes} }});"


def _paint_multicast(head: str, up: str, down: str) -> list[str]:
    def either(test: str, rx: str, others: tuple[str, ...]) -> list[str]:
        then, otherwise = _config(head, rx, "RAMP"), _config(head, rx, *others)
        return [f"{3 * _PAD}if ({test}) {{ {then} }}", f"{3 * _PAD}else {{ {otherwise} }}"]

    return [
        f"// A message along a {head} from one place to all others from first to last.",
        f"fn {head}_multicast(c: color, line: i16, from: i16, first: i16, last: i16) void {{",
        *_both_ways(
            _from_one(head, up, down),
            either("at == high", down, ("RAMP", up)),
            either("at == low", up, ("RAMP", down)),
        ),
    ]


def _paint_multicast_by_steps(head: str, up: str, down: str) -> list[str]:
    def passed(place: str, back: str, away: str, end: str) -> list[str]:
        then, otherwise = _config(head, back, "RAMP", away), _config(head, back, away)
        last = _config(head, back, "RAMP")
        return [
            f"{3 * _PAD}const place = {place};",
            f"{3 * _PAD}if (at == {end}) {{ {last} }}",
            f"{3 * _PAD}else if (place % step == 0) {{ {then} }}",
            f"{3 * _PAD}else {{ {otherwise} }}",
        ]

    return [
        f"// A message along a {head} from one place to every so many behind it, up to last, and",
        "// from the one before it to every so many down to first.",
        f"fn {head}_multicast_by_steps(",
        f"{_PAD}c: color, line: i16, from: i16, first: i16, last: i16, step: i16",
        ") void {",
        *_both_ways(
            _from_one(head, up, down),
            passed("at - from", down, up, "high"),
            passed("from - 1 - at", up, down, "low"),
        ),
    ]


def _from_one(head: str, up: str, down: str) -> list[str]:
    """The router of the core that sends, to one side or to both."""
    return [
        f"{3 * _PAD}if (low == from) {{ {_config(head, 'RAMP', up)} }}",
        f"{3 * _PAD}else if (high == from) {{ {_config(head, 'RAMP', down)} }}",
        f"{3 * _PAD}else {{ {_config(head, 'RAMP', down, up)} }}",
    ]


def _both_ways(at_from: list[str], above: list[str], below: list[str]) -> list[str]:
    """The rest of a function that sets the routers between ``first`` and ``last``: that of
    ``from``, those above it and those below."""
    return [
        f"{_PAD}const low = if (first < from) first else from;",
        f"{_PAD}const high = if (last > from) last else from;",
        f"{_PAD}for (@range(i16, low, high + 1, 1)) |at| {{",
        f"{2 * _PAD}if (at == from) {{",
        *at_from,
        f"{2 * _PAD}}} else if (at > from) {{",
        *above,
        f"{2 * _PAD}}} else {{",
        *below,
        f"{2 * _PAD}}}",
        f"{_PAD}}}",
        "}",
    ]


_PAINTERS = {
    "message": _paint_message,
    "multicast": _paint_multicast,
    "multicast_by_steps": _paint_multicast_by_steps,
}
