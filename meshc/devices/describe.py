"""A device as a table for people: what ``meshc devices NAME`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshc.devices.device import Device
from meshc.devices.keys import key_of
from meshc.devices.numbers import Number, Numbers

_CORES = {"mesh": "processing element", "cluster": "thread block", "node": "GPU"}
_LINKS = {
    "mesh": "neighbours on a mesh",
    "torus": "neighbours on a torus",
    "all_to_all": "every core with every core",
}


def describe(device: Device) -> str:
    """Several lines, without a trailing newline: what the device is, each of its numbers with unit,
    kind and source, and what the short names of sources stand for."""
    lines = [f"{device.name}: {device.description}", "", *_aligned(_facts(device))]
    rows = [("number", "value", "unit", "kind", "source")]
    rows += [(name, *_row(name, number)) for name, number in device.every_number().items()]
    lines += ["", *_aligned(rows)]
    if device.sources:
        lines += ["", *_aligned(list(device.sources.items()))]
    return "\n".join(lines)


def _facts(device: Device) -> list[tuple[str, str]]:
    return [
        ("core", f"one {_CORES[device.kind]}"),
        ("mesh up to", f"{device.cores_x}x{device.cores_y} (columns x rows), {device.cores} cores"),
        ("links", _links(device)),
        *((f"links of {level}", _links(own)) for level, own in device.level_links.items()),
        ("dtypes", f"{', '.join(device.dtypes)} (default {device.default_dtype})"),
        ("limits", "enforced" if device.enforced else "not enforced"),
        *_csl(device),
        *_cuda(device),
        *_left(device),
    ]


def _links(level: Numbers) -> str:
    push = ", data lands in the receiver's memory" if level.fact("push") else ""
    return _LINKS[str(level.fact("topology"))] + push


def _csl(device: Device) -> Iterator[tuple[str, str]]:
    """What a device for CSL is called there, and where a send names its color."""
    if device.csl_arch is not None:
        place = "its queue" if device.bound_output_queues else "each operation"
        yield "CSL", f"--arch={device.csl_arch}, {place} says on which color data is sent"


def _cuda(device: Device) -> Iterator[tuple[str, str]]:
    """What a GPU of blocks is called by compilers."""
    if "cuda_arch" in device.facts:
        yield "CUDA", f"-arch={device.cuda_arch}"


def _left(device: Device) -> Iterator[tuple[str, str]]:
    """What a device with limits leaves to programs."""
    numbers = device.numbers
    if {"memory_bytes", "reserved_bytes"} <= numbers.keys() and device.data_bytes is not None:
        yield "free for data", f"{device.data_bytes} of {device.memory_bytes} bytes of a core"
    if "colors" in numbers and device.routing is not None:
        routing = device.routing
        for name in ("colors", "input_queues", "output_queues", "microthreads", "task_ids"):
            found = getattr(routing, name)
            yield f"free {name}", f"{found.count} of {found.total}"


def _row(name: str, number: Number) -> tuple[str, str, str, str]:
    key, value = key_of(name), number.value
    text = f"{value:_}" if isinstance(value, (int, float)) else value or key.without
    return text, key.unit, number.kind, number.source


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows as lines whose columns are aligned, indented by two."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = ([c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in rows)
    return [f"  {'  '.join(row)}".rstrip() for row in cells]
