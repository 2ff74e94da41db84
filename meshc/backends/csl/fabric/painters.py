"""Functions of a layout that set the routers of messages and multicasts along a line."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from meshc.backends.csl.tree import syntax_tree as csl

_AT, _FROM, _TO, _LOW, _HIGH = map(csl.Name, ("at", "from", "to", "low", "high"))


def router_painters(called: Collection[str]) -> list[csl.Statement]:
    """The functions that set routers, those whose names are in ``called``."""
    found: list[csl.Statement] = []
    for head, away, back in (("row", "EAST", "WEST"), ("column", "SOUTH", "NORTH")):
        for kind, write in _PAINTERS.items():
            if f"{head}_{kind}" in called:
                found += [csl.Blank(), *write(head, away, back)]
    return found


def is_equal(left: csl.Operand, right: csl.Operand) -> csl.Infix:
    """``left == right``."""
    return csl.infix(left, "==", right)


def routes(rx: str, *tx: str) -> csl.Expression:
    """What a router hears, and where it passes that on."""
    return csl.record(rx=csl.record(rx), tx=csl.record(*tx))


def _paint_message(head: str, up: str, down: str) -> Iterator[csl.Statement]:
    forward = csl.infix(_TO, ">", _FROM)
    body = [
        csl.const("rx", csl.either(is_equal(_AT, _FROM), "RAMP", "back")),
        csl.const("tx", csl.either(is_equal(_AT, _TO), "RAMP", "away")),
        _config(head, "rx", "tx"),
    ]
    yield csl.Remark(
        f"A message along a {head}, from one place to another, through the routers between."
    )
    yield csl.function(
        f"{head}_message",
        ["c: color", "line: i16", "from: i16", "to: i16"],
        [
            csl.const("away", csl.either(forward, up, down)),
            csl.const("back", csl.either(forward, down, up)),
            csl.const("low", csl.either(forward, _FROM, _TO)),
            csl.const("high", csl.either(forward, _TO, _FROM)),
            _between_low_and_high(body),
        ],
    )


def _config(head: str, rx: str, *tx: str) -> csl.Statement:
    core = ("at", "line") if head == "row" else ("line", "at")
    return csl.do("@set_color_config", *core, "c", csl.record(routes=routes(rx, *tx)))


def _paint_multicast(head: str, up: str, down: str) -> Iterator[csl.Statement]:
    def passed(end: csl.Expression, back: str, away: str) -> csl.Statements:
        last, others = _config(head, back, "RAMP"), _config(head, back, "RAMP", away)
        return [_short((is_equal(_AT, end), last), (None, others))]

    yield csl.Remark(f"A message along a {head} from one place to all others from first to last.")
    yield csl.function(
        f"{head}_multicast",
        ["c: color", "line: i16", "from: i16", "first: i16", "last: i16"],
        _both_ways(head, up, down, passed(_HIGH, down, up), passed(_LOW, up, down)),
    )


def _paint_multicast_by_steps(head: str, up: str, down: str) -> Iterator[csl.Statement]:
    def passed(place: csl.Expression, back: str, away: str, end: csl.Expression) -> csl.Statements:
        heard = is_equal(csl.Name("place") % "step", 0)
        return [
            csl.const("place", place),
            _short(
                (is_equal(_AT, end), _config(head, back, "RAMP")),
                (heard, _config(head, back, "RAMP", away)),
                (None, _config(head, back, away)),
            ),
        ]

    yield csl.Remark(
        f"A message along a {head} from one place to every so many behind it, up to last, and"
    )
    yield csl.Remark("from the one before it to every so many down to first.")
    yield csl.function(
        f"{head}_multicast_by_steps",
        ["c: color", "line: i16", "from: i16", "first: i16", "last: i16", "step: i16"],
        _both_ways(
            head,
            up,
            down,
            passed(_AT - _FROM, down, up, _HIGH),
            passed(_FROM - 1 - _AT, up, down, _LOW),
        ),
    )


def _both_ways(
    head: str, up: str, down: str, above: csl.Statements, below: csl.Statements
) -> list[csl.Statement]:
    """The body of a function that sets the routers between ``first`` and ``last``: that of
    ``from``, which sends to one side or to both, those above it and those below."""
    at_from = _short(
        (is_equal(_LOW, _FROM), _config(head, "RAMP", up)),
        (is_equal(_HIGH, _FROM), _config(head, "RAMP", down)),
        (None, _config(head, "RAMP", down, up)),
    )
    arms: list[tuple[csl.Expression | None, csl.Body]] = [
        (is_equal(_AT, _FROM), (at_from,)),
        (csl.infix(_AT, ">", _FROM), tuple(above)),
        (None, tuple(below)),
    ]
    return [
        csl.const("low", csl.either(csl.infix("first", "<", _FROM), "first", _FROM)),
        csl.const("high", csl.either(csl.infix("last", ">", _FROM), "last", _FROM)),
        _between_low_and_high([csl.If(tuple(arms))]),
    ]


def _between_low_and_high(body: csl.Statements) -> csl.Statement:
    return csl.For("at", (_LOW, _HIGH + 1, csl.as_expression(1)), tuple(body))


def _short(*arms: tuple[csl.Expression | None, csl.Statement]) -> csl.Statement:
    return csl.If(tuple((test, (body,)) for test, body in arms), short=True)


_PAINTERS = {
    "message": _paint_message,
    "multicast": _paint_multicast,
    "multicast_by_steps": _paint_multicast_by_steps,
}
