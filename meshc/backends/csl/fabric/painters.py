"""Functions of a layout that set the routers of messages and multicasts along a line."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from meshc.backends.csl.tree.syntax_tree import (
    Blank,
    Body,
    Expression,
    For,
    If,
    Infix,
    Name,
    Operand,
    Remark,
    Statement,
    Statements,
    as_expression,
    const,
    do,
    either,
    function,
    infix,
    record,
)

_AT, _FROM, _TO, _LOW, _HIGH = map(Name, ("at", "from", "to", "low", "high"))


def router_painters(called: Collection[str]) -> list[Statement]:
    """The functions that set routers, those whose names are in ``called``."""
    found: list[Statement] = []
    for head, away, back in (("row", "EAST", "WEST"), ("column", "SOUTH", "NORTH")):
        for kind, write in _PAINTERS.items():
            if f"{head}_{kind}" in called:
                found += [Blank(), *write(head, away, back)]
    return found


def is_equal(left: Operand, right: Operand) -> Infix:
    """``left == right``."""
    return infix(left, "==", right)


def routes(rx: str, *tx: str) -> Expression:
    """What a router hears, and where it passes that on."""
    return record(rx=record(rx), tx=record(*tx))


def _paint_message(head: str, up: str, down: str) -> Iterator[Statement]:
    forward = infix(_TO, ">", _FROM)
    body = [
        const("rx", either(is_equal(_AT, _FROM), "RAMP", "back")),
        const("tx", either(is_equal(_AT, _TO), "RAMP", "away")),
        _config(head, "rx", "tx"),
    ]
    yield Remark(
        f"A message along a {head}, from one place to another, through the routers between."
    )
    yield function(
        f"{head}_message",
        ["c: color", "line: i16", "from: i16", "to: i16"],
        [
            const("away", either(forward, up, down)),
            const("back", either(forward, down, up)),
            const("low", either(forward, _FROM, _TO)),
            const("high", either(forward, _TO, _FROM)),
            _between_low_and_high(body),
        ],
    )


def _config(head: str, rx: str, *tx: str) -> Statement:
    core = ("at", "line") if head == "row" else ("line", "at")
    return do("@set_color_config", *core, "c", record(routes=routes(rx, *tx)))


def _paint_multicast(head: str, up: str, down: str) -> Iterator[Statement]:
    def passed(end: Expression, back: str, away: str) -> Statements:
        last, others = _config(head, back, "RAMP"), _config(head, back, "RAMP", away)
        return [_short((is_equal(_AT, end), last), (None, others))]

    yield Remark(f"A message along a {head} from one place to all others from first to last.")
    yield function(
        f"{head}_multicast",
        ["c: color", "line: i16", "from: i16", "first: i16", "last: i16"],
        _both_ways(head, up, down, passed(_HIGH, down, up), passed(_LOW, up, down)),
    )


def _paint_multicast_by_steps(head: str, up: str, down: str) -> Iterator[Statement]:
    def passed(place: Expression, back: str, away: str, end: Expression) -> Statements:
        heard = is_equal(Name("place") % "step", 0)
        return [
            const("place", place),
            _short(
                (is_equal(_AT, end), _config(head, back, "RAMP")),
                (heard, _config(head, back, "RAMP", away)),
                (None, _config(head, back, away)),
            ),
        ]

    yield Remark(
        f"A message along a {head} from one place to every so many behind it, up to last, and"
    )
    yield Remark("from the one before it to every so many down to first.")
    yield function(
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
    head: str, up: str, down: str, above: Statements, below: Statements
) -> list[Statement]:
    """The body of a function that sets the routers between ``first`` and ``last``: that of
    ``from``, which sends to one side or to both, those above it and those below."""
    at_from = _short(
        (is_equal(_LOW, _FROM), _config(head, "RAMP", up)),
        (is_equal(_HIGH, _FROM), _config(head, "RAMP", down)),
        (None, _config(head, "RAMP", down, up)),
    )
    arms: list[tuple[Expression | None, Body]] = [
        (is_equal(_AT, _FROM), (at_from,)),
        (infix(_AT, ">", _FROM), tuple(above)),
        (None, tuple(below)),
    ]
    return [
        const("low", either(infix("first", "<", _FROM), "first", _FROM)),
        const("high", either(infix("last", ">", _FROM), "last", _FROM)),
        _between_low_and_high([If(tuple(arms))]),
    ]


def _between_low_and_high(body: Statements) -> Statement:
    return For("at", (_LOW, _HIGH + 1, as_expression(1)), tuple(body))


def _short(*arms: tuple[Expression | None, Statement]) -> Statement:
    return If(tuple((test, (body,)) for test, body in arms), short=True)


_PAINTERS = {
    "message": _paint_message,
    "multicast": _paint_multicast,
    "multicast_by_steps": _paint_multicast_by_steps,
}
