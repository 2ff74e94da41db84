"""Sections as a page in Markdown and as an object of JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshc.driver.reproduction.compared import ROLES, Compared, Section, mean_error
from meshc.driver.reproduction.demands import Answer, answers
from meshc.published import Scalar

_HEAD = """\
# Published numbers beside predicted ones

Every table, figure and claim of the four papers that meshc comes from, and decode steps that an
H200 was timed at, beside what meshc predicts of them. `meshc reproduce` writes this page, `meshc
reproduce TABLE...` prints parts of it, by the names in brackets or a paper's first word, and
`--json` the numbers with the origin of each. Published numbers are facts in `meshc/published/data`.
Each has a role:
"""
_BEHIND = """
Means of absolute errors are over what is held out or interpolated, and of no value that a constant
was fitted to. How far the costs of the search are from the clock of emitted CSL, and that from the
simulator, is no paper's matter ([performance.md](performance.md)).
"""


def page(sections: Sequence[Section]) -> str:
    """All of it, with what was asked for where the sections say it."""
    lines = [_HEAD]
    lines += [f"* *{role}*: {words}" for role, words in ROLES.items()]
    lines += [_BEHIND]
    if found := answers(sections):
        lines += ["## What was asked for", "", *_answers(found), ""]
    for section in sections:
        lines += [*section_lines(section), ""]
    return "\n".join(lines).rstrip() + "\n"


def _answers(found: Sequence[Answer]) -> Iterator[str]:
    yield "| what | mean error | at most | values | required | aim | met |"
    yield "|---|---|---|---|---|---|---|"
    for one in found:
        demand = one.demand
        if demand.required is None:
            less = f", reasons of {one.explained}" if one.explained else ""
            cells = ["", "", f"{one.holding} of {one.rows} hold{less}", "all hold, or why not", ""]
        else:
            bound = _percent(demand.required)
            bound += f", none above {_percent(demand.most)}" if demand.most else ""
            cells = [
                _percent(one.mean), _percent(one.most), str(len(one.errors)), bound,
                _percent(demand.aim),
            ]  # fmt: skip
        yield _line([demand.what, *cells, "yes" if one.met else "**no**"])


def section_lines(section: Section) -> Iterator[str]:
    """A section as Markdown."""
    yield f"## {section.title} [{section.name}]"
    modelled = [row for row in section.rows if row.role != "not modelled"]
    if said := [*_said(section, modelled)]:
        yield ""
        yield from said
    if modelled:
        yield ""
        yield "| | | published | predicted | error | role |"
        yield "|---|---|---|---|---|---|"
        yield from (_line(_cells(row)) for row in modelled)
    yield from _unmodelled(section)


def _said(section: Section, modelled: Sequence[Compared]) -> Iterator[str]:
    """What stands above the rows."""
    if section.table.note:
        yield _sentence(section.table.note)
    if modelled:
        yield f"Predicted by {section.by}."
    if errors := [error for row in modelled for error in row.counted]:
        most = max(map(abs, errors))
        yield (
            f"Mean absolute error of {len(errors)} predictions that nothing was fitted to: "
            f"{_percent(mean_error(errors))}, at most {_percent(most)}."
        )
    yield from section.notes
    if section.constants:
        found = (
            f"{one.name} {_figure(one.value)} {one.unit}".rstrip() + f" ({one.source})"
            for one in section.constants
        )
        yield f"Constants: {'; '.join(found)}."


def _cells(row: Compared) -> list[str]:
    published = _figure(row.published) + (" (uncertain)" if row.uncertain else "")
    error = "" if row.error is None else f"{100 * row.error:+.1f} %"
    if len(row.errors) > 1:
        error = ", ".join(f"{100 * one:+.1f}" for one in row.errors) + " %"
    if row.holds is not None:
        error = "holds" if row.holds else "**does not hold**"
    role = f"{row.role}: {row.why}" if row.why else str(row.role)
    unit = f"{row.metric.replace('_', ' ')}{', ' + row.unit if row.unit else ''}"
    return [row.what, unit, published, _figure(row.predicted), error, role]


MOST_LISTED = 8
"""Values that nothing predicts for the same reason and that are written out; more are counted."""


def _unmodelled(section: Section) -> Iterator[str]:
    reasons: dict[str, list[Compared]] = {}
    for row in section.rows:
        if row.role == "not modelled":
            reasons.setdefault(row.why, []).append(row)
    for why, rows in reasons.items():
        yield ""
        yield f"*Not modelled*, {why}: {_listed(rows)}."


def _listed(rows: Sequence[Compared]) -> str:
    """Values in words, or how many there are of each metric."""
    if len(rows) > MOST_LISTED and all(row.metric != "value" for row in rows):
        counts: dict[str, int] = {}
        for row in rows:
            counts[row.metric] = counts.get(row.metric, 0) + 1
        return ", ".join(
            f"{count} values of {metric.replace('_', ' ')}" for metric, count in counts.items()
        )
    found = []
    for row in rows:
        metric = "" if row.metric == "value" else f" {row.metric.replace('_', ' ')}"
        found.append(f"{row.what}{metric}: {_figure(row.published)} {row.unit}".rstrip())
    return "; ".join(found)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _figure(value: Scalar | None) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if float(value).is_integer() and abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.3g} %"


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def sections_object(sections: Sequence[Section]) -> dict[str, object]:
    """The same for machines: each published value with its source, each predicted one with what
    predicts it, and for a section the numbers and constants that this rests on."""
    return {
        "roles": dict(ROLES),
        "demands": [_answer_object(one) for one in answers(sections)],
        "sections": [_object(section) for section in sections],
    }


def _answer_object(one: Answer) -> dict[str, object]:
    demand = one.demand
    return {
        "what": demand.what,
        "sections": demand.sections,
        "mean_error": one.mean,
        "most_error": one.most,
        "values": len(one.errors),
        "holding": one.holding,
        "explained": one.explained,
        "judged": one.rows,
        "required": demand.required,
        "required_most": demand.most,
        "aim": demand.aim,
        "met": one.met,
    }


def _object(section: Section) -> dict[str, object]:
    return {
        "name": section.name,
        "title": section.title,
        "predicted_by": section.by,
        "inputs": [
            {"name": i.name, "value": i.value, "unit": i.unit, "kind": i.kind, "source": i.source}
            for i in section.inputs
        ],
        "constants": [
            {
                "name": c.name,
                "value": c.value,
                "unit": c.unit,
                "kind": "calibrated",
                "source": c.source,
            }
            for c in section.constants
        ],
        "notes": section.notes,
        "rows": [
            {
                "what": row.what,
                "metric": row.metric,
                "unit": row.unit,
                "published": {
                    "value": row.published,
                    "source": f"{section.table.paper}: {section.title.partition(': ')[2]}",
                    "uncertain": row.uncertain,
                },
                "predicted": None
                if row.predicted is None
                else {"value": row.predicted, "source": section.by},
                "role": row.role,
                "why": row.why,
                "error": row.error,
                "errors": row.counted,
                "holds": row.holds,
            }
            for row in section.rows
        ],
    }
