"""Measure on a GPU what the event model of a step (meshc/cost/tasks) rests on.

    python benchmarks/gpu/rates.py [--parts meetings,streams,launches,reads] [--json FILE]

* meetings: what it takes until all blocks have what each of them has written, told by a counter or
  by tags in the words;
* streams: the rate of weights by size and number of the tiles on their way, and the time of one;
* launches: what a launch costs by itself and in a graph;
* reads: what L2 gives when all blocks read the same bytes, by loads, by copies and by copies for a
  whole cluster.

Meetings and reads are measured alone and beside a stream of weights. What meetings give is checked
word by word, what reads give by sums. ``--prepare DIR`` only writes the machine code, for a machine
that has no compiler and is given it by ``--cubins DIR``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from event_rates import Bench, Scale, Wrong, launches, meetings, reads, streams
from kernels import Cubins, load, probes
from kernels import rates as text_of_rates
from tables import clocks, machine, table

from meshc.backends.cuda.driver.driver_api import LIBRARY
from meshc.backends.cuda.driver.gpu import Device
from meshc.support.diagnostics import MeshcError
from meshc.support.native import BuildError

PARTS: dict[str, Callable[[Bench], Iterator[Any]]] = {
    "meetings": meetings,
    "streams": streams,
    "launches": launches,
    "reads": reads,
}
ALL = Scale()
Row = dict[str, Any]
_GB = 1e9
# Columns of each part: what stands above, and what of a measurement stands there.
_COLUMNS: dict[str, Sequence[tuple[str, Callable[[Row], object]]]] = {
    "meetings": (
        ("told by", lambda r: r["form"]),
        ("values", lambda r: r["width"]),
        ("KB", lambda r: f"{r['bytes'] / 1000:.1f}"),
        ("tiles of weights", lambda r: r["flying"]),
        ("round, ns", lambda r: f"{r['round_ns']:.0f}"),
        ("told", lambda r: f"{r['told_ns']:.0f}" if r["told_ns"] else ""),
        ("read by the last", lambda r: f"{r['read_ns']:.0f}"),
        ("of a mean block", lambda r: f"{r['mean_ns']:.0f}"),
        ("weights GB/s", lambda r: f"{r['weights'] / _GB:.0f}"),
    ),
    "streams": (
        ("blocks", lambda r: r["blocks"]),
        ("KiB of a tile", lambda r: r["tile"] // 1024),
        ("on their way", lambda r: r["flying"]),
        ("KiB on their way", lambda r: r["tile"] * r["flying"] // 1024),
        ("GB/s", lambda r: f"{r['rate'] / _GB:.0f}"),
        ("a tile, ns", lambda r: f"{r['tile_ns']:.0f}" if r["tile_ns"] else ""),
    ),
    "launches": (
        ("launch", lambda r: r["what"]),
        ("us", lambda r: f"{r['us']:.2f}"),
        ("us of the host", lambda r: f"{r['host_us']:.2f}"),
    ),
    "reads": (
        ("read by", lambda r: r["how"] + (f" by {r['cluster']}" if r["cluster"] > 1 else "")),
        ("blocks", lambda r: r["blocks"]),
        ("KiB", lambda r: r["bytes"] // 1024),
        ("tiles of weights", lambda r: r["flying"]),
        ("GB/s to all", lambda r: f"{r['rate'] / _GB:.0f}"),
        ("weights GB/s", lambda r: f"{r['weights'] / _GB:.0f}"),
        ("one read, ns", lambda r: f"{r['mean_ns']:.0f}"),
        ("of the slowest block", lambda r: f"{r['last_ns']:.0f}"),
    ),
}  # fmt: skip


def measured(
    device: Device,
    cubins: Cubins | None,
    parts: Sequence[str],
    scale: Scale = ALL,
    keep: Callable[[Row], None] = lambda found: None,
) -> Row:
    """These ``parts``, with where they were measured; what one of them got wrong or was refused
    stands under ``wrong``. ``keep`` is given all that is known whenever a part has ended. Raises
    MeshcError, and ValueError for a scale that does not fit the device."""
    kernels = load(device, text_of_rates(), cubins)
    bench = Bench(device, kernels, load(device, probes(), cubins), scale)
    found: Row = {"machine": asdict(machine(device.facts)), "scale": asdict(scale), "wrong": {}}
    for part in parts:
        print(part, file=sys.stderr, flush=True)
        rows = found[part] = []
        try:
            for one in PARTS[part](bench):
                rows.append(asdict(one))
        except (Wrong, MeshcError) as problem:
            found["wrong"][part] = str(problem)
        found["clocks behind"] = clocks()
        keep(found)
    return found


def as_text(found: Row) -> str:
    """The tables."""
    place = found["machine"]
    lines = [
        f"{place['name']}, {place['multiprocessors']} multiprocessors, CUDA {place['cuda']}, "
        f"{place['date']}; medians of {found['scale']['repeats']} launches.",
        "Clocks behind: "
        + (", ".join(f"{k} {v}" for k, v in found["clocks behind"].items()) or "?"),
    ]
    for part, columns in _COLUMNS.items():
        if part in found:
            rows = ([value(row) for _, value in columns] for row in found[part])
            lines += ["", f"## {part}", "", table([name for name, _ in columns], rows)]
    lines += [f"\n{part} ended early: {words}" for part, words in found["wrong"].items()]
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """The exit code: 1 without a GPU, and for what was wrong or refused."""
    options = parser().parse_args(given)

    def keep(found: Row) -> None:
        if options.json is not None:
            options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    try:
        if options.prepare is not None:
            Cubins(options.prepare).make([text_of_rates(), probes()])
            return 0
        cubins = Cubins(options.cubins) if options.cubins is not None else None
        with Device(library=options.driver) as device:
            scale = replace(ALL, weights=options.weights_mib << 20, repeats=options.repeats)
            found = measured(device, cubins, options.parts, scale, keep)
    except (MeshcError, BuildError, OSError, ValueError) as problem:
        print(problem, file=sys.stderr)
        return 1
    print(as_text(found))
    return 1 if found["wrong"] else 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--parts", type=_parts, default=tuple(PARTS), help="some of them")
    made.add_argument("--json", type=Path, metavar="FILE", help="all numbers, for programs")
    made.add_argument("--repeats", type=_count, default=ALL.repeats, help="launches of each")
    made.add_argument(
        "--weights-mib", type=_count, default=ALL.weights >> 20, help="several times L2"
    )
    made.add_argument("--prepare", type=Path, metavar="DIR", help="write the machine code")
    made.add_argument("--cubins", type=Path, metavar="DIR", help="what --prepare wrote")
    made.add_argument("--driver", default=LIBRARY, metavar="LIB.so", help="of CUDA")
    return made


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def _parts(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if unknown := [name for name in found if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"'{unknown[0]}' is none of {', '.join(PARTS)}")
    return found


if __name__ == "__main__":
    sys.exit(main())
