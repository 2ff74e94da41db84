"""The target: its options, what it refuses, and the files of a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import meshc
from one_core_c.program import program

REALS = ("float", "double")


@dataclass(frozen=True)
class COptions(meshc.MeshOptions):
    """``real`` is the type that the program computes in; its files hold 32-bit floats."""

    real: str = meshc.option("float", "the type that the program computes in", "float|double")


class OneCoreC(meshc.MeshTarget):
    """A program of standard C, whose arrays are the buffers of the only core."""

    NAME: ClassVar[str] = "one-core-c"
    OPTIONS = COptions
    MOST_REQUESTS = 1
    USUAL_TYPE = "f32", "the type of the files of a C program"
    SUFFIX = ".c"

    def check(self, request: meshc.CompileRequest, found: meshc.Diagnostics) -> None:
        super().check(request, found)
        real = request.options_of(COptions).real
        if real not in REALS:
            words = f"real cannot be '{real}'"
            found.error("bad-argument", words, help=f"it is one of {', '.join(REALS)}")
        if not request.compile_to and request.mesh_name != "1x1":
            words = "a program for --target one-core-c has one core"
            found.error("bad-argument", f"the mesh is {request.mesh_name}, but {words}",
                        help="--mesh 1x1")  # fmt: skip

    def write(self, work: meshc.Work) -> meshc.Written:
        modules = work.modules()
        real = work.request.options_of(COptions).real
        files = {f"{phase}.c": program(module, real) for phase, module in modules.items()}
        return meshc.Written(modules, files)


TARGET = OneCoreC()
