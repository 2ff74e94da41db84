"""Check and time the kernels of a decode step on a GPU.

    python benchmarks/gpu/decode.py --out DIR [--program DIR] [--parts checks,ceiling,decode,torch]

Checks kernels beside float64 and beside the executor on the CPU; measures what the device does at
best; times the whole step beside the time that the device needs to read its bytes, and beside
PyTorch where it is installed. Layers have weights of their
own, so that each is read from memory. Each unit is a process with a time limit, the simplest first.
What it finds is written as it comes, to DIR/results.jsonl; DIR/tables.md has the tables of all of
it. docs/gpu-first-run.md gives the commands in order.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import isolated
import parts
from prepared import Prepared, add_options, at_least_one, compile_into, opened
from records import Records
from tables import as_markdown, clocks

from meshc.backends.cuda.driver.driver_api import LIBRARY
from meshc.backends.cuda.driver.gpu import Device
from meshc.support.diagnostics import MeshcError, fail
from meshc.support.native import BuildError

_PROGRAM, _TABLES = "program", "tables.md"


def main(given: Sequence[str] | None = None) -> int:
    """The exit code: 1 without a GPU, for a wrong kernel, for what was refused or took too long,
    and where the time did not suffice for all."""
    arguments = list(sys.argv[1:] if given is None else given)
    options = _options(arguments)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        found = _program(options)
        if options.unit is not None:
            return _do(options, found)
        return _all(options, arguments, found)
    except (MeshcError, BuildError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1


def _program(options: argparse.Namespace) -> Prepared:
    """The program of ``--program``, or one that is compiled for this run, once."""
    folder = options.program or options.out / _PROGRAM
    if options.program is None and options.unit is None:
        capacity = max(options.contexts) + 1
        compiled = options.model, options.dtype, options.batch, capacity, options.page
        return compile_into(folder, *compiled)
    found = opened(folder)
    options.contexts = tuple(n for n in options.contexts if n < found.program.capacity)
    if not options.contexts:
        capacity = found.program.capacity
        fail("no-program", f"the program keeps {capacity} tokens, fewer than any context has")
    return found


def _do(options: argparse.Namespace, found: Prepared) -> int:
    """One unit, in this process."""
    with Device(library=options.driver) as device:
        right = parts.do(options.unit, device, found, Records(options.out), options)
    return 0 if right else 1


def _all(options: argparse.Namespace, arguments: list[str], found: Prepared) -> int:
    records, start = Records(options.out), time.monotonic()
    units, asked = list(parts.unit_names(found, options)), _asked(options)
    done = {
        r["unit"]
        for r in records.read()
        if r["kind"] == "ended" and r["code"] == 0 and r["asked"] == asked
    }
    program = [] if options.program else ["--program", str(options.out / _PROGRAM)]
    failed: list[str] = []
    for n, unit in enumerate(units):
        if options.resume and unit in done:
            continue
        # What one part found wrong is no base for the times of another.
        if failed and _part(failed[-1]) != _part(unit) and not options.anyway:
            _say(f"{failed[-1]} failed, so nothing behind its part is done (--anyway does it)")
            break
        if n and time.monotonic() - start + options.limit > options.budget:
            _say(f"{len(units) - n} units are left: run it again with --resume")
            failed.append(unit)
            break
        _say(unit)
        ended = isolated.run([*arguments, *program, "--unit", unit], options.limit)
        seconds = round(ended.seconds, 3)
        records.add("ended", unit=unit, code=ended.code, seconds=seconds, asked=asked)
        if ended.code != 0:
            failed.append(unit)
            took = f"took more than {options.limit} s" if ended.code is None else "failed"
            _say(f"{unit} {took}")
    records.add("clocks", clocks=clocks())
    text = as_markdown(records.read())
    (options.out / _TABLES).write_text(text + "\n", encoding="utf-8")
    print(text)
    return 1 if failed else 0


def _asked(options: argparse.Namespace) -> dict[str, object]:
    """What a unit of the same name must have in common to be the same."""
    return {
        "program": str(options.program),
        "contexts": list(options.contexts),
        "executor": options.executor,
    }


def _part(unit: str) -> str:
    return unit.partition(":")[0]


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _options(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for the results")
    parser.add_argument(
        "--program", type=Path, metavar="DIR", help="made by prepared.py; default: it is compiled"
    )
    add_options(parser)
    parser.add_argument(
        "--beside", type=Path, metavar="DIR", help="another program of the model, for its logits"
    )
    parser.add_argument("--repeats", type=at_least_one, default=50)
    parser.add_argument(
        "--read-mib", type=at_least_one, default=2048, help="bytes of the read ceiling"
    )
    known = ",".join(parts.PARTS)
    parser.add_argument("--parts", type=_parts, default=parts.PARTS, help=f"some of {known}")
    parser.add_argument(
        "--no-executor", dest="executor", action="store_false", help="check beside float64 alone"
    )
    parser.add_argument("--limit", type=at_least_one, default=120, help="seconds of a unit")
    parser.add_argument("--budget", type=at_least_one, default=540, help="seconds of this command")
    parser.add_argument("--resume", action="store_true", help="leave out units that are done")
    parser.add_argument("--anyway", action="store_true", help="go on behind what failed")
    parser.add_argument("--driver", default=LIBRARY, metavar="LIB.so", help="of CUDA")
    parser.add_argument("--unit", metavar="NAME", help="do this one alone, in this process")
    return parser.parse_args(given)


def _parts(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if unknown := [name for name in found if name not in parts.PARTS]:
        raise argparse.ArgumentTypeError(f"'{unknown[0]}' is none of {', '.join(parts.PARTS)}")
    return found


if __name__ == "__main__":
    sys.exit(main())
