"""``meshc estimate``: algorithms of a product on a mesh, in PLMR terms."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from meshc.cli.output import print_json
from meshc.driver.estimating import Estimate, estimates
from meshc.driver.questions import Question
from meshc.support.diagnostics import fail

_DESCRIPTION = """\
Compile C[M, N] = A[M, K] B[K, N] by every algorithm for a mesh and count what it takes of a core:
routing paths, longest way of a step and of the whole program in hops (alpha) and routing stages
(beta), memory, predicted cycles, and which of P, L, M and R it violates. GEMV is the product of one
row. A second table says how these grow on P x P cores, from programs compiled for several P.
"""
_HEAD = ("algorithm", "paths", "queues", "reach", "step", "path", "bytes", "cycles", "violates")
_LAWS = ("algorithm", "paths", "step", "path", "bytes")


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "estimate", help="compare algorithms of a product", description=_DESCRIPTION
    )
    for name in ("M", "K", "N"):
        parser.add_argument(name.lower(), metavar=name, type=int)
    parser.add_argument("--plmr", action="store_true", help="the table in PLMR terms")
    parser.add_argument("--mesh", default="8x8", metavar="WxH", help="default: %(default)s")
    parser.add_argument("--device", default="wse2", metavar="NAME", help="default: %(default)s")
    parser.add_argument("--dtype", default="", metavar="f32|f16", help="default: the device's own")
    parser.add_argument(
        "--accumulate", default="f32", metavar="f32|f16", help="of sums; default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Estimate and print."""
    if not options.plmr:
        fail("bad-argument", "say what to estimate", help="--plmr is the table there is")
    question = Question(
        options.m,
        options.k,
        options.n,
        options.mesh,
        options.device,
        options.dtype,
        options.accumulate,
    )
    found = estimates(question)
    if options.json:
        print_json({**asdict(question), "algorithms": [_object(e) for e in found]})
    else:
        print("\n".join(_tables(question, found)))
    return 0


def _object(estimate: Estimate) -> dict[str, object]:
    counted = estimate.profile
    return {
        "kind": estimate.kind,
        "algo": estimate.algo,
        "routing_paths": counted.paths,
        "input_queues": counted.inputs,
        "reach": counted.reach,
        "step": {"alpha": counted.step.hops, "beta": counted.step.stages},
        "path": {"alpha": counted.total.hops, "beta": counted.total.stages},
        "bytes": estimate.bytes,
        "cycles": round(estimate.cycles),
        "growth": {
            "routing_paths": estimate.laws.paths,
            "step": estimate.laws.step,
            "path": estimate.laws.path,
            "bytes": estimate.laws.bytes,
        },
        "violates": estimate.violates,
    }


def _tables(question: Question, found: list[Estimate]) -> list[str]:
    """A table for each kind of product, then why letters are violated."""
    lines: list[str] = []
    for kind, rows in (("gemm", question.m), ("gemv", 1)):
        mine = [e for e in found if e.kind == kind]
        size = f"[{rows}, {question.k}] x [{question.k}, {question.n}]"
        lines += ["", f"{kind.upper()} {size} on {question.mesh} cores of {question.device}"]
        lines += _table([_HEAD, *map(_row, mine)])
        for estimate in mine:
            reasons = [f"{letter}: {why}" for letter, why in estimate.violates.items()]
            lines += [f"  {estimate.algo}: {'; '.join(reasons)}"] if reasons else []
        lines += ["", f"{kind.upper()} on P x P cores"]
        lines += _table([_LAWS, *map(_laws, mine)])
    return lines[1:]


def _row(estimate: Estimate) -> tuple[str, ...]:
    counted = estimate.profile
    return (
        estimate.algo,
        str(counted.paths),
        str(counted.inputs),
        str(counted.reach),
        f"{counted.step.hops}a + {counted.step.stages}b",
        f"{counted.total.hops}a + {counted.total.stages}b",
        str(estimate.bytes),
        f"{estimate.cycles:.0f}",
        " ".join(estimate.violates) or "-",
    )


def _laws(estimate: Estimate) -> tuple[str, ...]:
    how = estimate.laws
    return estimate.algo, *(f"O({law})" for law in (how.paths, how.step, how.path, how.bytes))


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
