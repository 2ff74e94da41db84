"""What two recorded compiles have in common and what not: memory, costs, modules, emitted text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any

from meshc.driver.record_files import FABRIC, RECORD, TIMELINE
from meshc.support.diagnostics import fail
from meshc.support.output import MANIFEST
from meshc.view.changes import changes
from meshc.view.data import page_data
from meshc.view.recorded import Recorded, read_listed

_OWN = (RECORD, TIMELINE, FABRIC, MANIFEST)
_CONTEXT = 3


def differences(one: Recorded, other: Recorded) -> dict[str, Any]:
    """How two compiles differ, as JSON values: phases that both have with their memory, costs by op
    and the first pass behind which their modules differ, and files that differ with the number of
    lines that only one has. Fails with ``bad-argument`` for what was not compiled."""
    for recorded in (one, other):
        if not recorded.phases:
            fail("bad-argument", f"a {recorded.record['kind']} has no phases that were compiled")
    data = [page_data(recorded) for recorded in (one, other)]
    phases = [{phase["name"]: phase for phase in found["phases"]} for found in data]
    names = [[*found] for found in phases]
    return {
        "models": [found["model"] for found in data],
        "devices": [found["device"] for found in data],
        "targets": [found["target"] for found in data],
        "only": [[name for name in names[n] if name not in names[1 - n]] for n in (0, 1)],
        "phases": [
            _of_phase(name, phases[0][name], phases[1][name])
            for name in names[0]
            if name in phases[1]
        ],
        "files": _of_files(one, other),
    }


def _of_phase(name: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = (one, other)
    memory = [phase["memory"] or {"uses": {}, "left": None} for phase in both]
    costs = [_costs(phase) for phase in both]
    ops = dict.fromkeys([*costs[0]["ops"], *costs[1]["ops"]])
    return {
        "phase": name,
        "memory": _beside(*(found["uses"] for found in memory)),
        "left": [found["left"] for found in memory],
        "unit": [found["unit"] for found in costs],
        "total": [found["total"] for found in costs],
        "ops": [
            {"op": op, "costs": pair}
            for op in ops
            if len(set(pair := [found["ops"].get(op) for found in costs])) > 1
        ],
        "passes": [[step["pass"] for step in phase["steps"]] for phase in both],
        "differs_behind": _differs(one, other),
    }


def _beside(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, list[int | None]]:
    return {use: [one.get(use), other.get(use)] for use in dict.fromkeys([*one, *other])}


def _costs(phase: Mapping[str, Any]) -> dict[str, Any]:
    """Predicted costs by op: those of the clock where it has them. Ops of one name are one."""
    if phase["clock"] is not None:
        rows = [(row["op"], row["cost"]) for row in phase["clock"]["rows"]]
        unit = "cycles"
    elif phase["costs"] is not None:
        rows = [(row["op"], sum(row["parts"])) for row in phase["costs"]["rows"]]
        unit = phase["costs"]["unit"]
    else:
        return {"unit": None, "total": None, "ops": {}}
    ops: dict[str, float] = {}
    for name, cost in rows:
        ops[name] = ops.get(name, 0) + cost
    return {"unit": unit, "total": sum(ops.values()), "ops": ops}


def _differs(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first step behind which modules differ, "as given" before all; None where none do."""
    for mine, theirs in zip(one["steps"], other["steps"], strict=False):
        if _text(one, mine) != _text(other, theirs):
            return mine["pass"] or "as given"
    if len(one["steps"]) != len(other["steps"]):
        longer = max(one["steps"], other["steps"], key=len)
        return str(longer[min(len(one["steps"]), len(other["steps"]))]["pass"])
    return None


def _text(phase: Mapping[str, Any], step: Mapping[str, Any]) -> str:
    return str(phase["modules"][step["module"]]["text"])


def _of_files(one: Recorded, other: Recorded) -> list[dict[str, Any]]:
    hashes = [recorded.facts["sha256"] for recorded in (one, other)]
    found = []
    for name in sorted({*hashes[0], *hashes[1]} - {*_OWN}):
        if hashes[0].get(name) == hashes[1].get(name):
            continue
        texts = [read_listed(recorded, name) for recorded in (one, other)]
        if texts[0] is None or texts[1] is None:
            found.append({"file": name, "lines": None})
            continue
        parts = changes(texts[0], texts[1])
        counts = [sum(b - a for a, b, _, _ in parts), sum(d - c for _, _, c, d in parts)]
        found.append({"file": name, "lines": counts})
    return found


def module_difference(
    one: Recorded, other: Recorded, phase: str, step: str, names: tuple[str, str]
) -> list[str]:
    """The modules of a ``phase`` behind the pass ``step`` as lines of a unified difference; behind
    the last one where ``step`` is empty. Fails with ``bad-argument`` where one has no such pass."""
    texts = []
    for recorded, name in zip((one, other), names, strict=True):
        found = next((p for p in recorded.phases if p["phase"] == phase), None)
        steps = [] if found is None else found["steps"]
        named = [s for s in steps if not step or s["pass"].partition("{")[0] == step]
        if not named or found is None:
            fail("bad-argument", f"'{name}' has no module behind the pass '{step}' in {phase}")
        texts.append(found["modules"][named[-1]["module"]]["text"].split("\n"))
    return _unified(texts[0], texts[1], *names)


def file_difference(one: Recorded, other: Recorded, name: str, names: tuple[str, str]) -> list[str]:
    """A file of both as lines of a unified difference. Fails with ``bad-argument`` where one has no
    such text."""
    texts = []
    for recorded, folder in zip((one, other), names, strict=True):
        text = read_listed(recorded, name)
        if text is None:
            fail("bad-argument", f"'{folder}' has no text '{name}'")
        texts.append(text)
    mine, theirs = (str(Path(folder) / name) for folder in names)
    return _unified(texts[0], texts[1], mine, theirs)


def _unified(one: Sequence[str], other: Sequence[str], name: str, others: str) -> list[str]:
    return list(unified_diff(one, other, name, others, n=_CONTEXT, lineterm=""))
