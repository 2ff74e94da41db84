"""Steps of several task programs, and the chunks that read their prompts, timed on one GPU.

    python benchmarks/gpu/steps.py --prepare DIR [--only NAME,..]
    python benchmarks/gpu/steps.py --measure DIR --out DIR [--only NAME,..] [--limit S] [--budget S]

``--prepare`` compiles what :data:`CASES` names, with machine code and predictions, on a machine
with nvcc or NVRTC. ``--measure`` times it where the GPU is: each program in a process of its own,
which says for each number of cached tokens whether steps repeat their bits and the median time
of a step. Weights and caches are noise of the right spread, each layer's its own, so that all is
read from memory. Traced programs write when each block begins a phase and when it has what it
needs. What is found is written to results.jsonl as it comes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import isolated
import numpy as np
from kernels import probes
from prepared import Prepared, opened
from programs import Step, of_batch
from records import Records
from timing import Task, in_turn
from tracing import traced, traces

from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.emit import MANIFEST
from meshc.ir.batch import AHEAD, BATCH, OWNER, POSITION
from meshc.support.diagnostics import MeshcError
from meshc.support.native import BuildError

_SAME_RUNS = 10
_PREDICTED = "predicted.json"


@dataclass(frozen=True)
class Case:
    """A program: ``options`` of ``meshc compile``; ``contexts`` are cached tokens in front of
    steps, ``behind`` those in front of a chunk of a prompt. ``counter``: blocks meet by a counter
    where tags are predicted to be faster. ``flying``: tiles on their way at once, where not the
    device's number. ``unpaced``: as many of them in front of a meeting as behind it."""

    name: str
    model: str
    contexts: tuple[int, ...]
    batch: int = 1
    capacity: int = 0
    behind: tuple[int, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    counter: bool = False
    flying: int = 0
    unpaced: bool = False
    traced: bool = False


def _kept(form: str) -> dict[str, Any]:
    """Options of programs whose weights stay quantised in ``form``."""
    return {"keep_quantised": (f"all={form}",)}


def _mixed(tokens: int) -> dict[str, Any]:
    """Options of steps that read so many tokens of any requests."""
    return {"serving": "chunks", "batch_tokens": tokens}


_LONG = (1024, 4096, 16384)
_FP8_CACHES = {"kv_dtype": "fp8_e4m3"}
CASES = (
    Case("llama-2-7b", "llama-2-7b", _LONG, behind=(0, 4080)),
    Case("llama-2-7b-counter", "llama-2-7b", _LONG, counter=True),
    Case("llama-3-8b", "llama-3-8b", _LONG, behind=(0, 4080, 16368)),
    Case("llama-3-8b-counter", "llama-3-8b", _LONG, counter=True),
    Case("llama-3-8b-4", "llama-3-8b", (4096,), batch=4),
    Case("llama-3-8b-8", "llama-3-8b", (4096,), batch=8),
    Case("llama-3-8b-8-counter", "llama-3-8b", (4096,), batch=8, counter=True),
    Case("llama-3-8b-16", "llama-3-8b", (4096,), batch=16),
    Case("smollm2-135m", "smollm2-135m", (1024,), behind=(0, 1008)),
    Case("smollm2-135m-counter", "smollm2-135m", (1024,), counter=True),
    Case("qwen3-30b-a3b", "qwen3-30b-a3b", (1024, 4095), behind=(0, 4080)),
    Case("qwen3-30b-a3b-8", "qwen3-30b-a3b", (4095,), batch=8),
    Case("gpt-oss-20b", "gpt-oss-20b", (1024, 4095), behind=(0, 4080)),
    Case("deepseek-v2-lite", "deepseek-v2-lite", (1024, 4095), behind=(0, 4080)),
    Case("mixtral-8x7b", "mixtral-8x7b", (1024, 4095), behind=(0, 4080)),
    Case("codellama-34b", "codellama-34b", (4096,)),
    Case("llama-3-8b-fp8", "llama-3-8b", (1024, 4096), behind=(0, 4080), options=_kept("e4m3_128")),
    Case("llama-3-8b-int4", "llama-3-8b", (1024, 4096), options=_kept("int4_128")),
    Case("llama-3-8b-q4", "llama-3-8b", (1024, 4096), options=_kept("q4_0")),
    Case("llama-3-8b-q8", "llama-3-8b", (1024,), options=_kept("q8_0")),
    Case("llama-3-8b-int4-8", "llama-3-8b", (4096,), batch=8, options=_kept("int4_128")),
    Case("qwen3-30b-a3b-fp8", "qwen3-30b-a3b", (1024, 4095), options=_kept("e4m3_128")),
    Case("llama-3-8b-q4-k", "llama-3-8b", (1024,), options=_kept("q4_k")),
    Case("llama-3-8b-q6-k", "llama-3-8b", (1024,), options=_kept("q6_k")),
    Case(
        "llama-3-8b-fp8-bf16", "llama-3-8b", (1024,), options=_kept("e4m3_128") | {"dtype": "bf16"}
    ),
    Case("gpt-oss-20b-mxfp4", "gpt-oss-20b", (1024, 4095), options=_kept("mxfp4")),
    Case("llama-2-7b-fp8-caches", "llama-2-7b", _LONG, options=_FP8_CACHES),
    Case("llama-3-8b-fp8-caches", "llama-3-8b", _LONG, behind=(0, 4080), options=_FP8_CACHES),
    Case("llama-3-8b-8-fp8-caches", "llama-3-8b", (4096,), batch=8, options=_FP8_CACHES),
    Case("llama-3-8b-16-fp8-caches", "llama-3-8b", (4096,), batch=16, options=_FP8_CACHES),
    Case("llama-3-8b-chunk-64", "llama-3-8b", (), behind=(0, 4032), options={"chunk": 64}),
    Case("llama-3-8b-chunk-128", "llama-3-8b", (), behind=(0, 3968), options={"chunk": 128}),
    Case("llama-3-8b-chunk-504", "llama-3-8b", (), behind=(0,), options={"chunk": 504}),
    Case("llama-3-8b-chunk-512", "llama-3-8b", (), behind=(0, 3584), options={"chunk": 512}),
    Case("llama-3-8b-chunk-2048", "llama-3-8b", (), behind=(0, 6144), options={"chunk": 2048}),
    Case("llama-3-8b-clusters-8", "llama-3-8b", (4096,), options={"cluster": 8}),
    Case("llama-2-7b-clusters-16", "llama-2-7b", (4096,), options={"cluster": 16}),
    Case("llama-2-7b-4-tiles", "llama-2-7b", (1024, 4096), capacity=16385, flying=4),
    Case("llama-3-8b-2-tiles", "llama-3-8b", (1024, 4096), capacity=16385, flying=2),
    Case("llama-3-8b-4-tiles", "llama-3-8b", (1024, 4096), capacity=16385, flying=4),
    Case("llama-3-8b-unpaced", "llama-3-8b", (1024, 4096), capacity=16385, unpaced=True),
    Case("llama-3-8b-fp8-unpaced", "llama-3-8b", (1024,), options=_kept("e4m3_128"), unpaced=True),
    Case("llama-3-8b-int4-unpaced", "llama-3-8b", (1024,), options=_kept("int4_128"), unpaced=True),
    Case("llama-3-8b-8-unpaced", "llama-3-8b", (4096,), batch=8, unpaced=True),
    Case("llama-3-8b-mixed-16", "llama-3-8b", (1024, 4096), batch=16, options=_mixed(16)),
    Case("llama-3-8b-mixed-64", "llama-3-8b", (1024, 4096), batch=16, options=_mixed(64)),
    Case("smollm2-135m-traced", "smollm2-135m", (1024,), traced=True),
    Case("smollm2-135m-counter-traced", "smollm2-135m", (1024,), counter=True, traced=True),
    Case("gpt-oss-20b-traced", "gpt-oss-20b", (4095,), traced=True),
    Case("deepseek-v2-lite-traced", "deepseek-v2-lite", (4095,), traced=True),
    Case("llama-3-8b-traced", "llama-3-8b", (4096,), capacity=16385, traced=True),
    Case("llama-2-7b-traced", "llama-2-7b", (4096,), capacity=16385, traced=True),
    Case("qwen3-30b-a3b-traced", "qwen3-30b-a3b", (4095,), traced=True),
    Case("llama-3-8b-16-traced", "llama-3-8b", (4096,), batch=16, traced=True),
    Case("llama-3-8b-8-traced", "llama-3-8b", (4096,), batch=8, traced=True),
    Case("llama-3-8b-fp8-traced", "llama-3-8b", (1024,), options=_kept("e4m3_128"), traced=True),
    Case("llama-3-8b-int4-traced", "llama-3-8b", (1024,), options=_kept("int4_128"), traced=True),
)


# ---- Before, where a compiler is ----------------------------------------------------------


def prepare(folder: Path, cases: Sequence[Case]) -> None:
    """Compile the cases into folders of their names, but for those that are there already. Raises
    MeshcError and BuildError."""
    for case in cases:
        if (folder / case.name / _PREDICTED).is_file():
            continue
        found, predicted = _compiled(folder / case.name, case)
        needed = (*found.texts.values(), probes())
        texts = [text for text in needed if found.cubins.find(text) is None]
        found.cubins.make(texts)
        (folder / case.name / _PREDICTED).write_text(json.dumps(predicted))
        print(case.name, flush=True)


def _compiled(folder: Path, case: Case) -> tuple[Prepared, dict[str, Any]]:
    """The program of a case, and what its steps and chunks are predicted to take."""
    # Only here: the frontend and the passes need what a machine with a GPU may lack.
    import meshc
    from meshc.cost.prompt_kernels import PromptKernels
    from meshc.cost.tasks.phase_times import step_time
    from meshc.devices import device
    from meshc.driver.served_shapes import served_model

    chunk = int(case.options.get("chunk", 16))
    tokens = case.capacity or max((*case.contexts, *(n + chunk for n in case.behind))) + 1
    h200 = device("h200")
    if case.unpaced:
        h200 = h200.with_numbers(early_bytes_in_flight=h200.bytes_in_flight)
    asked = {"dtype": "f16", "seq": tokens, "batch": case.batch, "device": h200} | case.options
    with patch("meshc.backends.cuda.gpu_divisions.step_with_full_caches", _known(case)):
        made = meshc.compile(case.model, target="cuda", output=folder, **asked)
    module, predicted = made.modules["decode"], []
    for cached in case.contexts:
        rows = module.dims.get(BATCH, 1)
        told: dict[str, list[int]] = {}
        if OWNER in module.scalars:
            owners, ahead = of_batch(rows, case.batch)
            told = {OWNER: owners.tolist(), AHEAD: ahead.tolist()}
        found = step_time(module, {**told, POSITION: [cached] * rows if rows > 1 else cached})
        spent = [[p.name, p.times, p.bytes, vars(p.spent)] for p in found.phases]
        predicted.append({"seconds": found.seconds, "bytes": found.bytes, "phases": spent})
    chunks = []
    for cached in case.behind:
        if "prompt" not in made.prompts:
            kernels = PromptKernels(h200, served_model(case.model), chunk, 1)
            read = kernels.predicted([(cached, cached + chunk)], False)
            chunks.append({"seconds": read.seconds, "bytes": read.bytes})
            continue
        found = step_time(made.prompts["prompt"], {"pos": cached, "len": 16})
        chunks.append({"seconds": found.seconds, "bytes": found.bytes})
    prepared = opened(folder, check=False)
    if case.flying:
        texts = {file: _flying(text, case.flying) for file, text in prepared.texts.items()}
        prepared = replace(prepared, texts=texts)
    if case.traced:
        prepared = traced(prepared)
    for file, text in prepared.texts.items():
        (folder / file).write_text(text)
    (folder / MANIFEST).write_text(prepared.program.to_json())
    return prepared, {"steps": predicted, "chunks": chunks}


def _named(name: str) -> Case | None:
    """The case of a folder: what stands behind an @ tells programs of one case apart."""
    case = next((case for case in CASES if case.name == name.partition("@")[0]), None)
    return None if case is None else replace(case, name=name)


def _known(case: Case) -> Any:
    """What chooses how blocks meet, or nothing known of times, so that they do by a counter."""
    from meshc.backends.cuda.step_times import step_with_full_caches

    return (lambda module: None) if case.counter else step_with_full_caches


def _flying(text: str, count: int) -> str:
    """``text`` with so many tiles on their way."""
    head, found, tail = text.partition("constexpr int FLYING = ")
    return head + found + str(count) + tail[tail.index(";") :] if found else text


# ---- On the GPU ---------------------------------------------------------------------------


def measure(options: argparse.Namespace, cases: Sequence[Case]) -> int:
    """Each case in a process of its own; the exit code: 1 where one failed or is left."""
    records, start, failed = Records(options.out), time.monotonic(), False
    for n, case in enumerate(cases):
        if time.monotonic() - start > options.budget:
            print(f"left: {', '.join(c.name for c in cases[n:])}", flush=True)
            return 1
        words = ["--measure", str(options.measure), "--out", str(options.out), "--case", case.name,
                 "--driver", options.driver, "--repeats", str(options.repeats)]  # fmt: skip
        ended = isolated.run(words, options.limit, Path(__file__))
        records.add("ended", case=case.name, code=ended.code, seconds=round(ended.seconds, 2))
        failed = failed or ended.code != 0
    print(*_table(records.read()), sep="\n")
    return int(failed)


def time_case(options: argparse.Namespace, case: Case) -> None:
    """One case, in this process. Raises MeshcError."""
    folder, records = options.measure / case.name, Records(options.out)
    found = opened(folder, check=False)
    predicted = json.loads((folder / _PREDICTED).read_text())
    with Device(library=options.driver) as device:
        step = Step(device, found.program, found.texts, found.cubins)
        device.stream.synchronize()
        for cached, hope in zip(case.contexts, predicted["steps"], strict=True):
            step.set_cached(cached)
            launches = found.program.launches()
            step.alone(launches)
            wanted = step.logits()
            graph = step.capture(launches)
            equal = 0
            for _ in range(_SAME_RUNS):
                graph.launch()
                equal += bool(np.array_equal(step.logits(), wanted))
            finite = bool(np.isfinite(wanted).all())
            (timed,) = in_turn(device, [Task(case.name, graph.launch)], options.repeats)
            records.add(
                "step", case=case.name, batch=case.batch, cached=cached, median=timed.median,
                spread=timed.spread, predicted=hope["seconds"], bytes=hope["bytes"],
                equal=equal, runs=_SAME_RUNS, finite=finite, gpu=device.facts.name,
                largest=float(np.abs(wanted).max()),
            )  # fmt: skip
            if case.traced:
                graph.launch()
                device.stream.synchronize()
                name = f"trace-{case.name.replace('@', '.')}-{cached}.npz"
                np.savez_compressed(options.out / name, **traces(step, found.program))
            graph.free()
        for cached, hope in zip(case.behind, predicted["chunks"], strict=False):
            reader = found.program.prefills[-1]  # the kernels that --chunk asks for, or tasks
            step.set_chunk(reader, cached)
            launches = reader.launches(False)
            step.alone(launches)
            graph = step.capture(launches)
            (timed,) = in_turn(device, [Task(case.name, graph.launch)], options.repeats)
            records.add(
                "chunk", case=case.name, tokens=reader.tokens, cached=cached, median=timed.median,
                spread=timed.spread, predicted=hope["seconds"], bytes=hope["bytes"],
            )  # fmt: skip
            graph.free()


def _table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    for r in records:
        if r["kind"] in ("step", "chunk"):
            us, hoped = 1e6 * r["median"], 1e6 * r["predicted"]
            ratio = r["median"] * 4.578e12 / r["bytes"] if r["bytes"] else 0
            same = f"{r['equal']}/{r['runs']}" if r["kind"] == "step" else f"{r['tokens']} tokens"
            more = "" if r.get("finite", True) else " NOT FINITE"
            yield (
                f"{r['kind']:6}{r['case']:26}{r['cached']:7}  {us:8.0f} us, predicted {hoped:8.0f} "
                f"({hoped and us / hoped - 1:+.1%}), {ratio:.3f} of the bytes' time, "
                f"{r['spread']:.2%}, {same}{more}"
            )
        elif r["kind"] == "ended" and r["code"] != 0:
            yield f"failed {r['case']}: {r['code']}, {r['seconds']} s"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    does = made.add_mutually_exclusive_group(required=True)
    does.add_argument("--prepare", type=Path, metavar="DIR")
    does.add_argument("--measure", type=Path, metavar="DIR")
    made.add_argument("--out", type=Path, metavar="DIR", help="for the results")
    made.add_argument("--only", type=lambda text: text.split(","), help="names of cases")
    made.add_argument("--case", help="this one alone, in this process")
    made.add_argument("--repeats", type=int, default=30)
    made.add_argument("--limit", type=int, default=60, help="seconds of a case")
    made.add_argument("--budget", type=int, default=540, help="seconds behind which none begins")
    made.add_argument("--driver", default="libcuda.so.1", metavar="LIB.so")
    return made


def main(given: Sequence[str] | None = None) -> int:
    """The exit code: 1 for what is refused, failed or left."""
    options = parser().parse_args(given)
    chosen = options.only or [case.name for case in CASES]
    cases = [case for case in CASES if case.name in chosen]
    try:
        if options.prepare is not None:
            prepare(options.prepare, cases)
            return 0
        options.out.mkdir(parents=True, exist_ok=True)
        if options.case is None:
            there = sorted(path.name for path in options.measure.iterdir())
            found = [c for n in there if (c := _named(n)) and {n, n.partition("@")[0]} & {*chosen}]
            return measure(options, found)
        time_case(options, _named(options.case))
    except (MeshcError, BuildError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
