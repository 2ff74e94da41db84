"""``meshc diff``: two recorded compiles side by side."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshc.cli.printing import print_json
from meshc.support.diagnostics import fail
from meshc.view import read_recorded
from meshc.view.differences import differences, file_difference, module_difference

_MOST_OPS = 12


def run(options: argparse.Namespace) -> int:
    """Read both, compare, print."""
    if options.ir is not None and options.emitted is not None:
        fail("bad-argument", "--ir and --emitted each print one difference: give one of them")
    one, other = (read_recorded(Path(folder)) for folder in (options.one, options.other))
    found = differences(one, other)
    names = options.one, options.other
    if options.ir is not None or options.emitted is not None:
        if options.emitted is not None:
            texts = {"": file_difference(one, other, options.emitted, names)}
        else:
            phases = [phase["phase"] for phase in found["phases"]]
            texts = {p: module_difference(one, other, p, options.ir, names) for p in phases}
        if options.json:
            print_json({"differences": texts})
        else:
            print("\n".join(line for lines in texts.values() for line in lines))
    elif options.json:
        print_json(found)
    else:
        print("\n".join(_words(found, names)))
    return 0


def _words(found: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    """The differences for people; what is the same is not said, but for sums."""
    compiles = zip(found["models"], found["devices"], found["targets"], names, strict=True)
    for letter, (model, device, target, name) in zip("AB", compiles, strict=True):
        yield f"{letter}: {model} on {device}, {target}, {name}"
    for n, only in enumerate(found["only"]):
        if only:
            yield f"only {'AB'[n]} has the phase {', '.join(only)}"
    for phase in found["phases"]:
        yield ""
        yield f"{phase['phase']}"
        yield from _of_phase(phase)
    yield ""
    if not found["files"]:
        yield "all emitted files are the same"
    for one in found["files"]:
        lines = one["lines"]
        words = "in one of them only" if lines is None else f"-{lines[0]} +{lines[1]} lines"
        yield f"{one['file']}: {words}"


def _of_phase(phase: Mapping[str, Any]) -> Iterator[str]:
    yield f"  {'':<40} {'A':>14} {'B':>14} {'B - A':>14}"
    rows = [(f"memory: {use}", pair) for use, pair in phase["memory"].items()]
    for name, pair in [*rows, ("memory: left", phase["left"])]:
        if pair[0] != pair[1] or name == "memory: left":
            yield _row(name, pair)
    unit = phase["unit"][0] or phase["unit"][1]
    if unit is not None:
        yield _row(f"predicted {unit}", phase["total"])
    ops = sorted(phase["ops"], key=lambda one: -abs(_change(one["costs"])))
    for one in ops[:_MOST_OPS]:
        yield _row(f"  {one['op']}", one["costs"])
    if len(ops) > _MOST_OPS:
        yield f"    and {len(ops) - _MOST_OPS} ops more"
    behind = phase["differs_behind"]
    words = "are the same behind every pass" if behind is None else f"differ from {behind} on"
    yield f"  modules {words}"


def _change(pair: Sequence[float | None]) -> float:
    return (pair[1] or 0) - (pair[0] or 0)


def _row(name: str, pair: Sequence[float | None]) -> str:
    both = all(value is not None for value in pair)
    cells = [*pair, _change(pair) if both else None]
    words = " ".join(f"{_number(value):>14}" for value in cells)
    return f"  {name[:40]:<40} {words}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
