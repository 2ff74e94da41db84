"""The driver: from what a person asks for to compiled programs and answers."""

from meshc.driver.checking import Check
from meshc.driver.compiling import Compiled, compile_loaded, graph_module
from meshc.driver.hosts import Backend, opened
from meshc.driver.models import LoadedModel, load_any
from meshc.driver.request import CompileRequest
from meshc.driver.running import Answer, RunRequest, open_program, run_compiled, run_program
from meshc.driver.weights import find_weights, open_weights, weight_files

__all__ = [
    "Answer",
    "Backend",
    "Check",
    "CompileRequest",
    "Compiled",
    "LoadedModel",
    "RunRequest",
    "compile_loaded",
    "find_weights",
    "graph_module",
    "load_any",
    "open_program",
    "open_weights",
    "opened",
    "run_compiled",
    "run_program",
    "weight_files",
]
