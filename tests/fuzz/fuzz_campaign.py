"""Fuzz every parser of the project: ``python tests/fuzz/fuzz_campaign.py --count 100000``.

Every input must end in a result or in diagnosed errors, within 5 s of processor time and 1 GiB of
memory: no traceback, no exit 3, no kill. Failures are made small and written to ``--out``. The same
``--seed`` gives the same inputs.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from fuzz_limits import Child, Verdict
from fuzz_subjects import SUBJECTS, Case, as_json
from tqdm import tqdm

_FRESH_EVERY = 2_000
_MOST_TRIES = 250


@dataclass
class Failure:
    """The first input that failed in a way, and how many did."""

    subject: str
    number: int
    verdict: Verdict
    case: Case
    count: int = 1


@dataclass
class Report:
    """Counts by subject and outcome and by diagnostic code, and the failures by kind."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    failures: dict[tuple[str, str, str], Failure] = field(default_factory=dict)

    def text(self) -> str:
        """The counts as tables."""
        total = sum(self.outcomes.values())
        lines = [f"{total} inputs"]
        for subject in SUBJECTS:
            mine = {o: n for (s, o), n in sorted(self.outcomes.items()) if s == subject}
            if mine:
                counts = ", ".join(f"{outcome} {count}" for outcome, count in mine.items())
                lines.append(f"  {subject:12} {counts}")
        lines.append("refusals by code")
        lines += [f"  {code:28} {count}" for code, count in self.codes.most_common()]
        lines.append(f"{len(self.failures)} kinds of failures")
        for failure in self.failures.values():
            found = failure.verdict
            lines.append(
                f"  {failure.subject} {failure.number}: {found.outcome} at {found.place or '?'} "
                f"({failure.count} times): {found.words}"
            )
        return "\n".join(lines)


def campaign(
    count: int,
    seed: int = 0,
    only: tuple[str, ...] = (),
    smallest: bool = True,
    out: Path | None = None,
    seconds: float | None = None,
) -> Report:
    """Run ``count`` inputs, or as many as ``seconds`` allow, and gather what they end in. On a
    terminal their number is shown as it grows."""
    report, child, random = Report(), Child(), Random(seed)
    names = [s.name for s in SUBJECTS.values() if not only or s.name in only]
    shares = [SUBJECTS[name].share for name in names]
    start = time.monotonic()
    try:
        for number in tqdm(range(count), unit=" inputs", disable=None):
            if seconds is not None and time.monotonic() - start > seconds:
                break
            if number % _FRESH_EVERY == _FRESH_EVERY - 1:
                child.close()
            (subject,) = random.choices(names, shares)
            chosen = random.randrange(1 << 48)
            verdict = child.ask({"subject": subject, "number": chosen})
            report.outcomes[subject, verdict.outcome] += 1
            report.codes.update(verdict.codes)
            if not verdict.sound:
                _record(report, child, subject, chosen, verdict, smallest, out)
    finally:
        child.close()
    return report


def _record(
    report: Report,
    child: Child,
    subject: str,
    number: int,
    verdict: Verdict,
    smallest: bool,
    out: Path | None,
) -> None:
    """Count a failure; the first of its kind is made small and written."""
    key = (subject, verdict.outcome, verdict.place)
    if key in report.failures:
        report.failures[key].count += 1
        return
    case = SUBJECTS[subject].case(number)
    if smallest and verdict.outcome not in ("slow", "killed"):
        case = minimised(child, subject, case, verdict)
    report.failures[key] = Failure(subject, number, verdict, case)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"\W+", "-", f"{subject}-{verdict.outcome}-{verdict.place}")
        text = f"{verdict.words}\n{as_json(case)}\n"
        (out / f"{name}-{number}.txt").write_text(text, encoding="utf-8")
        main_file = out / f"{name}-{number}-{Path(case.name).name}"
        main_file.write_bytes(case.files.get(case.name, b""))


def minimised(child: Child, subject: str, case: Case, verdict: Verdict) -> Case:
    """A smaller input that fails at the same place: pieces are left out as long as it does."""
    tries = 0

    def fails(data: bytes) -> bool:
        nonlocal tries
        tries += 1
        files = {**case.files, case.name: data}
        encoded = {name: base64.b64encode(d).decode() for name, d in files.items()}
        found = child.ask({"subject": subject, "files": encoded, "arguments": case.arguments})
        return (found.outcome, found.place) == (verdict.outcome, verdict.place)

    data = case.files.get(case.name, b"")
    pieces = re.findall(rb"[^\n]*\n|[^\n]+", data)
    for split in (rb"[^\n]*\n|[^\n]+", rb"\w+|\s+|[^\w\s]"):
        pieces = re.findall(split, data)
        size = max(1, len(pieces) // 2)
        while size and tries < _MOST_TRIES:
            at = 0
            while at < len(pieces) and tries < _MOST_TRIES:
                shorter = pieces[:at] + pieces[at + size :]
                if fails(b"".join(shorter)):
                    pieces = shorter
                else:
                    at += size
            size //= 2
        data = b"".join(pieces)
    return Case({**case.files, case.name: data}, case.arguments)


def main(arguments: list[str] | None = None) -> int:
    """The command: 0 when every input ended as it must, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="stop after so many")
    parser.add_argument("--only", action="append", default=[], choices=list(SUBJECTS))
    parser.add_argument("--out", type=Path, help="a folder for the inputs that fail")
    parser.add_argument("--show", metavar="SUBJECT:NUMBER", help="print an input and run it")
    options = parser.parse_args(arguments)
    if options.show:
        return _show(options.show)
    report = campaign(
        options.count, options.seed, tuple(options.only), out=options.out, seconds=options.seconds
    )
    print(report.text())
    return 1 if report.failures else 0


def _show(text: str) -> int:
    subject, _, number = text.partition(":")
    case = SUBJECTS[subject].case(int(number))
    print(as_json(case))
    child = Child()
    verdict = child.ask({"subject": subject, "number": int(number)})
    child.close()
    print(json.dumps(verdict.__dict__, indent=1))
    return 0 if verdict.sound else 1


if __name__ == "__main__":
    sys.exit(main())
