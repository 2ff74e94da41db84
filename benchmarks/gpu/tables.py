"""Everything that was found, as Markdown; and the machine as it is."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from timing import Timed

from meshc.backends.cuda.driver.context import DeviceFacts

_QUERY = "clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,driver_version"
Record = dict[str, Any]


@dataclass(frozen=True)
class Machine:
    """The device, and what `nvidia-smi` says of it before the measurements."""

    name: str
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int
    cuda: str
    date: str
    clocks: dict[str, str]


def machine(facts: DeviceFacts) -> Machine:
    """The machine as it is now."""
    return Machine(
        facts.name,
        facts.multiprocessors,
        facts.l2_bytes,
        facts.memory_bytes,
        ".".join(map(str, facts.driver)),
        datetime.now(UTC).date().isoformat(),
        clocks(),
    )


def clocks() -> dict[str, str]:
    """What `nvidia-smi` says of the first device; nothing where there is none."""
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    found = done.stdout.strip().split(", ")
    return dict(zip(_QUERY.split(","), found, strict=False))


def as_markdown(records: Sequence[Record]) -> str:
    """Tables for docs/performance.md of all that several runs have found, the last of each."""
    makers = (
        _heading, _kernels, _checks, _reads, _clusters, _spreads, _latencies, _beside, _same,
        _compared,
        _notes, _not_done,
    )  # fmt: skip
    return "\n\n".join(text for make in makers if (text := make(records)))


def _of(records: Sequence[Record], kind: str, *keys: str) -> list[Record]:
    """Records of a kind, the last one of those that agree in ``keys``, in order of the first."""
    found: dict[tuple[Any, ...], Record] = {}
    for record in records:
        if record["kind"] == kind:
            found[tuple(str(record.get(key)) for key in keys)] = record
    return list(found.values())


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows as Markdown; nothing where there are none."""
    lines = [list(map(str, row)) for row in rows]
    if not lines:
        return ""
    shown = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in shown)


def _heading(records: Sequence[Record]) -> str:
    lines = []
    for found in _of(records, "machine"):
        lines.append(
            f"{found['name']}, {found['multiprocessors']} multiprocessors, "
            f"{found['memory_bytes']} bytes, CUDA {found['cuda']} driver, {found['date']}."
        )
    for found in _of(records, "clocks"):
        said = ", ".join(f"{k} {v}" for k, v in found["clocks"].items())
        lines.append(f"After the measurements: {said or 'not read (no nvidia-smi)'}.")
    for found in _of(records, "program"):
        lines.append(
            f"{found['model']}, {found['dtype']}, batch {found['batch']}, caches of "
            f"{found['capacity']} tokens; medians, all of a unit in turn."
        )
    return "\n".join(lines)


def _kernels(records: Sequence[Record]) -> str:
    rows = [
        (r["name"], r["cluster"], r["clusters"], r["at_once"], r["needs"]["registers"],
         r["needs"]["spill_bytes"])
        for r in _of(records, "kernel", "name")
    ]  # fmt: skip
    header = "kernel", "cluster", "clusters", "at once", "registers", "bytes spilled"
    return table(header, rows)


def _checks(records: Sequence[Record]) -> str:
    rows = [
        (
            r["title"], _share(r["beside_float64"]), _share(r["beside_cpu"]), f"{r['bound']:g}",
            "yes" if r["passed"] else "**NO**",
        )
        for r in _of(records, "check", "title")
    ]  # fmt: skip
    header = "kernel", "error beside float64", "beside the executor", "bound", "within it"
    return table(header, rows)


def _share(value: float | None) -> str:
    return "not run" if value is None else f"{value:.1e}"


