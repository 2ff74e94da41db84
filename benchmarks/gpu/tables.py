"""Everything that was measured, as Markdown or JSON."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from ceiling import Latency, Read, read_ceiling
from checks import Check
from timing import Timed

from meshc.backends.cuda.context import DeviceFacts

_QUERY = "clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,driver_version"


@dataclass(frozen=True)
class Machine:
    """The device, and what `nvidia-smi` says of it after the measurements."""

    name: str
    multiprocessors: int
    l2_bytes: int
    cuda: str
    date: str
    clocks: dict[str, str]


@dataclass(frozen=True)
class Compared:
    """A time beside the roofline: ``of`` is a block or a step; ``error`` is that of a baseline's
    block beside float64."""

    of: str
    cached: int
    timed: Timed
    error: float | None = None


@dataclass
class Results:
    """What a run found, in the order in which it was found."""

    machine: Machine
    model: str
    batch: int
    dtype: str
    repeats: int
    checks: list[Check] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    clusters: list[tuple[int, int | None, int | None]] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every kernel computes what it must."""
        return all(check.passed for check in self.checks)


def machine(facts: DeviceFacts) -> Machine:
    """The machine as it is now."""
    return Machine(
        facts.name,
        facts.multiprocessors,
        facts.l2_bytes,
        ".".join(map(str, facts.driver)),
        datetime.now(UTC).date().isoformat(),
        _clocks(),
    )


def _clocks() -> dict[str, str]:
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    found = done.stdout.strip().split(", ")
    return dict(zip(_QUERY.split(","), found, strict=False))


def as_json(results: Results) -> str:
    """All of it, with every repetition."""
    return json.dumps(asdict(results), indent=1)


def as_markdown(results: Results) -> str:
    """Tables for docs/performance.md."""
    parts = [_heading(results), _checks(results.checks)]
    if results.reads:
        parts += [_reads(results.reads), _clusters(results), _latencies(results)]
    if results.compared:
        parts.append(_compared(results))
    if results.notes:
        parts.append("\n".join(f"* {note}" for note in results.notes))
    return "\n\n".join(parts)


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _heading(results: Results) -> str:
    found = results.machine
    clocks = ", ".join(f"{k} {v}" for k, v in found.clocks.items()) or "not read (no nvidia-smi)"
    return (
        f"{found.name}, {found.multiprocessors} multiprocessors, CUDA {found.cuda} driver, "
        f"{found.date}. After the measurements: {clocks}.\n"
        f"{results.model}, {results.dtype}, batch {results.batch}; medians of {results.repeats}, "
        "all of a table in turn."
    )


def _checks(found: Sequence[Check]) -> str:
    rows = [
        (
            c.title,
            _share(c.beside_float64),
            _share(c.beside_cpu),
            f"{c.bound:g}",
            "yes" if c.passed else "**NO**",
        )
        for c in found
    ]
    header = "kernel", "error beside float64", "beside the executor", "bound", "within it"
    return _table(header, rows)


def _share(value: float | None) -> str:
    return "not run" if value is None else f"{value:.1e}"


def _reads(found: Sequence[Read]) -> str:
    rows = [
        (
            one.in_flight // 1024, one.tile_kib, "runs" if one.runs else "interleaved",
            _bandwidth(one.timed), f"{100 * one.timed.spread:.1f} %",
        )
        for one in found
    ]  # fmt: skip
    header = "KiB in flight", "KiB of a tile", "tiles of a block", "GB/s", "quartiles"
    return _table(header, rows)


def _bandwidth(timed: Timed) -> str:
    return f"{timed.bandwidth / 1e9:.0f}"


def _clusters(results: Results) -> str:
    rows = [
        (size, *("refused" if n is None else f"{n} ({n * size} blocks)" for n in counts))
        for size, *counts in results.clusters
    ]
    return _table(("cluster", "at once, one block per core", "two blocks per core"), rows)


def _latencies(results: Results) -> str:
    rows = [(one.what, one.blocks, f"{1e9 * one.seconds:.0f}") for one in results.latencies]
    return _table(("meeting", "blocks", "ns"), rows)


def _compared(results: Results) -> str:
    ceiling = read_ceiling(results.reads)
    rows = []
    for one in results.compared:
        roofline = one.timed.bytes / ceiling
        rows.append(
            (
                one.of, one.cached, one.timed.name, f"{1e6 * one.timed.median:.1f}",
                f"{100 * one.timed.spread:.1f} %", f"{one.timed.bytes / 1e6:.1f}",
                _bandwidth(one.timed), f"{1e6 * roofline:.1f}",
                f"{one.timed.median / roofline:.2f}",
                "" if one.error is None else _share(one.error),
            )
        )  # fmt: skip
    header = (
        "of", "cached", "by", "us", "quartiles", "MB", "GB/s", "us at the ceiling", "ratio",
        "error",
    )  # fmt: skip
    return f"Read ceiling {ceiling / 1e9:.0f} GB/s.\n\n{_table(header, rows)}"
