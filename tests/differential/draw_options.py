"""How models of tokens are compiled: every option of a target that changes its program, in any
combinations. Few of those drawn are none that a target takes.

What each option of ``meshc compile`` is drawn by says :data:`DRAWN`; what is not drawn,
:data:`LEFT_OUT`, with the reason.
"""

from __future__ import annotations

from typing import Any

from building import Drawing

ALGORITHMS = {
    "gemm": ("auto", "cyclic_shift", "cannon", "summa", "allgather", "transposed"),
    "all_reduce": (
        *("auto", "ring", "pipeline", "tree", "two_phase", "k_tree"),
        *("k_tree:1", "k_tree:2", "k_tree:3", "k_tree:4", "folded"),
    ),
    "dispatch": ("auto", "multicast", "ring", "gather"),
}
ON_CORES = ("q4_0", "q4_1", "q8_0", "int4_32", "int4_64", "int4_128")
ON_GPUS = (
    *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "mxfp4"),
    *("int4_32", "int4_64", "int4_128", "e4m3_16", "e4m3_32", "e4m3_64", "e4m3_128"),
)
"""Formats of weights that stay quantised."""

Options = dict[str, Any]


def python_options(draw: Drawing, experts: bool = False) -> Options:
    """Of emitted Python."""
    options = _mesh_options(draw, 5, experts)
    if draw.chance(15):
        options["device"] = draw.of(["toy", "wse2", "wse3", "dojo", "blackhole"])
    if draw.chance(35):
        options["batch"] = draw.weighted({2: 40, 3: 30, 4: 20, 7: 10})
    if draw.chance(35):
        options["serving"] = draw.of(["chunks", "layers" if experts else "layers!", "layers!"])
        options.setdefault("batch", draw.number(1, 3))
        if draw.chance(50):
            options["chunk"] = draw.number(1, 9)
    elif draw.chance(20):
        options["phase"] = "decode"
    return options


def csl_options(draw: Drawing, experts: bool = False) -> Options:
    """Of emitted CSL."""
    options = _mesh_options(draw, 3, experts) | {"device": draw.of(["wse2", "wse3"])}
    if draw.chance(10):
        options["portable"] = True
    if draw.chance(30):
        options["choose"] = "cores"
    if draw.chance(25):
        options["phase"] = "decode"
    else:
        if draw.chance(50):
            options["phases"] = draw.of(["auto", "one", "copied", "moved"])
        if draw.chance(30):
            options["chunk"] = draw.number(1, 6)
    if draw.chance(10 if "phases" in options else 30):
        options["batch"] = draw.number(2, 4)
    return options


def _mesh_options(draw: Drawing, most: int, experts: bool) -> Options:
    """What all meshes of cores are asked."""
    options: Options = {"mesh": f"{draw.number(1, most)}x{draw.number(1, most)}"}
    if draw.chance(8):
        columns, rows = options["mesh"].split("x")
        options["mesh"] = f"r={draw.number(2, 3)},y={min(int(rows), 2)},x={min(int(columns), 2)}"
    asked = [n for n in ALGORITHMS if draw.chance(40) and (n != "dispatch" or experts)]
    if asked:
        options["algo"] = tuple(f"{name}={draw.of(ALGORITHMS[name])}" for name in asked)
    if draw.chance(50):
        options["kv"] = draw.of(["shift", "concat", "cyclic"])
    if draw.chance(20):
        options["align"] = draw.of(["host", "device"])
    if draw.chance(12):
        options["result"] = draw.of(["roots", "everywhere"])
    return options


def cuda_options(draw: Drawing, experts: bool = False) -> Options:
    """Of kernels: of one GPU, several, several nodes, or a program that serves."""
    options: Options = {"page": draw.of([1, 16, 16, 64])}
    if draw.chance(40):
        options["batch"] = draw.weighted({2: 30, 3: 25, 4: 20, 5: 10, 7: 10, 16: 5})
    if draw.chance(25):
        options["device"] = draw.of(["h100", "h200", "gh200", "h20", "h100-pcie"])
    if draw.chance(10):
        options["persistent"] = True
    kind = draw.weighted({_one_gpu: 40, _gpus: 30, _nodes: 10, _serving: 20})
    options |= kind(draw, options.get("batch", 1), experts)
    if options.get("dataflow") != "split_head" and "overlap" not in options and draw.chance(25):
        options["kv_dtype"] = "fp8_e4m3"
    if not options.keys() & {"gpus", "nodes", "dataflow", "persistent"} and draw.chance(25):
        options["cut"] = draw.of(["all", "all", "auto"])
    return options


def _one_gpu(draw: Drawing, batch: int, experts: bool) -> Options:
    options: Options = {}
    if draw.chance(25):
        options["dataflow"] = draw.of(["split_token", "split_token", "split_head"])
        if draw.chance(60):
            options["cluster"] = draw.of([1, 2, 4, 8])
        return options
    if draw.chance(25):
        options["chunk"] = 8 * draw.number(1, 6)
    elif draw.chance(25):
        options["kv_layout"] = "nhd"
    return options | _drafts(draw, batch)


