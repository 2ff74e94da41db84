"""The keys of a device: which facts and numbers there are, their units, limits and meaning."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from meshc.devices.axes import are_axis_names, are_levels

Scalar = int | float | str | bool
Shape = Literal[
    "int", "number", "text", "bool", "axes", "levels", "arch", "ids", "counts", "points"
]
Kind = Literal["datasheet", "published", "calibrated", "assumed"]

KINDS: tuple[Kind, ...] = ("datasheet", "published", "calibrated", "assumed")
"""Where a number comes from: the vendor's documents; a publication, measured or stated; a fit to
measurements; nobody's measurement."""

DTYPES = ("f32", "f16", "bf16")
MAX_ID = 4095


@dataclass(frozen=True)
class Key:
    """One key of a device: the shape of its value, least and greatest value, unit and meaning.

    A key without a unit is a fact, such as the name or the topology. A ``required`` key stands in
    every device file; any other is asked for where it is needed. ``without`` is the word that is
    written in place of a number that the device does not have: ``unlimited`` or ``none``.
    """

    name: str
    shape: Shape
    unit: str
    doc: str
    low: float = 0
    high: float = 1e18
    required: bool = False
    choices: tuple[str, ...] = ()
    without: str = ""


def _fact(name: str, shape: Shape, doc: str, choices: tuple[str, ...] = ()) -> Key:
    return Key(name, shape, "", doc, required=shape == "text", choices=choices)


FACTS = (
    _fact("name", "text", "what --device calls it"),
    _fact("kind", "text", "what a core is", ("mesh", "cluster", "node")),
    _fact("description", "text", "one line"),
    _fact("topology", "text", "how cores are joined", ("mesh", "torus", "all_to_all")),
    _fact("axes", "axes", "axes of a mesh: what counts regions, rows, columns"),
    _fact("levels", "levels", "the level of each axis, outermost first"),
    _fact("default_dtype", "text", "dtype when none is asked for", DTYPES),
    _fact("push", "bool", "data lands in the receiver's memory"),
    _fact("enforced", "bool", "whether exceeding the limits is an error"),
    Key("csl_arch", "text", "", "what the CSL compiler calls its architecture"),
    Key("cuda_arch", "arch", "", "what CUDA compilers call its architecture, such as sm_90a"),
    _fact("bound_output_queues", "bool", "an output queue is bound to the one color it sends on"),
)

_MOST_CYCLES = 10**9


def _cycles(name: str, doc: str, required: bool = False, without: str = "") -> Key:
    return Key(name, "number", "cycles", doc, 0, _MOST_CYCLES, required, without=without)


def _count(name: str, unit: str, doc: str, low: float = 1, high: float = 4096) -> Key:
    return Key(name, "int", unit, doc, low, high)


def _limited(name: str, unit: str, doc: str, high: float = 4096) -> Key:
    return Key(name, "int", unit, doc, 1, high, without="unlimited")


def _rate(name: str, unit: str, doc: str) -> Key:
    return Key(name, "number", unit, doc, 1e-6, 10**9)


def _time(name: str, doc: str) -> Key:
    return Key(name, "number", "ns", doc, 0, 10**9)


ROUTING = (
    _limited("colors", "colors", "routable colors of a router"),
    _count("reserved_colors", "colors", "the highest of them, not left to programs", 0),
    _limited("input_queues", "queues", "input queues of a core"),
    _count("reserved_input_queues", "queues", "the lowest of them, not left to programs", 0),
    _limited("output_queues", "queues", "output queues of a core"),
    _count("reserved_output_queues", "queues", "the lowest of them, not left to programs", 0),
    _limited("microthreads", "microthreads", "transfers of a core under way at once"),
    _count("reserved_microthreads", "microthreads", "the lowest of them, not left to programs", 0),
    _limited("task_ids", "ids", "local task ids of a core"),
    Key("free_task_ids", "ids", "ids", "local task ids left to programs"),
    _count("input_queue_words", "words", "depth of the shallowest free input queue", 1, 10**6),
    _count("output_queue_words", "words", "depth of the shallowest free output queue", 1, 10**6),
)

