"""Estimates: each algorithm of a product on a mesh, compiled and counted in PLMR terms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import lcm

from meshc.analysis.plmr import Profile, profile
from meshc.backends import csl
from meshc.devices import Device, device
from meshc.ir.module import Module
from meshc.ir.parser import parse_module
from meshc.ir.types import DType
from meshc.passes.manager import PassManager
from meshc.passes.mesh.partition import parse_grid
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import MeshcError, fail
from meshc.support.spans import Source

GEMMS = ("cyclic_shift", "cannon", "summa", "allgather", "transposed")
GEMVS = ("pipeline", "ring", "tree", "two_phase", "k_tree:2", "k_tree:3", "k_tree:4")
_MOST = 1 << 24
_INFLATED = 3


@dataclass(frozen=True)
class Question:
    """A product C[M, N] = A[M, K] B[K, N] on a mesh of a device."""

    m: int
    k: int
    n: int
    mesh: str
    device: str
    dtype: str = ""
    accumulate: str = "f32"

    def check(self) -> None:
        """Raise ``bad-argument`` or ``bad-mesh``."""
        parse_grid(self.mesh)
        for name, extent in (("M", self.m), ("K", self.k), ("N", self.n)):
            if not 1 <= extent <= _MOST:
                fail("bad-argument", f"{name} is {extent}, not 1 to {_MOST}")
        known = [d.value for d in DType if d is not DType.I32]
        for text in filter(None, (self.dtype, self.accumulate)):
            if text not in known:
                fail("bad-argument", f"no element type '{text}'", help=", ".join(known))


@dataclass(frozen=True)
class Estimate:
    """One algorithm: what it takes, and which letters of PLMR it violates, each with the reason.

    ``cycles`` are those predicted for emitted CSL on a device that has it, calibrated on the fabric
    simulator; elsewhere those of the profile, by the device's numbers.
    """

    kind: str
    algo: str
    profile: Profile
    cycles: float
    violates: dict[str, str]


def estimates(question: Question) -> list[Estimate]:
    """All algorithms of GEMM and, for one row of A, of GEMV (WaferLLM Fig. 6 and Fig. 8)."""
    question.check()
    return [*_of_kind(question, "gemm", GEMMS), *_of_kind(replace(question, m=1), "gemv", GEMVS)]


def _of_kind(question: Question, kind: str, algos: tuple[str, ...]) -> Iterator[Estimate]:
    numbers = device(question.device)
    for algo in algos:
        module = tile_module(question, kind, algo)
        found = profile(module, numbers)
        wrong = violations(question, kind, module, found, numbers)
        yield Estimate(kind, algo, found, _cycles(module, found, numbers), wrong)


def _cycles(module: Module, found: Profile, numbers: Device) -> float:
    """Predicted cycles; those of the profile for what is not CSL or too large to time."""
    if numbers.name not in csl.ARCHITECTURES or module.the_mesh().cores > csl.MOST_TIMED_CORES:
        return found.total.cycles
    try:
        return csl.predicted_cycles(module, numbers.name)
    except MeshcError:
        return found.total.cycles


def tile_module(question: Question, kind: str, algo: str) -> Module:
    """The tile program of one algorithm, compiled without the limits of the device."""
    numbers = device(question.device)
    dtype = question.dtype or numbers.default_dtype
    rights = "N, K" if algo == "transposed" else "K, N"
    option = "gemm" if kind == "gemm" else "all_reduce"
    text = f"""module @estimate level(graph) {{
      dims M = {question.m}, K = {question.k}, N = {question.n}
      options phase = main, dtype = {dtype}, accumulate = {question.accumulate},
        grid = "{question.mesh}", {option} = "{algo}"
      func @main(in %a: {dtype}[M, K], {"in" if kind == "gemm" else "weight"} %b: {dtype}[{rights}])
          -> ({dtype}[M, N]) {{
        %c = graph.matmul %a, %b {{contract = [K]}} : {dtype}[M, N]
        graph.return %c
      }}
    }}"""
    module = parse_module(Source("<estimate>", text))
    module.device = {**numbers.numbers, "enforced": False}
    return PassManager(pipeline_to("tile")).run(module)


def violations(
    question: Question, kind: str, module: Module, found: Profile, numbers: Device
) -> dict[str, str]:
    """Letters of PLMR that a program violates."""
    reasons = {
        "P": _parallelism(question, kind),
        "L": _latency(question, kind, found),
        "M": _memory(module, found, numbers),
        "R": _routing(found, numbers),
    }
    return {letter: reason for letter, reason in reasons.items() if reason}


def _parallelism(question: Question, kind: str) -> str:
    """Cores without work: a dim that is shorter than the axes it is dealt to."""
    columns, rows = parse_grid(question.mesh)
    extents = {"M": (question.m, rows), "K": (question.k, lcm(rows, columns))}
    if kind == "gemv":
        extents = {"K": (question.k, rows)}
    extents["N"] = (question.n, columns)
    idle = [
        f"{name} = {have} on {parts} parts"
        for name, (have, parts) in extents.items()
        if have < parts
    ]
    return f"cores without work ({', '.join(idle)})" if idle else ""


def _latency(question: Question, kind: str, found: Profile) -> str:
    """A way that grows with the mesh: of a step of a product, or of a whole reduction."""
    columns, rows = parse_grid(question.mesh)
    if kind == "gemm" and max(columns, rows) > 3 and (found.step.hops > 2 or found.step.stages > 2):
        return f"a step goes {found.step.hops} hops in {found.step.stages} stages"
    if kind == "gemv" and rows > 3 and found.total.stages >= rows:
        return f"{found.total.stages} routing stages for {rows} cores"
    return ""


def _memory(module: Module, found: Profile, numbers: Device) -> str:
    """More than a core has, or several times what the operands and the result take."""
    room = numbers.data_bytes
    if room is not None and found.bytes > room:
        return f"{found.bytes} bytes on a core that has {room}"
    own = sum(_own_bytes(module, port.buffer.name) for port in module.ports)
    if found.bytes > _INFLATED * own:
        return f"{found.bytes} bytes for operands of {own}"
    return ""


def _own_bytes(module: Module, name: str) -> int:
    """Bytes of the elements of a port's tensor, dealt to all cores once."""
    port = next(p for p in module.ports if p.buffer.name == name)
    total = port.tensor.dtype.bytes
    for extent in port.tensor.shape(module.dims):
        total *= extent
    return -(-total // module.the_mesh().cores)


def _routing(found: Profile, numbers: Device) -> str:
    """More colors at a router, or input queues at a core, than are free."""
    if numbers.routing is None:
        return ""
    colors, queues = numbers.routing.colors.count, numbers.routing.input_queues.count
    if found.paths > colors:
        return f"{found.paths} routing paths of {colors}"
    if found.inputs > queues:
        return f"{found.inputs} input queues of {queues}"
    return ""
