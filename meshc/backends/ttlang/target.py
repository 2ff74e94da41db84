"""The target for Tenstorrent chips."""

from __future__ import annotations

from meshc.backends.meshes import MeshTarget
from meshc.backends.request import CompileRequest
from meshc.backends.target import Work, Written
from meshc.backends.target_options import MeshOptions
from meshc.backends.templates import render
from meshc.backends.ttlang import local_ops as _local  # noqa: F401  what is written of ops
from meshc.backends.ttlang import shared_ops as _shared  # noqa: F401  the same of others
from meshc.backends.ttlang.program import PhaseProgram
from meshc.devices import Device
from meshc.ir.module import Level, Module
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, fail

_PACKAGE = "meshc.backends.ttlang"
_ONLY = {"gemm": "summa"}


class TtlangTarget(MeshTarget):
    """Operations of tt-lang for prompts and batches of rows, from the mesh level."""

    NAME = "ttlang"
    OPTIONS = MeshOptions
    USUAL_DEVICE = "blackhole"
    USUAL_TYPE = "f32", "the one in which the maker's simulator computes"
    SUFFIX = ".py"

    def check(self, request: CompileRequest, found: Diagnostics) -> None:
        super().check(request, found)
        if request.compile_to:
            return
        asked = request.options_of(MeshOptions)
        words = f"programs for --target {self.NAME}"
        for text in asked.algo:
            op, _, name = text.partition("=")
            if _ONLY.get(op) != name:
                help = "--algo gemm=summa is the only one"
                found.error("bad-argument", f"--algo is {text}, but {words} multicast", help=help)
        refused = {
            "--dtype": (request.dtype, ("", "f32"), "compute in f32"),
            "--kv": (asked.kv, ("auto", "cyclic"), "read a prompt into empty caches"),
            "--align": (asked.align, ("",), "turn no operands"),
            "--chunk": (request.chunk, (None,), "read a prompt in one piece"),
            "--keep-quantised": (",".join(request.keep_quantised), ("",), "hold weights in f32"),
        }
        for flag, (value, known, reason) in refused.items():
            if value not in known:
                found.error("bad-argument", f"{flag} is {value}, but {words} {reason}")

    def check_device(self, device: Device) -> None:
        if device.csl_arch is not None or device.kind != "mesh":
            words = f"programs for --target {self.NAME} do not run on {device.name}"
            fail("bad-argument", words, help="--device blackhole")

    def phases(
        self, model: str, known: tuple[str, ...], request: CompileRequest
    ) -> tuple[str, ...]:
        found = super().phases(model, known, request)
        if "decode" in found and not request.compile_to:
            fail(
                "bad-phase",
                f"a decode step of '{model}' has one row, and a tile 32",
                help="--phase prefill",
            )
        return found

    def level(self, request: CompileRequest) -> Level:
        return super().level(request) if request.compile_to else "mesh"

    def settings(self, request: CompileRequest) -> dict[str, str]:
        asked = request.options_of(MeshOptions)
        return super().settings(request.changed(algo=asked.algo or ("gemm=summa",), kv="cyclic"))

    def passes(
        self, module: Module, request: CompileRequest, settings: dict[str, str]
    ) -> list[Pass]:
        """Those of meshes, on nodes whose own memory is no limit: values lie in that of the chip,
        and what an operation has of them is checked as it is made."""
        if not request.compile_to:
            module.device = module.the_device().unlimited()
        return super().passes(module, request, settings)

    def write(self, work: Work) -> Written:
        modules = work.modules()
        ((phase, module),) = modules.items()
        if module.level != "mesh":
            words = f"begin at the mesh level, and '{module.name}' is at the {module.level} level"
            fail("ttlang-op", f"programs for --target {self.NAME} {words}")
        program = PhaseProgram(module)
        program.write()
        files = {
            f"{phase}.py": program.text(),
            "layouts.json": program.layouts(),
            "tiles.py": render(_PACKAGE, "tiles.py.jinja"),
            "run.py": render(_PACKAGE, "run.py.jinja", phase=phase),
        }
        return Written(modules, files)


TARGET = TtlangTarget()
