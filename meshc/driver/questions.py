"""Products on meshes as questions: which sizes, on how many cores of what, by which algorithm."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.backends.meshes import algorithm_settings
from meshc.backends.request import spec
from meshc.devices import device
from meshc.ir.module import Module
from meshc.ir.parser import parse_module
from meshc.ir.types import DType
from meshc.passes.manager import PassManager
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import fail
from meshc.support.spans import Source

GEMMS = ("cyclic_shift", "cannon", "summa", "allgather", "transposed")
WHOLE = "whole"
"""B is whole on each core, and nothing is sent: what products are where all cores reach each other
at once, by whichever algorithm of a mesh."""
GEMVS = ("pipeline", "ring", "tree", "two_phase", "k_tree:2", "k_tree:3", "k_tree:4")
_MOST = 1 << 24


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

    @property
    def grid(self) -> str:
        """Columns x rows."""
        columns, rows = device(self.device).axes.size_of(self.mesh)
        return f"{columns}x{rows}"

    @property
    def gemms(self) -> tuple[str, ...]:
        """The algorithms of GEMM that differ on the device."""
        numbers = device(self.device)
        links = (numbers.along(axis).link for axis in numbers.axes.plane)
        if all(link.topology == "all_to_all" for link in links):
            return (WHOLE, "transposed")
        return GEMMS

    def check(self) -> None:
        """Raise ``bad-argument`` or ``bad-mesh``."""
        numbers = device(self.device)
        columns, rows = numbers.axes.size_of(self.mesh)
        if numbers.enforced and (columns > numbers.cores_x or rows > numbers.cores_y):
            most = f"{numbers.cores_x}x{numbers.cores_y}"
            fail(
                "bad-argument",
                f"--mesh is {self.mesh}, and {numbers.name} has {most} cores",
                help=f"use at most --mesh {most}",
            )
        for name, extent in (("M", self.m), ("K", self.k), ("N", self.n)):
            if not 1 <= extent <= _MOST:
                fail("bad-argument", f"{name} is {extent}, not 1 to {_MOST}")
        known = [d.value for d in DType if d.floats]
        for text in filter(None, (self.dtype, self.accumulate)):
            if text not in known:
                fail("bad-argument", f"no element type '{text}'", help=", ".join(known))


def tile_module(question: Question, kind: str, algo: str) -> Module:
    """The tile program of one algorithm, compiled without the limits of the device."""
    numbers = device(question.device)
    dtype = question.dtype or numbers.default_dtype
    rights = "N, K" if algo == "transposed" else "K, N"
    text = f"""module @estimate level(graph) {{
      dims M = {question.m}, K = {question.k}, N = {question.n}
      options phase = main, dtype = {dtype}, accumulate = {question.accumulate}
      func @main(in %a: {dtype}[M, K], {"in" if kind == "gemm" else "weight"} %b: {dtype}[{rights}])
          -> ({dtype}[M, N]) {{
        %c = graph.matmul %a, %b {{contract = [K]}} : {dtype}[M, N]
        graph.return %c
      }}
    }}"""
    module = parse_module(Source("<estimate>", text))
    module.device = numbers.unlimited()
    named = {} if algo == WHOLE else {"gemm" if kind == "gemm" else "all_reduce": algo}
    settings = algorithm_settings(**named)
    product = algo if kind == "gemm" and algo != WHOLE else ""
    settings["partition"] = spec("partition", {"grid": question.grid, "gemm": product})
    return PassManager(pipeline_to("tile", settings)).run(module)
