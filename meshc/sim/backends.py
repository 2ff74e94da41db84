"""The choice between the two machines: generated Python, or generated C."""

from __future__ import annotations

import os
import sys

from meshc.sim.cgen.errors import Unsupported
from meshc.sim.cgen.machine import CMachine
from meshc.sim.machine.machine import Machine
from meshc.sim.machine.options import BACKENDS, Options
from meshc.sim.program import Program
from meshc.support.diagnostics import Diagnostic, fail
from meshc.support.native import BuildError

VARIABLE = "MESHC_SIM_BACKEND"


def backend_of(options: Options) -> str:
    """The wanted back end: of the options, else of the environment. Raises ``csl-usage``."""
    wanted = options.backend or os.environ.get(VARIABLE) or "auto"
    if wanted not in BACKENDS:
        fail("csl-usage", f"there is no back end '{wanted}': choose auto, python or c")
    return wanted


def make_machine(program: Program, options: Options) -> Machine | CMachine:
    """A machine for a program; ``auto`` takes C when it can. Raises MeshcError."""
    wanted = backend_of(options)
    if wanted == "python":
        return Machine(program, options)
    try:
        return CMachine(program, options)
    except (BuildError, Unsupported) as problem:
        words = f"the Python back end is used instead of C: {problem}"
        print(Diagnostic("remark", "csl-backend", words).render(), file=sys.stderr)
        return Machine(program, options)
