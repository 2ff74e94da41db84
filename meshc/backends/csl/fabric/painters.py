"""Functions of a layout that set the routers of messages and multicasts along a line."""

from __future__ import annotations

from collections.abc import Collection

from meshc.backends.csl.tree import syntax_tree as csl

_AT, _FROM, _TO, _LOW, _HIGH = map(csl.Name, ("at", "from", "to", "low", "high"))


def router_painters(called: Collection[str]) -> list[csl.Function]:
    """The functions that set routers, those whose names are in ``called``."""
    return [
        write(head, away, back)
        for head, away, back in (("row", "EAST", "WEST"), ("column", "SOUTH", "NORTH"))
        for kind, write in _PAINTERS.items()
        if f"{head}_{kind}" in called
    ]


def is_equal(left: csl.Operand, right: csl.Operand) -> csl.Expression:
    """``left == right``."""
    return csl.infix(left, "==", right)


def routes(rx: str, *tx: str) -> csl.Expression:
    """What a router hears, and where it passes that on."""
    return csl.record(rx=csl.record(rx), tx=csl.record(*tx))


def _paint_message(head: str, up: str, down: str) -> csl.Function:
    forward = csl.infix(_TO, ">", _FROM)
    body = [
        csl.const("rx", csl.either(is_equal(_AT, _FROM), "RAMP", "back")),
        csl.const("tx", csl.either(is_equal(_AT, _TO), "RAMP", "away")),
        _config(head, "rx", "tx"),
    ]
    return csl.function(
        f"{head}_message",
        ["c: color", "line: i16", "from: i16", "to: i16"],
        [
            csl.const("away", csl.either(forward, up, down)),
            csl.const("back", csl.either(forward, down, up)),
            csl.const("low", csl.either(forward, _FROM, _TO)),
            csl.const("high", csl.either(forward, _TO, _FROM)),
            _between_low_and_high(body),
        ],
        remark=f"A message along a {head}, from one place to another, through the routers between.",
    )


def _config(head: str, rx: str, *tx: str) -> csl.Do:
    core = ("at", "line") if head == "row" else ("line", "at")
    return csl.do("@set_color_config", *core, "c", csl.record(routes=routes(rx, *tx)))


def _paint_multicast(head: str, up: str, down: str) -> csl.Function:
    def passed(end: csl.Expression, back: str, away: str) -> csl.Statements:
        last, others = _config(head, back, "RAMP"), _config(head, back, "RAMP", away)
        return _short((is_equal(_AT, end), last), (csl.TRUE, others))

    return csl.function(
        f"{head}_multicast",
        ["c: color", "line: i16", "from: i16", "first: i16", "last: i16"],
        _both_ways(head, up, down, passed(_HIGH, down, up), passed(_LOW, up, down)),
        remark=f"A message along a {head} from one place to all others from first to last.",
    )


def _paint_multicast_by_steps(head: str, up: str, down: str) -> csl.Function:
    def passed(place: csl.Expression, back: str, away: str, end: csl.Expression) -> csl.Statements:
        heard = is_equal(csl.Name("place") % "step", 0)
        return [
            csl.const("place", place),
            *_short(
                (is_equal(_AT, end), _config(head, back, "RAMP")),
                (heard, _config(head, back, "RAMP", away)),
                (csl.TRUE, _config(head, back, away)),
            ),
        ]

    above = passed(_AT - _FROM, down, up, _HIGH)
    below = passed(_FROM - 1 - _AT, up, down, _LOW)
    return csl.function(
        f"{head}_multicast_by_steps",
        ["c: color", "line: i16", "from: i16", "first: i16", "last: i16", "step: i16"],
        _both_ways(head, up, down, above, below),
        remark=f"A message along a {head} from one place to every so many behind it, up to last, "
        "and from the one before it to every so many down to first.",
    )


def _both_ways(
    head: str, up: str, down: str, above: csl.Statements, below: csl.Statements
) -> list[csl.Statement]:
    """The body of a function that sets the routers between ``first`` and ``last``: that of
    ``from``, which sends to one side or to both, those above it and those below."""
    at_from = _short(
        (is_equal(_LOW, _FROM), _config(head, "RAMP", up)),
        (is_equal(_HIGH, _FROM), _config(head, "RAMP", down)),
        (csl.TRUE, _config(head, "RAMP", down, up)),
    )
    is_above = csl.infix(_AT, ">", _FROM)
    return [
        csl.const("low", csl.either(csl.infix("first", "<", _FROM), "first", _FROM)),
        csl.const("high", csl.either(csl.infix("last", ">", _FROM), "last", _FROM)),
        _between_low_and_high(
            csl.chosen([(is_equal(_AT, _FROM), at_from), (is_above, above), (csl.TRUE, below)])
        ),
    ]


def _between_low_and_high(body: csl.Statements) -> csl.Statement:
    return csl.For("at", (_LOW, _HIGH + 1, csl.as_expression(1)), tuple(body))


def _short(*arms: tuple[csl.Expression, csl.Do]) -> list[csl.Statement]:
    return csl.chosen([(test, [body]) for test, body in arms], short=True)


_PAINTERS = {
    "message": _paint_message,
    "multicast": _paint_multicast,
    "multicast_by_steps": _paint_multicast_by_steps,
}
