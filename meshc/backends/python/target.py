"""The Python target."""

from __future__ import annotations

from meshc.backends.host_protocols import Loading
from meshc.backends.hosts import PythonHost
from meshc.backends.meshes import MeshTarget
from meshc.backends.python.emit import emit
from meshc.backends.python.emitted_lines import emitted_lines
from meshc.backends.request import CompileRequest
from meshc.backends.target import OpLines, Work, Written
from meshc.backends.target_options import MeshOptions
from meshc.ir.module import Module
from meshc.support.diagnostics import Diagnostics


class PythonTarget(MeshTarget):
    """NumPy programs of lockstep cores, which run anywhere."""

    NAME = "python"
    OPTIONS = MeshOptions
    MOST_REQUESTS = 256
    USUAL_TYPE = "f32", "the one that emitted NumPy is fast in"
    BACKENDS = ("python",)
    SERVES = True
    SUFFIX = ".py"
    CHECKS_LENGTHS = True

    def check(self, request: CompileRequest, found: Diagnostics) -> None:
        super().check(request, found)
        if request.chunk is not None and not request.serving:
            words = "programs for --target python do not take it"
            found.error("bad-argument", f"--chunk is {request.chunk}, but {words}")

    def write(self, work: Work) -> Written:
        modules = work.modules()
        work.tell_of_writing()
        return Written(modules, emit(modules, work.host))

    def load(self, loading: Loading) -> PythonHost:
        return PythonHost(loading.folder, loading.tensors)

    def load_engine(self, loading: Loading) -> PythonHost:
        host = self.load(loading)
        host.check_serves()
        return host

    def lines_of(self, request: CompileRequest, module: Module, text: str) -> OpLines:
        return emitted_lines(module, text)

    def whose(self, request: CompileRequest) -> str:
        device = request.the_device()
        words = "this is the program for --target python, with all of a core's data on "
        words += device.name
        if device.csl_arch is not None:
            return f"{words}; --target csl plans memory in its own way"
        if device.kind in ("cluster", "node"):
            return f"{words}; --target cuda keeps weights and caches in the memory of the GPU"
        return words


TARGET = PythonTarget()