CSL = (
    Key("switch_colors", "ids", "colors", "colors of routers that have switch positions"),
    _count("runtime_bytes", "bytes", "code of the host's copies and launches on a core", 0, 10**9),
    Key("statement_bytes", "number", "bytes/statement", "code of a statement in CSL", 0, 1024),
    Key("code_margin", "number", "of the estimate", "what estimates of code may be off by", 0, 10),
    _cycles("task_cycles", "picking and starting a local task"),
    _cycles("register_load_cycles", "a register loaded from a descriptor made at run time"),
    _rate("convert_lanes_per_cycle", "operations/cycle", "f16 to f32 and back; shifts of words"),
    _rate("integer_lanes_per_cycle", "operations/cycle", "16-bit integers to floats"),
)
"""What a device of which ``csl_arch`` is known gives beside the keys of routing."""

CLUSTERS = (
    Key("cluster_sizes", "ids", "blocks", "numbers of blocks a cluster may have"),
    Key("cluster_domains", "counts", "cores", "cores of each group that a cluster must lie in"),
    Key(
        "cluster_bytes_per_second", "points", "bytes/s", "bandwidth between blocks by their number"
    ),
    _count("core_memory_bytes", "bytes", "shared memory of a core, for all its blocks", 1, 10**12),
    _count("block_reserved_bytes", "bytes", "part that a block takes beside its own", 0, 10**12),
    _count("core_registers", "registers", "registers of 32 bits of a core", 1, 10**9),
)


STEPS = (
    Key(
        "stream_bytes_per_second", "number", "bytes/s", "what kernels that only read reach", 1, 1e16
    ),
    Key("shared_bytes_per_second", "number", "bytes/s", "what all cores read of L2", 1, 1e16),
    Key("l2_bytes_per_second", "number", "bytes/s", "what copies of many cores get of L2", 1, 1e16),
    Key("tensor_flops_per_second", "number", "FLOP/s", "of all tensor cores, of 16 bits", 1, 1e18),
    _time("shared_latency_ns", "from asking L2 to the answer where nothing else is on its way"),
    Key("shared_waits", "number", "s/s", "more of it for each second that memory would", 0, 100),
    _time("stream_latency_ns", "from asking for a tile to its arrival, others on their way"),
    _count("tile_bytes", "bytes", "what a block asks for at once", 16, 10**9),
    _time("attention_asking_ns", "from asking for cached tokens, in pages, to the next tile's"),
    _time("signal_ns", "from the last block's arrival at a meeting until all know of it"),
    Key("signal_waits", "number", "s/s", "more of it for each second that memory would", 0, 100),
    Key("cluster_signal_ns", "points", "ns", "the same of a cluster's blocks, by their number"),
    _time("word_ns", "from a word's storing until all know of it that read it until it is there"),
    Key("word_waits", "number", "s/s", "more of it for each second that memory would", 0, 100),
    _time("kernel_ns", "from the last block's end in a kernel until those of the next one begin"),
    _time("ready_ns", "from what a phase needs to its first product"),
    Key("prepare_ns", "number", "ns/KiB", "more of it for each KiB that it needs", 0, 10**6),
    Key("choice_ns", "points", "ns", "gates of a token, by how many experts they are of"),
    _time("streamed_copy_ns", "a copy of rows with vectors beside them, besides that of its tile"),
    Key("decoding_cycles", "number", "cycles", "an instruction that decodes codes", 1, 100),
    Key("product_tile_ns", "points", "ns", "a tile's product, by columns of 16 bits"),
    _time("product_task_ns", "end of a task that multiplies"),
    _time("attention_tile_ns", "attention of a tile, up to 8 query heads"),
    _time("attention_task_ns", "end of a task that attends"),
    _time("chunk_step_ns", "16 lanes of 64 rows of a product with many tokens of a prompt"),
    _time("chunk_token_ns", "more of it for each token"),
    _time("chunk_seen_ns", "attention of 64 queries of 128 lanes to a token"),
)
"""What the time of a step of tasks (``cost/tasks``) and of kernels that read prompts
(``cost/prompt_kernels``) needs, beside numbers of memory."""


def _serving(name: str, unit: str, doc: str) -> Key:
    return Key(name, "number", unit, doc)