def _gpus(draw: Drawing, batch: int, experts: bool) -> Options:
    options: Options = {"gpus": draw.weighted({2: 40, 3: 18, 4: 25, 5: 5, 8: 11, 16: 1})}
    if draw.chance(60):
        options["collectives"] = draw.of(["peers", "peers", "multimem"])
    if draw.chance(40):
        options["chunk"] = 8 * draw.number(1, 6)
        if draw.chance(60):
            own = str(draw.number(1, options["chunk"] - 1))
            options["overlap"] = draw.of(["auto", own, own])
    return options


def _nodes(draw: Drawing, batch: int, experts: bool) -> Options:
    return {"nodes": draw.weighted({2: 80, 3: 20})} | (
        {"kv_layout": "nhd"} if draw.chance(25) else {}
    )


def _serving(draw: Drawing, batch: int, experts: bool) -> Options:
    options: Options = {"serving": draw.of(["chunks", "layers" if experts else "layers!"])}
    options["batch"] = batch
    if draw.chance(30):
        options["kv_layout"] = "nhd"
    if draw.chance(40):
        options["cache_tokens"] = draw.number(0, 80)  # beside those of with_room
    if options["serving"] == "chunks" and draw.chance(40):
        least = max(2, batch)
        return options | {"batch_tokens": draw.number(least, least + 8)}
    return options | _drafts(draw, batch)


def _drafts(draw: Drawing, batch: int) -> Options:
    most = 16 // batch - 1
    return {"drafts": draw.number(1, min(most, 4))} if most > 0 and draw.chance(25) else {}


def with_room(options: Options, tokens: int) -> Options:
    """The same with caches of so many ``tokens``, and pages for all requests at once: what a server
    does where these run out is its scheduler's business."""
    if "cache_tokens" not in options:
        return options | {"seq": tokens}
    each = -(-tokens // options["page"]) * options["page"]
    room = options["cache_tokens"] + each * options["batch"]
    return options | {"seq": tokens, "cache_tokens": room}


OF_TARGET = {"python": python_options, "csl": csl_options, "cuda": cuda_options}
"""What draws the options of a target."""


def may_keep(options: Options) -> bool:
    """Whether weights of a program with ``options`` may stay quantised."""
    return "chunk" not in options and "nodes" not in options


def flags_of(options: Options) -> str:
    """The flags of ``meshc compile`` for these options."""
    found = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, tuple) else (value,):
            found.append(flag if one is True else f"{flag} {one}")
    return " ".join(found)


def option_features(options: Options) -> set[str]:
    """Which options take part, for counting, with values where these are few."""
    found = set()
    for name, value in options.items():
        counted = isinstance(value, tuple) or name in _OF_MANY_VALUES
        found.add(f"option {name}" if counted else f"option {name} {value}")
    return found


_OF_MANY_VALUES = ("seq", "mesh", "chunk", "cache_tokens", "overlap")
DRAWN = {
    "phase": "draw_case, python_options, csl_options",
    "seq": "draw_case, draw_answers",
    "layers": "draw_checkpoints",
    "dtype": "draw_case, draw_answers",
    "batch": "python_options, csl_options, cuda_options",
    "mesh": "_mesh_options",
    "kv": "_mesh_options",
    "algo": "_mesh_options",
    "form": "draw_forms",
    "align": "_mesh_options",
    "result": "_mesh_options",
    "choose": "csl_options",
    "portable": "csl_options",
    "phases": "csl_options",
    "device": "python_options, csl_options, cuda_options",
    "serving": "python_options, cuda_options",
    "chunk": "python_options, csl_options, cuda_options",
    "keep_quantised": "draw_answers",
    "cluster": "cuda_options",
    "dataflow": "cuda_options",
    "page": "cuda_options",
    "kv_layout": "cuda_options",
    "kv_dtype": "cuda_options",
    "gpus": "cuda_options",
    "collectives": "cuda_options",
    "overlap": "cuda_options",
    "nodes": "cuda_options",
    "persistent": "cuda_options",
    "cache_tokens": "cuda_options",
    "drafts": "cuda_options",
    "batch_tokens": "cuda_options",
    "cut": "cuda_options",
    "target": "run.py",
}
"""Which part of the differential draws each option."""

LEFT_OUT = {
    "compile_to": "gives IR and no program; tests/fuzz writes and reads the IR of each level",
    "emit": "gives IR and no program; tests/mlir reads it by other people's tools",
    "passes_before": "any order of passes is drawn by tests/fuzz/fuzz_orders.py",
    "passes_after": "any order of passes is drawn by tests/fuzz/fuzz_orders.py",
}
"""Options that no program of the differential is compiled with, and why."""
