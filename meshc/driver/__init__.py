"""The driver: from what a person asks for to compiled programs and answers."""

from meshc.backends.host_protocols import Backend
from meshc.backends.request import CompileRequest
from meshc.driver.backends import opened
from meshc.driver.checking import Check
from meshc.driver.compiled import Compiled
from meshc.driver.compiling import compile_loaded, graph_module
from meshc.driver.emitted import Emitted, emitted_once
from meshc.driver.executable import Executable
from meshc.driver.generating import Answer, read_prompts
from meshc.driver.models import LoadedModel, load_any
from meshc.driver.profiling import Profile
from meshc.driver.running import RunRequest, open_program, run_emitted, run_program
from meshc.driver.simulated_runs import cheapest, simulated_run
from meshc.driver.smallest import smallest_place
from meshc.driver.standalone_programs import standalone_content
from meshc.driver.weights import find_weights, formats_to_keep, open_weights, weight_files

__all__ = [
    "Answer",
    "Backend",
    "Check",
    "CompileRequest",
    "Compiled",
    "Emitted",
    "Executable",
    "LoadedModel",
    "Profile",
    "RunRequest",
    "cheapest",
    "compile_loaded",
    "emitted_once",
    "find_weights",
    "formats_to_keep",
    "graph_module",
    "load_any",
    "open_program",
    "open_weights",
    "opened",
    "read_prompts",
    "run_emitted",
    "run_program",
    "simulated_run",
    "smallest_place",
    "standalone_content",
    "weight_files",
]
