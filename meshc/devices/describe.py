"""A device as a table for people: what ``meshc devices NAME`` prints."""

from __future__ import annotations

from collections.abc import Iterator

from meshc.devices.device import Device, Resource


def describe(device: Device) -> str:
    """Several lines, without a trailing newline: P, L, M and R of the device with units."""
    rows = [*_cores(device), *_latency(device), *_memory(device), *_routes(device)]
    width = max(len(name) for name, _ in rows)
    lines = [f"{device.name}: {device.description}", ""]
    lines += [f"  {name.ljust(width)}  {value}" for name, value in rows]
    return "\n".join(lines)


def _cores(device: Device) -> Iterator[tuple[str, str]]:
    core = {"mesh": "processing element", "cluster": "thread block", "node": "GPU"}[device.kind]
    yield "core", f"one {core}"
    yield "mesh up to", f"{device.cores_x}x{device.cores_y} (columns x rows), {device.cores} cores"
    if device.clusters:
        yield "cluster sizes", ", ".join(map(str, device.clusters.sizes))
        yield "clusters lie in", f"groups of {', '.join(map(str, device.clusters.domains))} cores"
    yield "clock", f"{device.clock_hz / 1e6:g} MHz"
    yield "dtypes", f"{', '.join(device.dtypes)} (default {device.default_dtype})"
    rates = (f"{d} {rate:g}" for d, rate in device.macs_per_cycle.items())
    yield "multiply-adds", f"{', '.join(rates)} per cycle and core"
    rates = (f"{d} {rate:g}" for d, rate in device.lanes_per_cycle.items())
    yield "elementwise", f"{', '.join(rates)} per cycle and core"


def _latency(device: Device) -> Iterator[tuple[str, str]]:
    link = device.link
    joined = "neighbours on a mesh" if link.topology == "mesh" else "every core with every core"
    yield "links", joined + (", data lands in the receiver's memory" if link.push else "")
    yield "hop", f"{link.hop_cycles:g} cycles"
    yield "routing stage", f"{link.route_cycles:g} cycles"
    rate = link.word_bytes * link.words_per_cycle
    yield "link width", f"{rate:g} bytes per cycle, words of {link.word_bytes} bytes"


def _memory(device: Device) -> Iterator[tuple[str, str]]:
    if device.memory_bytes is None:
        yield "memory per core", "unlimited"
    else:
        free = device.memory_bytes - device.reserved_bytes
        note = f" ({device.reserved_bytes} reserved for code and stack, {free} for data)"
        yield "memory per core", f"{device.memory_bytes} bytes{note}"
    if device.global_memory_bytes:
        rate = f"{device.global_bytes_per_second / 1e12:g} TB/s"
        if device.read_bytes_per_second != device.global_bytes_per_second:
            rate += f" ({device.read_bytes_per_second / 1e12:g} reached by kernels)"
        yield "global memory", f"{device.global_memory_bytes} bytes, {rate}"


def _routes(device: Device) -> Iterator[tuple[str, str]]:
    if device.routing is None:
        yield "routes", "unlimited"
        return
    routing = device.routing
    yield "colors", _resource(routing.colors)
    depth = f", {routing.input_queue_words} words deep or more"
    yield "input queues", _resource(routing.input_queues) + depth
    depth = f", {routing.output_queue_words} words deep or more"
    yield "output queues", _resource(routing.output_queues) + depth
    yield "microthreads", _resource(routing.microthreads)
    yield "task ids", _resource(routing.task_ids)


def _resource(resource: Resource) -> str:
    return f"{resource.count} free of {resource.total}"
