"""The long run: random programs against float64.

    python tests/differential/run.py --count 5000 --seed 1
    python tests/differential/run.py --seed 1 --case 17     # one case, made small if it fails

Prints a table of outcomes, refusals by code, and how often each feature took part in a match.
Exits 1 if anything mismatched or failed inside the compiler.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from cases import AnyCase, Case, draw_case, in_regions
from judging import Outcome
from reducing import reduced
from workers import Judges

TARGETS = {
    "python": 69.0,
    "csl": 4.0,
    "cuda": 3.0,
    "tasks": 7.0,
    "answers": 8.0,
    "checkpoints": 9.0,
}
"""What is drawn, and how often: programs for one target each, or models of tokens and whole
checkpoints with any options for any target."""


_TOLD = 100
"""Behind so many cases counts are told."""


def main() -> int:
    """Run the cases that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument(
        "--regions",
        type=int,
        default=1,
        help="deal layers to so many; programs without are left out",
    )
    parser.add_argument("--target", help=f"one of {', '.join(TARGETS)}, or several with commas")
    parser.add_argument(
        "--examples", type=int, default=0, help="print so many refusals of each code"
    )
    parser.add_argument("--as-drawn", action="store_true", help="failing cases are not made small")
    parser.add_argument("--minutes", type=float, default=1e6, help="no case begins later")
    parser.add_argument("--tries", type=int, default=300, help="to make a failing case small")
    args = parser.parse_args()
    names = args.target.split(",") if args.target else list(TARGETS)
    targets = {name: TARGETS[name] for name in names}
    chosen = [args.case] if args.case is not None else range(args.first, args.first + args.count)
    started, tally = time.time(), Tally()
    with Judges() as judges:
        for index in chosen:
            if time.time() > started + 60 * args.minutes:
                break
            case = draw_case(args.seed, index, targets)
            if args.regions > 1:
                if not isinstance(case, Case) or not case.has_layers:
                    continue
                case = in_regions(case, args.regions)
            outcome = judges.judge(case)
            tally.add(case, outcome)
            if sum(tally.kinds.values()) % _TOLD == 0:
                seconds = time.time() - started
                print(
                    f"{index} after {seconds:.0f} s\n{tally.counts()}", file=sys.stderr, flush=True
                )
            if outcome.kind in ("mismatch", "fault"):
                if not args.as_drawn:
                    alike = _like(judges, outcome)
                    case = reduced(case, alike, args.tries)
                    outcome = judges.judge(case)
                told(case, outcome)
            shown = tally.codes[case.group, outcome.code] <= args.examples
            if outcome.kind == "refused" and shown:
                told(case, outcome)
    print(tally.table())
    print(f"{time.time() - started:.0f} s")
    return 1 if tally.failed else 0


def _like(judges: Judges, outcome: Outcome) -> Callable[[AnyCase], bool]:
    return lambda case: judges.judge(case).is_like(outcome)


def told(case: AnyCase, outcome: Outcome) -> None:
    """Print what came of a case."""
    print(f"--- {outcome.kind} {outcome.code}\n{case.text()}{case.words()}")
    print(outcome.detail, flush=True)


class Tally:
    """Counts outcomes."""

    def __init__(self) -> None:
        self.kinds: Counter[tuple[str, str]] = Counter()
        self.codes: Counter[tuple[str, str]] = Counter()
        self.failed: Counter[str] = Counter()
        self.features: dict[str, Counter[str]] = defaultdict(Counter)
        self.ratio = 0.0

    def add(self, case: AnyCase, outcome: Outcome) -> None:
        """Count one case."""
        self.kinds[case.group, outcome.kind] += 1
        if outcome.kind == "refused":
            self.codes[case.group, outcome.code] += 1
        if outcome.kind in ("mismatch", "fault"):
            self.failed[f"{outcome.kind} {outcome.code}"] += 1
        if outcome.kind == "match":
            self.ratio = max(self.ratio, outcome.ratio)
        for feature in case.features():
            self.features[feature][outcome.kind] += 1

    def counts(self) -> str:
        """How many cases of what is drawn ended in which way."""
        lines = ["target               match  refused  mismatch  fault"]
        for target in sorted({t for t, _ in self.kinds}):
            counts = [self.kinds[target, k] for k in ("match", "refused", "mismatch", "fault")]
            lines.append("{:19s} {:6d} {:8d} {:9d} {:6d}".format(target, *counts))
        return "\n".join(lines)

    def table(self) -> str:
        """Everything, as text."""
        lines = ["", self.counts(), "", "refused by code"]
        for (target, code), count in self.codes.most_common():
            lines.append(f"  {count:5d}  {code} ({target})")
        lines += ["", "failures"] + [f"  {n:5d}  {w}" for w, n in self.failed.most_common()]
        lines += ["", f"largest error of a match: {self.ratio:.3f} of its bound", ""]
        lines += ["match  other  feature"]
        for feature, counts in sorted(self.features.items()):
            other = sum(counts.values()) - counts["match"]
            lines.append(f"{counts['match']:5d}  {other:5d}  {feature}")
        return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
