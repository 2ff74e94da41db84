"""Outcomes in a file, from which a run that was interrupted goes on.

The first line says what was asked and by which code, each other line is an outcome; all are JSON
objects. A last line without an end, which an interrupted run may leave, counts as not there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from meshc.driver.tuning.configurations import Configuration, Outcome
from meshc.support.declared_values import declared
from meshc.support.diagnostics import fail
from meshc.support.files import read_text, reported

_LIMIT_BYTES = 64 << 20
_AGAIN = "name another file, or remove this one to begin again"


@dataclass
class Results:
    """Outcomes by configuration, which ``file``, where one is named, gets as they come."""

    file: Path | None = None
    known: dict[Configuration, Outcome] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome. Raises ``unwritable``."""
        self.known[outcome.configuration] = outcome
        if self.file is not None:
            self._append(asdict(outcome))

    def _append(self, value: Mapping[str, object]) -> None:
        assert self.file is not None
        with reported(self.file), self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(value, ensure_ascii=False) + "\n")


def results_in(
    file: Path | None, question: Mapping[str, object], asks: Callable[[Configuration], bool]
) -> Results:
    """The results of ``question`` that ``file`` has so far, which is made if it is not there.

    Raises ``results-differ`` for a file of another question, or with an outcome of a configuration
    that the question does not ask for (``asks``) or that was there before; ``results-invalid`` for
    one that is none; ``unreadable`` and ``unwritable``.
    """
    found = Results(file)
    if file is None:
        return found
    lines = _lines(file) if file.exists() else []
    if not lines:
        found._append({"question": dict(question)})
        return found
    _check_question(file, _read(file, 1, lines[0]), question)
    for number, line in enumerate(lines[1:], 2):
        try:
            outcome = declared(Outcome, _read(file, number, line))
            _check_counts(outcome)
        except ValueError:
            fail("results-invalid", f"line {number} of '{file}' is no outcome", help=_AGAIN)
        if outcome.configuration in found.known or not asks(outcome.configuration):
            words = "is of a configuration that is not asked for, or there twice"
            fail("results-differ", f"line {number} of '{file}' {words}", help=_AGAIN)
        found.known[outcome.configuration] = outcome
    return found


def _lines(file: Path) -> list[str]:
    """The whole lines of a file, which loses what stands behind them."""
    text = read_text(file, _LIMIT_BYTES).text
    whole = text[: text.rfind("\n") + 1]
    if text and not whole:
        fail("results-invalid", f"'{file}' holds no results of a tuning", help=_AGAIN)
    if whole != text:
        with reported(file), file.open("r+b") as stream:
            stream.truncate(len(whole.encode()))
    return whole.splitlines()


def _read(file: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        fail("results-invalid", f"line {number} of '{file}' is no JSON object", help=_AGAIN)
    return value


def _check_question(file: Path, head: dict[str, Any], question: Mapping[str, object]) -> None:
    asked = head.get("question")
    if not isinstance(asked, dict):
        fail("results-invalid", f"'{file}' holds no results of a tuning", help=_AGAIN)
    here = json.loads(json.dumps(dict(question)))
    other = [name for name in dict.fromkeys((*here, *asked)) if asked.get(name) != here.get(name)]
    if other:
        notes = [f"{name}: {asked.get(name)} there, {here.get(name)} here" for name in other]
        words = f"'{file}' has results of another question ({', '.join(other)})"
        fail("results-differ", words, notes=notes, help=_AGAIN)


def _check_counts(outcome: Outcome) -> None:
    """What is counted is not below 0, and a run takes time. Raises ValueError."""
    own = outcome.configuration
    counts = own.gpus, own.batch, own.cluster, outcome.units, outcome.tokens
    if min(counts) < 0 or (outcome.seconds is not None and outcome.seconds <= 0):
        raise ValueError(f"no outcome has {outcome}")
