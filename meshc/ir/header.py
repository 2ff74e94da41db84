"""Sections of the header of a module that are values of their own: device, rows, attention, pairs.

Of the device facts stand first, then its numbers by where they come from:

    device name = toy, kind = mesh, topology = mesh, push = false, enforced = true
      datasheet cores_x = 16, cores_y = 16, memory_bytes = 8192
      calibrated route_cycles = 24.5
      assumed colors = unlimited
      level node topology = all_to_all, push = true
        published hop_cycles = 190

Behind them stand the links of levels above the innermost. Units are those of the keys. The source
of a number stays in the device's file. Rows and attention name dims (:mod:`meshc.ir.rows`); a name
that is empty is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from meshc.devices import FACTS, KEYS, KINDS, LINK, NUMBERS, Device, Number, Numbers, device_of
from meshc.ir.attributes import Raw, attribute_text
from meshc.ir.ranks import RankPart, Ranks
from meshc.ir.rows import Attention, Paired, Rows, TokenPart
from meshc.ir.tokens import Tokens
from meshc.support.diagnostics import fail
from meshc.support.spans import Span

_FACTS = {key.name for key in FACTS}
_NUMBERS = {key.name for key in NUMBERS}


def pairs_text(values: Mapping[str, object]) -> str:
    """``a = 1, b = 2``, as every section of a header is written."""
    return ", ".join(f"{name} = {attribute_text(value)}" for name, value in values.items())


def names_text(value: Rows | Attention) -> str:
    """``dim = L, capacity = S``: the fields that are not empty."""
    given = {f.name: getattr(value, f.name) for f in fields(value)}
    return pairs_text({name: dim for name, dim in given.items() if dim})


def read_rows(tokens: Tokens, start: Span) -> Rows:
    """The rows of a header, from the token behind their word on. Fails with ``bad-meshir``."""
    named = _names(tokens, "rows", ("dim", "capacity"), (), start)
    return Rows(named["dim"], named["capacity"])


def read_attention(tokens: Tokens, start: Span) -> Attention:
    """One attention of a header, from the token behind its word on. Fails with ``bad-meshir``."""
    named = _names(tokens, "attention", ("lane", "keys"), ("query", "key"), start)
    query, key = named.get("query", ""), named.get("key", "")
    if key and not query:
        fail("bad-meshir", "attention with heads of keys names no query heads", start)
    return Attention(query, key, named["lane"], named["keys"])


def paired_text(paired: Mapping[str, Paired]) -> str:
    """``wq = D, wk = [D, 16]``: the dim of each weight, and the lanes of a run where there are
    several."""
    return pairs_text({n: [p.dim, p.run] if p.run else p.dim for n, p in paired.items()})


def read_paired(tokens: Tokens, start: Span) -> dict[str, Paired]:
    """A dim for each weight, from the token behind the word ``paired`` on."""
    found: dict[str, Paired] = {}
    for name, raw in tokens.pairs().items():
        match raw if isinstance(raw, list) else [raw]:
            case [str(dim)]:
                found[name] = Paired(dim)
            case [str(dim), int(run)]:
                found[name] = Paired(dim, run)
            case _:
                fail("bad-meshir", f"what is paired of '{name}' is no name of a dim", start)
    return found


def ranks_lines(ranks: Ranks) -> list[str]:
    """The lines of the sections ``ranks`` and ``part``; defaults are left out."""
    lines = ["ranks " + pairs_text({"count": ranks.count})]
    for part in ranks.parts:
        given: dict[str, object] = {"dim": part.dim, "whole": part.whole}
        given |= {"team": part.team} if part.team else {}
        given |= {"copies": part.copies} if part.copies != 1 else {}
        lines.append("part " + pairs_text(given))
    return lines


def read_ranks(tokens: Tokens, start: Span) -> Ranks:
    """How many ranks there are, from the token behind the word on. Fails with ``bad-meshir``."""
    pairs = tokens.pairs()
    count = pairs.get("count")
    if pairs.keys() != {"count"} or not isinstance(count, int):
        fail(
            "bad-meshir", "a header says of ranks how many there are", start, help="ranks count = 2"
        )
    return Ranks(count)


def read_part(tokens: Tokens, start: Span) -> RankPart:
    """One part of a dim, from the token behind its word on. Fails with ``bad-meshir``."""
    pairs = tokens.pairs()
    dim, whole = pairs.get("dim"), pairs.get("whole")
    team, copies = pairs.get("team", 0), pairs.get("copies", 1)
    known = pairs.keys() <= {"dim", "whole", "team", "copies"}
    if not known or not isinstance(dim, str) or not isinstance(whole, str):
        help = "part dim = F_rank, whole = F"
        fail("bad-meshir", "a part is a dim of a whole dim", start, help=help)
    if type(team) is not int or type(copies) is not int:
        fail("bad-meshir", "team and copies of a part are whole numbers", start)
    return RankPart(dim, whole, team, copies)


def token_part_text(part: TokenPart) -> str:
    """``dim = B_first, first = 0``."""
    return pairs_text({"dim": part.dim, "first": part.first})


def read_token_part(tokens: Tokens, start: Span) -> TokenPart:
    """Some tokens of a batch, from the token behind their word on. Fails with ``bad-meshir``."""
    pairs = tokens.pairs()
    dim, first = pairs.get("dim"), pairs.get("first")
    if pairs.keys() != {"dim", "first"} or not isinstance(dim, str) or type(first) is not int:
        help = "tokens dim = B_first, first = 0"
        fail("bad-meshir", "tokens have a dim and a first one", start, help=help)
    return TokenPart(dim, first)


def as_cluster(raw: Raw | None, span: Span) -> tuple[int, int] | None:
    """A dim of a buffer and its extent in the memory of a cluster. Fails with ``bad-meshir``."""
    match raw:
        case None:
            return None
        case [int(dim), int(extent)]:
            return dim, extent
    fail("bad-meshir", "a cluster has some of a dim of a buffer: cluster = [1, 4]", span)


def _names(
    tokens: Tokens, section: str, needed: tuple[str, ...], others: tuple[str, ...], start: Span
) -> dict[str, str]:
    """The names of dims that a section gives, ``needed`` ones and perhaps ``others``."""
    found: dict[str, str] = {}
    for name, raw in tokens.pairs().items():
        if name not in needed + others:
            known = ", ".join(needed + others)
            fail("bad-meshir", f"{section} has no '{name}'; there are {known}", start)
        if not isinstance(raw, str):
            fail("bad-meshir", f"'{name}' of {section} is no name of a dim", start)
        found[name] = raw
    missing = [name for name in needed if not found.get(name)]
    if missing:
        fail("bad-meshir", f"{section} does not say its {missing[0]}", start)
    return found


def device_lines(device: Device) -> list[str]:
    """The lines of the section ``device``, those of numbers and levels indented."""
    lines = ["device " + pairs_text(device.facts), *_numbers_lines(device.numbers)]
    for level, own in device.level_links.items():
        lines.append(f"  level {level} {pairs_text(own.facts)}")
        lines += [f"  {line}" for line in _numbers_lines(own.numbers)]
    return lines


def _numbers_lines(numbers: Mapping[str, Number]) -> list[str]:
    lines = []
    for kind in KINDS:
        given = {
            name: KEYS[name].without if number.value is None else number.value
            for name, number in numbers.items()
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
    facts = _read_facts(tokens, _FACTS, start)
    if "name" not in facts:
        fail("bad-meshir", "the device has no name", start, help="write device name = ..")
    numbers = _read_numbers(tokens, _NUMBERS, start)
    links: dict[str, Numbers] = {}
    while tokens.take("level"):
        level = tokens.name()
        if level in links:
            fail("bad-meshir", f"level '{level}' of the device is given twice", start)
        own = _read_facts(tokens, _FACTS & {*LINK}, start)
        links[level] = Numbers(own, _read_numbers(tokens, _NUMBERS & {*LINK}, start))
    return device_of(facts, numbers, level_links=links)


def _read_facts(tokens: Tokens, names: set[str], start: Span) -> dict[str, str | bool]:
    """Facts among ``names``, from the first of them on."""
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
        facts[name] = _known(tokens, name, raw, names, start)  # type: ignore[assignment]
    return facts


def _read_numbers(tokens: Tokens, names: set[str], start: Span) -> dict[str, Number]:
    """Numbers among ``names``, behind words that say where they come from."""
    numbers: dict[str, Number] = {}
    while (kind := next((k for k in KINDS if k == tokens.token), None)) is not None:
        tokens.advance()
        for name, raw in tokens.pairs().items():
            if name in numbers:
                fail("bad-meshir", f"the number '{name}' of the device is given twice", start)
            numbers[name] = Number(_known(tokens, name, raw, names, start), kind)
    return numbers


def _known(
    tokens: Tokens, name: str, raw: Raw, names: set[str], start: Span
) -> int | float | bool | str:
    if name not in names:
        fail("bad-meshir", f"a device has no '{name}' here", start)
    return tokens.as_scalar(raw, start)