def _reads(records: Sequence[Record]) -> str:
    rows = []
    for r in _of(records, "read", "in_flight", "tile_kib", "runs"):
        timed = _timed(r["timed"])
        rows.append(
            (
                r["in_flight"] // 1024, r["tile_kib"], "runs" if r["runs"] else "interleaved",
                f"{timed.bandwidth / 1e9:.0f}", f"{100 * timed.spread:.1f} %",
            )
        )  # fmt: skip
    header = "KiB in flight", "KiB of a tile", "tiles of a block", "GB/s", "quartiles"
    return table(header, rows)


def _timed(record: Record) -> Timed:
    return Timed(record["name"], tuple(record["seconds"]), record["bytes"])


def _clusters(records: Sequence[Record]) -> str:
    rows = [
        (
            r["size"],
            *(
                "refused" if n is None else f"{n} ({n * r['size']} blocks)"
                for n in (r["whole"], r["half"])
            ),
        )
        for r in _of(records, "clusters", "size")
    ]
    return table(("cluster", "at once, one block per core", "two blocks per core"), rows)


def _spreads(records: Sequence[Record]) -> str:
    rows = [
        (r["cluster"], r["blocks"], r["cores"], r["most"])
        for r in _of(records, "spread", "cluster")
    ]
    return table(("cluster", "blocks", "multiprocessors with one", "most on one"), rows)


def _latencies(records: Sequence[Record]) -> str:
    rows = [
        (r["what"], r["blocks"], f"{1e9 * r['seconds']:.0f}")
        for r in _of(records, "latency", "what", "blocks")
    ]
    return table(("meeting", "blocks", "ns"), rows)


def _beside(records: Sequence[Record]) -> str:
    rows = [
        (r["cached"], _share(r["largest"]), f"{r['bound']:g}", "yes" if r["passed"] else "**NO**")
        for r in _of(records, "beside", "cached", "program")
    ]  # fmt: skip
    header = "cached", "logits beside another program's", "bound", "within"
    return table(header, rows)


def _same(records: Sequence[Record]) -> str:
    rows = [
        (
            r["cached"], r["runs"], r["equal"], _share(r["largest"]), f"{r['bound']:g}",
            "yes" if r["passed"] else "**NO**",
        )
        for r in _of(records, "same", "cached")
    ]  # fmt: skip
    header = "cached", "steps in a graph", "logits equal", "largest difference", "bound", "within"
    return table(header, rows)


def _compared(records: Sequence[Record]) -> str:
    bandwidths = [_timed(r["timed"]).bandwidth for r in records if r["kind"] == "read"]
    ceiling = max(bandwidths, default=0.0)
    rows = []
    for r in _of(records, "timed", "of", "cached", "name"):
        timed = _timed(r)
        roofline = timed.bytes / ceiling if ceiling else 0.0
        rows.append(
            (
                r["of"], r["cached"], timed.name, f"{1e6 * timed.median:.1f}",
                f"{100 * timed.spread:.1f} %", f"{timed.bytes / 1e6:.1f}",
                f"{timed.bandwidth / 1e9:.0f}",
                *((f"{1e6 * roofline:.1f}", f"{timed.median / roofline:.2f}") if roofline
                  else ("", "")),
            )
        )  # fmt: skip
    header = (
        "of", "cached", "by", "us", "quartiles", "MB", "GB/s", "us at the ceiling", "ratio",
    )  # fmt: skip
    said = f"Read ceiling {ceiling / 1e9:.0f} GB/s.\n\n" if ceiling else ""
    return said + table(header, rows) if rows else ""


def _notes(records: Sequence[Record]) -> str:
    return "\n".join(f"* {r['words']}" for r in _of(records, "note", "words"))


def _not_done(records: Sequence[Record]) -> str:
    """Units that did not end well, as far as no later run did them."""
    lines = []
    for r in _of(records, "ended", "unit", "asked"):
        if r["code"] is None:
            lines.append(f"* `{r['unit']}` did not end in {r['seconds']:.0f} s")
        elif r["code"]:
            lines.append(f"* `{r['unit']}` ended with {r['code']}")
    return "\n".join(lines)
