"""The stand-in for the compiler command: same flags, same output folder."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from meshc.sim.csl_compiler import compile_program
from meshc.sim.sema.csl_types import BF16, CB16, F16, Float
from meshc.sim.stored_programs import FILE_NAME, save_program
from meshc.support.diagnostics import Diagnostic, MeshcError, fail

_INTERNAL = (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cslc", description="Compile a CSL program.")
    parser.add_argument("layout")
    parser.add_argument("--arch", default="wse2", choices=["wse2", "wse3"])
    parser.add_argument("--fabric-dims", default="0,0")
    parser.add_argument("--fabric-offsets")
    parser.add_argument("--params", action="append", default=[])
    parser.add_argument("--colors", action="append", default=[])
    parser.add_argument("-o", default="out", dest="out")
    parser.add_argument("--import-path", action="append", default=[])
    for flag in ("--memcpy", "--verbose"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--fp16-format", default="f16")
    for option in ("--channels", "--width-west-buf", "--width-east-buf", "--max-parallelism",
                   "--max-inlined-iterations"):  # fmt: skip
        parser.add_argument(option)
    return parser


def pairs(entries: Sequence[str]) -> dict[str, int]:
    """``a:1,b:2`` as a dict."""
    found: dict[str, int] = {}
    for entry in filter(None, ",".join(entries).split(",")):
        name, _, value = entry.partition(":")
        try:
            found[name.strip()] = int(value, 0)
        except ValueError:
            fail("csl-usage", f"'{entry}' is not of the form NAME:INTEGER")
    return found


def half(name: str) -> Float:
    """The format of 16-bit floats that ``--fp16-format`` names. Raises ``csl-usage`` for what is
    none, ``csl-unsupported`` for cb16."""
    found = {"f16": F16, "bf16": BF16, "cb16": CB16}.get(name)
    if found is None:
        fail("csl-usage", f"'{name}' is no FP16 format; there are f16, cb16 and bf16")
    if found == CB16:
        fail("csl-unsupported", "the simulator computes in f16 and bf16 only, not in cb16")
    return found


def size(text: str) -> tuple[int, int]:
    """``w,h`` as numbers."""
    try:
        width, height = (int(part) for part in text.split(","))
    except ValueError:
        fail("csl-usage", f"'{text}' is not of the form WIDTH,HEIGHT")
    return width, height


def main(argv: Sequence[str] | None = None) -> int:
    """Compile; errors go to standard error and give exit code 1."""
    sys.setrecursionlimit(50_000)
    given = [a.removeprefix("=") for a in argv or sys.argv[1:]]
    args, _ = _parser().parse_known_args([a.replace("-o=", "-o", 1) if a.startswith("-o=") else a
                                          for a in given])  # fmt: skip
    try:
        program = compile_program(
            args.layout,
            args.arch,
            pairs(args.params),
            pairs(args.colors),
            size(args.fabric_dims),
            size(args.fabric_offsets or ("4,1" if args.memcpy else "0,0")),
            args.import_path,
            half(args.fp16_format),
        )
    except MeshcError as problem:
        print(problem, file=sys.stderr)
        return 1
    except RecursionError:
        message = "the program is nested too deeply"
        print(Diagnostic("error", "csl-comptime", message).render(), file=sys.stderr)
        return 1
    except _INTERNAL as problem:
        words = f"internal error of the simulator: {problem!r}"
        print(Diagnostic("error", "csl-internal", words).render(), file=sys.stderr)
        return 1
    out = Path(args.out)
    (out / "bin").mkdir(parents=True, exist_ok=True)
    save_program(program, out)
    (out / "bin" / "out_0_0.elf").write_text(f"see ../{FILE_NAME}\n", encoding="utf-8")
    colors = {name: str(value) for name, value in pairs(args.colors).items()}
    shown = {"params": program.params, "colors": colors, "arch": args.arch}
    (out / "out.json").write_text(json.dumps(shown, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
