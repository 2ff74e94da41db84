"""Compile time: how it depends on the mesh, and what real devices take.

    python benchmarks/compile_time.py [--json] [--repeats 5]

Measures from the name of a model to verified tile-level text. Part one compiles the same model for
8x8 and for 720x720 cores with the same K; the text hardly grows, so neither may the time. Part
two compiles for a wafer at the largest number of layers that fits its memory.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from time import perf_counter

from measuring import MIB, Times, interleaved, peak_bytes, table

from meshc.driver import CompileRequest, graph_module, load_any
from meshc.ir.printer import print_module
from meshc.passes.manager import PassManager
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import Diagnostics, MeshcError

MODEL = "llama-3-8b"
SMALL, LARGE = "8x8", "720x720"
MOST_RATIO = 1.5
MOST_SECONDS = 10.0
MOST_BYTES = 10**9


@dataclass(frozen=True)
class Scaling:
    """Median seconds of one phase on the small and the large mesh."""

    phase: str
    small: float
    large: float
    small_cpu: float
    large_cpu: float
    small_characters: int
    large_characters: int

    @property
    def ratio(self) -> float:
        return self.large / self.small

    @property
    def cpu_ratio(self) -> float:
        return self.large_cpu / self.small_cpu


@dataclass(frozen=True)
class OnDevice:
    """One compile for a wafer; ``peak_bytes`` is that of the whole process so far."""

    phase: str
    mesh: str
    kv: str
    layers: int
    refused_layers: int
    seconds: float
    peak_bytes: int
    refusals: tuple[str, ...]


def compile_tile(request: CompileRequest, phase: str, settings: dict[str, str]) -> str:
    """From the model's name to tile-level text, every fact checked."""
    report = Diagnostics()
    module = graph_module(load_any(MODEL, report), phase, request)
    manager = PassManager(pipeline_to("tile", request.settings() | settings))
    return print_module(manager.run(module, report))


def scaling(phase: str, repeats: int) -> Scaling:
    """The phase on both meshes with a K-tree of two phases."""
    same_k = {"select-collective": "select-collective{k=2}"}

    def on(mesh: str) -> str:
        request = CompileRequest(device="ideal", mesh=mesh, phase=phase, compile_to="tile")
        return compile_tile(request, phase, same_k)

    small, large = interleaved([lambda: on(SMALL), lambda: on(LARGE)], repeats)
    return _scaling(phase, small, large, len(on(SMALL)), len(on(LARGE)))


def _scaling(phase: str, small: Times, large: Times, short: int, long: int) -> Scaling:
    return Scaling(
        phase,
        small.wall_median,
        large.wall_median,
        small.cpu_median,
        large.cpu_median,
        short,
        long,
    )


def on_wse2(phase: str, mesh: str, repeats: int) -> OnDevice | None:
    """The most layers that compile; KV policies in order of preference, None if none does."""
    refusals: list[str] = []
    for kv in ("shift", "cyclic"):
        layers = _most_layers(phase, mesh, kv, refusals)
        if layers:
            request = _wse2_request(phase, mesh, kv, layers)
            (times,) = interleaved([lambda r=request: compile_tile(r, phase, {})], repeats)
            seen = tuple(dict.fromkeys(refusals))
            most = load_any(MODEL, Diagnostics()).config.layers
            refused = layers + 1 if layers < most else 0
            return OnDevice(phase, mesh, kv, layers, refused, times.wall_median, peak_bytes(), seen)
    return None


def _wse2_request(phase: str, mesh: str, kv: str, layers: int) -> CompileRequest:
    return CompileRequest(
        device="wse2",
        mesh=mesh,
        phase=phase,
        layers=layers,
        dtype="f16",
        kv=kv,
        compile_to="tile",
    )


def _most_layers(phase: str, mesh: str, kv: str, refusals: list[str]) -> int:
    """By bisection between nothing and the whole model."""
    low, high = 0, load_any(MODEL, Diagnostics()).config.layers + 1
    while high - low > 1:
        middle = (low + high) // 2
        try:
            compile_tile(_wse2_request(phase, mesh, kv, middle), phase, {})
            low = middle
        except MeshcError as error:
            first = error.diagnostics[0]
            refusals.append(f"{kv}: {first.code}: {first.message}")
            high = middle
    return low


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    started = perf_counter()
    scalings = [scaling(phase, args.repeats) for phase in ("decode", "prefill")]
    cases = (("decode", "360x360"), ("prefill", "660x660"))
    devices = [(case, on_wse2(*case, args.repeats)) for case in cases]
    if args.json:
        found = [asdict(s) | {"ratio": s.ratio, "cpu_ratio": s.cpu_ratio} for s in scalings]
        wafers = [asdict(d) if d else None for _, d in devices]
        print(json.dumps({"model": MODEL, "scaling": found, "wse2": wafers}, indent=1))
        return
    _print_scaling(scalings, args.repeats)
    _print_devices(devices)
    print(f"\nall of it took {perf_counter() - started:.0f} s")


def _print_scaling(scalings: list[Scaling], repeats: int) -> None:
    print(f"{MODEL} to tile level, device ideal, k=2, median of {repeats} (limit {MOST_RATIO})\n")
    rows = [
        [
            s.phase,
            f"{s.small:.3f} s",
            f"{s.large:.3f} s",
            f"{s.ratio:.2f}",
            f"{s.cpu_ratio:.2f}",
            f"{s.small_characters} / {s.large_characters}",
        ]
        for s in scalings
    ]
    print(table(["phase", SMALL, LARGE, "ratio", "of CPU time", "characters"], rows))


def _print_devices(devices: list[tuple[tuple[str, str], OnDevice | None]]) -> None:
    limits = f"{MOST_SECONDS:.0f} s, {MOST_BYTES / MIB:.0f} MiB"
    print(f"\n{MODEL} for wse2 in f16 at the most layers that fit (limits {limits})\n")
    rows = []
    for (phase, mesh), found in devices:
        if found is None:
            rows.append([phase, mesh, "refused", "", "", ""])
            continue
        peak = f"{found.peak_bytes / MIB:.0f} MiB"
        seconds = f"{found.seconds:.2f} s"
        rows.append([phase, mesh, found.kv, str(found.layers), seconds, peak])
    print(table(["phase", "mesh", "kv", "layers", "time", "peak so far"], rows))
    for (phase, _), found in devices:
        for refusal in found.refusals if found else ():
            print(f"\nrefused {phase}, {refusal}")


if __name__ == "__main__":
    main()