SERVING = (
    _serving(
        "expert_bytes_per_second", "bytes/s", "what products of experts reach of a GPU's memory"
    ),
    _serving("expert_flops_per_second", "flop/s", "what products of experts reach of a GPU"),
    _serving(
        "product_flops_per_second", "flop/s", "what other products with weights reach of a GPU"
    ),
    _serving(
        "attention_flops_per_second", "flop/s", "what attention over prompts reaches of a GPU"
    ),
    _serving("activation_passes", "passes", "times a layer moves an activation beside products"),
    _serving("layer_seconds", "s", "fixed time of a layer that only decodes"),
    _serving("prompt_layer_seconds", "s", "fixed time of a layer that prompts pass"),
    _serving("iteration_seconds", "s", "fixed time of an iteration over all layers"),
    _serving("dense_share", "share", "of fixed times and passes that a layer without experts has"),
    _serving("idle_watts", "W", "power of a GPU that waits"),
    _serving("busy_watts", "W", "power of a GPU while kernels run, beside traffic and arithmetic"),
    _serving("joules_per_byte", "J/byte", "energy of a byte from or to memory"),
    _serving("joules_per_flop", "J/flop", "energy of an operation of a product"),
)
"""What serving models takes of a node of GPUs, for one of them."""

NODES = (
    _count("multiprocessors", "multiprocessors", "those of a GPU, a block of a product each"),
    _serving("operand_macs", "multiply-adds", "in the time a value of a tile's operand arrives in"),
    _serving("kernel_seconds", "s", "from the end of a kernel to the start of the next"),
    _serving("norm_seconds", "s", "fixed time of a residual sum and norm"),
    _serving("expert_passes", "passes", "times a row of an expert is moved beside products"),
    _serving("collective_seconds", "s", "fixed time of a sum over all GPUs"),
    _serving("link_bytes_per_second", "bytes/s", "what sums reach of a GPU's link, one direction"),
    _serving("block_bytes_per_second", "bytes/s", "rows that one block sums and normalises"),
    _count("collective_blocks", "blocks", "multiprocessors given to sums beside other kernels"),
    _serving("overlap_slowdown", "share", "that kernels take longer beside a sum"),
    _serving("overlap_seconds", "s", "that a layer in two halves takes more"),
)
"""What costs of kernels on a node of GPUs in tensor parallel need beside."""

NUMBERS = (
    Key("cores_x", "int", "cores", "most columns a mesh may have", 1, 10**6, True),
    Key("cores_y", "int", "cores", "most rows a mesh may have", 1, 10**6, True),
    _count("cores", "cores", "most cores in all, where less than cores_x * cores_y", 1, 10**9),
    Key("clock_hz", "int", "Hz", "cycles per second", 1, 10**12, True),
    _limited("memory_bytes", "bytes", "memory of a core", 10**15),
    _count("reserved_bytes", "bytes", "part of it for code and stack", 0, 10**15),
    Key("watts", "number", "W", "power of all cores together while they compute", 0, 1e9),
    _cycles("hop_cycles", "latency of one hop (alpha)", True),
    _cycles("route_cycles", "receive, combine and send again (beta)", True),
    _cycles(
        "relay_cycles",
        "pass a word of a chain on; none where a core stores messages whole",
        without="none",
    ),
    Key("word_bytes", "int", "bytes", "bytes of one message word", 1, 1024, True),
    Key("words_per_cycle", "number", "words/cycle", "words a link takes per cycle", 1e-6, 10**6),
    *(_rate(f"{d}_macs_per_cycle", "multiply-adds/cycle", f"{d} multiply-adds") for d in DTYPES),
    _rate("mixed_macs_per_cycle", "multiply-adds/cycle", "half-width factors, f32 sum"),
    *(_rate(f"{d}_lanes_per_cycle", "operations/cycle", f"{d} elementwise ops") for d in DTYPES),
    # Of a device with CSL, from here to step_cycles: what published programs take (--plmr).
    _cycles("op_cycles", "start of one local vector operation"),
    _cycles("vector_cycles", "issue of a vector instruction in a loop"),
    _cycles("scalar_cycles", "fetch of a scalar operand in a loop"),
    _cycles("combine_cycles", "receive, add and send on one word in a tree of stored messages"),
    _cycles("step_cycles", "loop and task switch of a communication step"),
    _count("global_memory_bytes", "bytes", "memory all cores share", 0, 10**15),
    Key("global_bytes_per_second", "number", "bytes/s", "its bandwidth", 0, 1e16),
    Key("read_bytes_per_second", "number", "bytes/s", "what kernels reach of it", 0, 1e16),
    _cycles("global_latency_cycles", "from asking it to the answer"),
    _count("bytes_in_flight", "bytes", "on their way to each core that fill it", 0, 10**9),
    _count("early_bytes_in_flight", "bytes", "on their way in front of a meeting", 1, 10**9),
    *CLUSTERS,
    *STEPS,
    *SERVING,
    *NODES,
    *ROUTING,
    *CSL,
)

