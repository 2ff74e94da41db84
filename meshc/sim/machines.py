"""The choice between the two machines: generated Python, or generated C."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from meshc.sim.cgen.c_machine import CMachine
from meshc.sim.cgen.errors import Unsupported
from meshc.sim.machine.machine import Machine
from meshc.sim.machine.run_options import BACKENDS, MOST_THREADS_BY_DEFAULT, Options
from meshc.sim.program import Program
from meshc.sim.timing import DEFAULT, MODELS
from meshc.support.diagnostics import Diagnostic, fail
from meshc.support.native import BuildError


def backend_of(options: Options) -> str:
    """The wanted back end. Raises ``csl-usage``."""
    wanted = options.backend or "auto"
    if wanted not in BACKENDS:
        fail("csl-usage", f"there is no back end '{wanted}': choose auto, python or c")
    return wanted


def timing_of(options: Options) -> str:
    """The timing model. Raises ``csl-usage``."""
    wanted = options.timing or DEFAULT
    if wanted not in MODELS:
        fail("csl-usage", f"there is no timing model '{wanted}': choose {' or '.join(MODELS)}")
    return wanted


def threads_of(options: Options) -> int:
    """Threads of the C machine: of the options, else one for each core that this process may use,
    up to ``MOST_THREADS_BY_DEFAULT``."""
    return options.threads or min(_cores(), MOST_THREADS_BY_DEFAULT)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def make_machine(program: Program, options: Options) -> Machine | CMachine:
    """A machine for a program; ``auto`` takes C when it can. Raises MeshcError."""
    wanted = backend_of(options)
    options = replace(options, timing=timing_of(options))
    if wanted == "python":
        return Machine(program, options)
    options = replace(options, threads=threads_of(options))
    try:
        return CMachine(program, options)
    except (BuildError, Unsupported) as problem:
        words = f"the Python back end is used instead of C: {problem}"
        print(Diagnostic("remark", "csl-backend", words).render(), file=sys.stderr)
        return Machine(program, options)
