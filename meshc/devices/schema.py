"""The keys of a device file, and the check of them: all faults of a file at once."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from meshc.devices.device import Clusters, Device, Link, Number, Resource, Routing
from meshc.support.diagnostics import Diagnostics
from meshc.support.spans import Source, Span

Kind = Literal["int", "number", "text", "bool", "ids", "counts", "points"]

MAX_ID = 4095
MAX_UNKNOWN = 20


@dataclass(frozen=True)
class Key:
    """One key: its kind, least and greatest value, default (None: may be absent) and meaning."""

    name: str
    kind: Kind
    doc: str
    low: float = 0
    high: float = 1e18
    default: Number | None = None
    required: bool = False
    choices: tuple[str, ...] = ()


def _required(name: str, kind: Kind, doc: str, low: float = 0, high: float = 1e18) -> Key:
    return Key(name, kind, doc, low, high, required=True)


DTYPES = ("f32", "f16", "bf16")

ROUTING_KEYS = (
    Key("colors", "int", "routable colors of a router", 1, 4096),
    Key("reserved_colors", "int", "the highest of them, not left to programs", 0, 4096),
    Key("input_queues", "int", "input queues of a core", 1, 4096),
    Key("reserved_input_queues", "int", "the lowest of them, not left to programs", 0, 4096),
    Key("output_queues", "int", "output queues of a core", 1, 4096),
    Key("reserved_output_queues", "int", "the lowest of them, not left to programs", 0, 4096),
    Key("microthreads", "int", "transfers of a core under way at once", 1, 4096),
    Key("reserved_microthreads", "int", "the lowest of them, not left to programs", 0, 4096),
    Key("task_ids", "int", "local task ids of a core", 1, 4096),
    Key("free_task_ids", "ids", "local task ids left to programs"),
    Key("input_queue_words", "int", "depth of the shallowest free input queue", 1, 10**6),
    Key("output_queue_words", "int", "depth of the shallowest free output queue", 1, 10**6),
)

CLUSTER_KEYS = (
    Key("cluster_sizes", "ids", "numbers of blocks a cluster may have"),
    Key("cluster_domains", "counts", "cores of each group that a cluster must lie in"),
    Key("cluster_bytes_per_second", "points", "bandwidth between blocks by cluster size"),
    Key("core_memory_bytes", "int", "shared memory of a core, for all its blocks", 1, 10**12),
    Key("block_reserved_bytes", "int", "part of it that a block takes beside its own", 0, 10**12),
    Key("core_registers", "int", "registers of 32 bits of a core", 1, 10**9),
)

KEYS = (
    _required("name", "text", "what --device calls it"),
    Key("kind", "text", "what a core is", choices=("mesh", "cluster", "node"), required=True),
    _required("description", "text", "one line"),
    _required("cores_x", "int", "most columns a mesh may have", 1, 10**6),
    _required("cores_y", "int", "most rows a mesh may have", 1, 10**6),
    Key("cores", "int", "most cores in all (default: cores_x * cores_y)", 1, 10**9),
    _required("clock_hz", "int", "cycles per second", 1, 10**12),
    Key("memory_bytes", "int", "memory of a core (absent: unlimited)", 1, 10**15),
    Key("reserved_bytes", "int", "part of it for code and stack", 0, 10**15, 0),
    Key("topology", "text", "how cores are joined", choices=("mesh", "all_to_all"), required=True),
    _required("hop_cycles", "number", "latency of one hop (alpha)", 0, 10**9),
    _required("route_cycles", "number", "receive, combine and send again (beta)", 0, 10**9),
    Key("relay_cycles", "number", "pass a word of a chain on (absent: whole messages)", 0, 10**9),
    _required("word_bytes", "int", "bytes of one message word", 1, 1024),
    Key("words_per_cycle", "number", "words a link takes per cycle", 1e-6, 10**6, 1),
    Key("push", "bool", "data lands in the receiver's memory", default=False),
    Key("default_dtype", "text", "dtype when none is asked for", choices=DTYPES, required=True),
    *(Key(f"{d}_macs_per_cycle", "number", f"{d} multiply-adds", 1e-6, 10**9) for d in DTYPES),
    Key("mixed_macs_per_cycle", "number", "half-width factors, f32 sum", 1e-6, 10**9),
    *(Key(f"{d}_lanes_per_cycle", "number", f"{d} elementwise ops", 1e-6, 10**9) for d in DTYPES),
    Key("op_cycles", "number", "start of one local vector operation", 0, 10**9, 0),
    Key("vector_cycles", "number", "issue of a vector instruction in a loop", 0, 10**9, 0),
    Key("scalar_cycles", "number", "fetch of a scalar operand in a loop", 0, 10**9, 0),
    Key("step_cycles", "number", "loop and task switch of a communication step", 0, 10**9, 0),
    Key("global_memory_bytes", "int", "memory all cores share", 0, 10**15, 0),
    Key("global_bytes_per_second", "number", "its bandwidth", 0, 1e16, 0),
    Key("read_bytes_per_second", "number", "what kernels reach of it (default: all)", 0, 1e16),
    Key("global_latency_cycles", "number", "from asking it to the answer", 0, 10**9),
    Key("bytes_in_flight", "int", "on their way to each core that fill it", 0, 10**9),
    *CLUSTER_KEYS,
    Key("enforced", "bool", "whether exceeding the limits is an error", default=True),
    *ROUTING_KEYS,
)

_COUNTS = re.compile(r"[1-9]\d{0,5}(,[1-9]\d{0,5}){0,255}\Z")
_POINT = r"[1-9]\d{0,5}:\d{1,18}(\.\d{1,9})?(e\d{1,2})?"
_POINTS = re.compile(rf"{_POINT}(,{_POINT}){{0,31}}\Z")
_IDS = re.compile(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*\Z")
_MEANING: dict[Kind, str] = {
    "int": "a whole number",
    "number": "a number",
    "text": "text in quotes",
    "bool": "true or false",
    "ids": 'ids as text, such as "0-20,24"',
    "counts": 'positive counts as text, such as "18,16,16"',
    "points": 'sizes and their numbers as text, such as "2:3.3e12,16:2.9e12"',
}


def device_of_numbers(values: Mapping[str, object], source: Source | None = None) -> Device:
    """A device from its flat numbers, as in a TOML file or a module header.

    Raises ``bad-device`` with every fault at once: unknown, missing, ill-typed, out of range or
    contradicting keys, each with its line when ``source`` is given.
    """
    check = _Check(values, source)
    check.keys()
    check.together()
    check.found.raise_errors()
    return _built({k.name: values[k.name] for k in KEYS if k.name in values})  # type: ignore[misc]


def check_numbers(values: Mapping[str, object]) -> None:
    """Check numbers of a device of which some may be missing, as in the header of a module.

    Raises ``bad-device`` with every value that is ill-typed, out of range or contradicts another.
    """
    check = _Check(values, None)
    check.given()
    check.memory()
    check.reserved()
    check.found.raise_errors()


class _Check:
    """Collects the faults of one set of numbers."""

    def __init__(self, values: Mapping[str, object], source: Source | None) -> None:
        self.values, self.source, self.found = values, source, Diagnostics()
        self.lines = _lines_of_keys(source.text if source else "")

    def error(self, key: str, message: str, help: str | None = None) -> None:
        self.found.error("bad-device", message, self.place(key), help=help)

    def place(self, key: str) -> Span | None:
        if self.source is None:
            return None
        line, column = self.lines.get(key, (1, 1))
        return Span(self.source, line, column, len(key))

    def keys(self) -> None:
        known = {k.name for k in KEYS}
        unknown = [str(name)[:80] for name in self.values if name not in known]
        for name in unknown[:MAX_UNKNOWN]:
            self.error(name, f"unknown device key '{name}'", _nearest(name))
        if len(unknown) > MAX_UNKNOWN:
            self.error("", f"and {len(unknown) - MAX_UNKNOWN} more unknown device keys")
        self.given()
        for key in KEYS:
            if key.required and key.name not in self.values:
                self.error(key.name, f"device key '{key.name}' is missing", f"it is {key.doc}")

    def given(self) -> None:
        for key in KEYS:
            if key.name in self.values:
                self.value(key, self.values[key.name])

    def value(self, key: Key, value: object) -> None:
        if not _has_kind(key.kind, value):
            self.error(key.name, f"'{key.name}' must be {_MEANING[key.kind]}", f"it is {key.doc}")
        elif key.choices and value not in key.choices:
            self.error(key.name, f"'{key.name}' must be one of {', '.join(key.choices)}")
        elif isinstance(value, (int, float)) and not key.low <= value <= key.high:
            limits = f"between {key.low:g} and {key.high:g}"
            self.error(key.name, f"'{key.name}' must be {limits}, not {value}")
        elif key.kind == "text" and not 0 < len(str(value)) <= 200:
            self.error(key.name, f"'{key.name}' must have 1 to 200 characters")

    def together(self) -> None:
        """What no single key can say."""
        self.memory()
        self.computing()
        self.routing()
        self.clusters()

    def memory(self) -> None:
        memory, reserved = self.values.get("memory_bytes"), self.values.get("reserved_bytes", 0)
        if isinstance(memory, int) and isinstance(reserved, int) and reserved >= memory:
            self.error("reserved_bytes", "reserved_bytes leave nothing of memory_bytes")

    def computing(self) -> None:
        dtype = self.values.get("default_dtype")
        for suffix in ("macs_per_cycle", "lanes_per_cycle"):
            if dtype in DTYPES and f"{dtype}_{suffix}" not in self.values:
                self.error("default_dtype", f"'{dtype}_{suffix}' of the default dtype is missing")

    def all_or_none(self, keys: tuple[Key, ...], what: str) -> list[Key]:
        """Those of ``keys`` that are given; an error for each other one if there are any."""
        given = [k for k in keys if k.name in self.values]
        for key in keys:
            if given and key.name not in self.values:
                message = f"device key '{key.name}' is missing beside '{given[0].name}'"
                self.error(given[0].name, message, f"give all {what} keys, or none")
        return given

    def clusters(self) -> None:
        self.all_or_none(CLUSTER_KEYS, "cluster")
        if self.values.get("kind") == "cluster" and "cluster_sizes" not in self.values:
            self.error("kind", "a device of kind 'cluster' has no cluster keys")
        for name in ("global_memory_bytes", "global_bytes_per_second"):
            if self.values.get("kind") == "cluster" and not self.values.get(name):
                self.error(name, f"a device of kind 'cluster' needs a positive '{name}'")
        sizes, points = (self.values.get(n) for n in ("cluster_sizes", "cluster_bytes_per_second"))
        if _has_kind("points", points) and not all(v for _, v in _points(str(points))):
            self.error("cluster_bytes_per_second", "a bandwidth between blocks is not positive")
        if _has_kind("ids", sizes) and 0 in _ids(str(sizes)):
            self.error("cluster_sizes", "a cluster has at least one block")

    def routing(self) -> None:
        self.all_or_none(ROUTING_KEYS, "routing")
        self.reserved()
        ids, total = self.values.get("free_task_ids"), self.values.get("task_ids")
        if _has_kind("ids", ids) and isinstance(total, int) and max(_ids(str(ids))) >= total:
            top = max(_ids(str(ids)))
            self.error("free_task_ids", f"'free_task_ids' names {top}; there are only {total}")

    def reserved(self) -> None:
        """Programs need at least one of each resource."""
        for key in ROUTING_KEYS:
            what = key.name.removeprefix("reserved_")
            kept, total = self.values.get(key.name), self.values.get(what)
            both = isinstance(kept, int) and isinstance(total, int)
            if what != key.name and both and kept >= total:  # type: ignore[operator]
                self.error(key.name, f"'{key.name}' leaves programs none of the {total} {what}")


def _has_kind(kind: Kind, value: object) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and math.isfinite(value)  # type: ignore[arg-type]
    if not isinstance(value, str):
        return False
    if kind in ("counts", "points"):
        return bool((_COUNTS if kind == "counts" else _POINTS).match(value))
    return kind == "text" or (bool(_IDS.match(value)) and bool(_ids(value)))


def _points(text: str) -> tuple[tuple[int, float], ...]:
    """``"2:3e12,16:2e12"`` as ``((2, 3e12), (16, 2e12))``, in the order of sizes."""
    parts = (part.split(":") for part in text.split(","))
    return tuple(sorted((int(size), float(number)) for size, number in parts))


def _ids(text: str) -> tuple[int, ...]:
    """``"0-2,5"`` as ``(0, 1, 2, 5)``; empty when a range runs backwards."""
    found: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        found += range(int(low), min(int(high or low), MAX_ID) + 1)
        if int(high or low) < int(low):
            return ()
    return tuple(sorted(set(found)))


def _lines_of_keys(text: str) -> dict[str, tuple[int, int]]:
    """Line and column where each key of a TOML text stands (its first, if several)."""
    found: dict[str, tuple[int, int]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if match := re.match(r"[\s\[]*[\"']?([A-Za-z0-9_-]+)[\"']?\s*[=.\]]", line):
            found.setdefault(match[1], (number, match.start(1) + 1))
    return found


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, [k.name for k in KEYS], n=1)
    meant = f"did you mean '{near[0]}'? " if near else ""
    return f"{meant}'meshc devices wse2' shows the keys of a device"


def _built(given: dict[str, Number]) -> Device:
    """The device of checked numbers."""
    numbers = {k.name: k.default for k in KEYS if k.default is not None} | given
    numbers.setdefault("cores", int(given["cores_x"]) * int(given["cores_y"]))
    ordered = {k.name: v for k in KEYS if (v := numbers.get(k.name)) is not None}
    return Device(
        name=str(ordered["name"]),
        kind=str(ordered["kind"]),
        description=str(ordered["description"]),
        cores_x=int(ordered["cores_x"]),
        cores_y=int(ordered["cores_y"]),
        cores=int(ordered["cores"]),
        clock_hz=int(ordered["clock_hz"]),
        link=_link(ordered),
        default_dtype=str(ordered["default_dtype"]),
        macs_per_cycle=_per_dtype(ordered, "macs_per_cycle"),
        lanes_per_cycle=_per_dtype(ordered, "lanes_per_cycle"),
        op_cycles=float(ordered["op_cycles"]),
        vector_cycles=float(ordered["vector_cycles"]),
        scalar_cycles=float(ordered["scalar_cycles"]),
        step_cycles=float(ordered["step_cycles"]),
        memory_bytes=int(ordered["memory_bytes"]) if "memory_bytes" in ordered else None,
        reserved_bytes=int(ordered["reserved_bytes"]),
        routing=_routing(ordered) if "colors" in ordered else None,
        global_memory_bytes=int(ordered["global_memory_bytes"]),
        global_bytes_per_second=float(ordered["global_bytes_per_second"]),
        enforced=bool(ordered["enforced"]),
        read_bytes_per_second=float(
            ordered.get("read_bytes_per_second", ordered["global_bytes_per_second"])
        ),
        global_latency_cycles=float(ordered.get("global_latency_cycles", 0.0)),
        bytes_in_flight=int(ordered.get("bytes_in_flight", 0)),
        clusters=_clusters(ordered) if "cluster_sizes" in ordered else None,
        numbers=ordered,
    )


def _link(numbers: Mapping[str, Number]) -> Link:
    return Link(
        topology=str(numbers["topology"]),
        hop_cycles=float(numbers["hop_cycles"]),
        route_cycles=float(numbers["route_cycles"]),
        word_bytes=int(numbers["word_bytes"]),
        words_per_cycle=float(numbers["words_per_cycle"]),
        relay_cycles=float(numbers["relay_cycles"]) if "relay_cycles" in numbers else None,
        push=bool(numbers["push"]),
    )


def _routing(numbers: Mapping[str, Number]) -> Routing:
    def low_reserved(name: str) -> Resource:
        total, reserved = int(numbers[name]), int(numbers[f"reserved_{name}"])
        return Resource(total, tuple(range(reserved, total)))

    colors = int(numbers["colors"])
    return Routing(
        colors=Resource(colors, tuple(range(colors - int(numbers["reserved_colors"])))),
        input_queues=low_reserved("input_queues"),
        output_queues=low_reserved("output_queues"),
        microthreads=low_reserved("microthreads"),
        task_ids=Resource(int(numbers["task_ids"]), _ids(str(numbers["free_task_ids"]))),
        input_queue_words=int(numbers["input_queue_words"]),
        output_queue_words=int(numbers["output_queue_words"]),
    )


def _clusters(numbers: Mapping[str, Number]) -> Clusters:
    return Clusters(
        sizes=_ids(str(numbers["cluster_sizes"])),
        domains=tuple(int(n) for n in str(numbers["cluster_domains"]).split(",")),
        bytes_per_second=_points(str(numbers["cluster_bytes_per_second"])),
        core_memory_bytes=int(numbers["core_memory_bytes"]),
        block_reserved_bytes=int(numbers["block_reserved_bytes"]),
        core_registers=int(numbers["core_registers"]),
    )


def _per_dtype(numbers: Mapping[str, Number], suffix: str) -> dict[str, float]:
    keys = (*DTYPES, "mixed")
    return {d: float(numbers[f"{d}_{suffix}"]) for d in keys if f"{d}_{suffix}" in numbers}