KEYS = {key.name: key for key in (*FACTS, *NUMBERS)}

LINK = ("topology", "push", "hop_cycles", "route_cycles", "relay_cycles", "words_per_cycle")
"""What is said of the links of each level: the facts and numbers of a device are those of its
innermost level, any other has a table ``[level.NAME]``."""


def key_of(name: str) -> Key:
    """The key of a fact or number, behind the name of its level and a dot where it is a link's."""
    return KEYS[name.rpartition(".")[2]]


_ARCH = re.compile(r"sm_[1-9]\d{1,2}[af]?\Z")
_COUNTS = re.compile(r"[1-9]\d{0,5}(,[1-9]\d{0,5}){0,255}\Z")
_POINT = r"[1-9]\d{0,5}:\d{1,18}(\.\d{1,9})?(e\d{1,2})?"
_POINTS = re.compile(rf"{_POINT}(,{_POINT}){{0,31}}\Z")
_IDS = re.compile(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*\Z")


def ids(text: str) -> tuple[int, ...]:
    """``"0-2,5"`` as ``(0, 1, 2, 5)``; empty when a range runs backwards."""
    found: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        found += range(int(low), min(int(high or low), MAX_ID) + 1)
        if int(high or low) < int(low):
            return ()
    return tuple(sorted(set(found)))


def counts(text: str) -> tuple[int, ...]:
    """``"18,16"`` as ``(18, 16)``."""
    return tuple(int(part) for part in text.split(","))


def points(text: str) -> tuple[tuple[int, float], ...]:
    """``"2:3e12,16:2e12"`` as ``((2, 3e12), (16, 2e12))``, in the order of sizes."""
    parts = (part.split(":") for part in text.split(","))
    return tuple(sorted((int(size), float(number)) for size, number in parts))


SHAPES: dict[Shape, tuple[str, Callable[[object], bool]]] = {
    "int": ("a whole number", lambda v: isinstance(v, int) and not isinstance(v, bool)),
    "number": (
        "a number",
        lambda v: isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v),
    ),
    "text": ("text in quotes", lambda v: isinstance(v, str)),
    "bool": ("true or false", lambda v: isinstance(v, bool)),
    "axes": (
        "three names in small letters (of single ones o, r, u to z) that programs do not use for "
        'something else, such as "r y x"',
        lambda v: isinstance(v, str) and are_axis_names(v),
    ),
    "levels": (
        'three names in small letters, equal ones beside each other, such as "node gpu gpu"',
        lambda v: isinstance(v, str) and are_levels(v),
    ),
    "arch": (
        'an architecture of CUDA, such as "sm_90a"',
        lambda v: isinstance(v, str) and bool(_ARCH.match(v)),
    ),
    "ids": (
        'ids as text, such as "0-20,24"',
        lambda v: isinstance(v, str) and bool(_IDS.match(v)) and bool(ids(v)),
    ),
    "counts": (
        'positive counts as text, such as "18,16,16"',
        lambda v: isinstance(v, str) and bool(_COUNTS.match(v)),
    ),
    "points": (
        'sizes and their numbers as text, such as "2:3.3e12,16:2.9e12"',
        lambda v: isinstance(v, str) and bool(_POINTS.match(v)),
    ),
}
"""What a value of each shape is called, and whether something is one."""
