"""Generated Python modules: compiled once per PE class, instantiated per PE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshc.sim.program import PeProgram
from meshc.sim.pygen.functions import FunctionWriter
from meshc.sim.scalar_costs import ScalarCosts


@dataclass
class GeneratedModule:
    """``make`` builds the functions of one PE; ``places`` maps lines to CSL places."""

    make: Callable[..., dict[str, Any]]
    constants: list[object]
    file_name: str
    places: list[str]
    source: str


def generate(program: PeProgram, scalar: ScalarCosts) -> GeneratedModule:
    """Generate and compile the code of a PE program."""
    writer = FunctionWriter(program, scalar)
    source = writer.write()
    file_name = f"<generated {program.name} {id(program)}>"
    namespace: dict[str, Any] = {}
    exec(compile(source, file_name, "exec"), namespace)
    return GeneratedModule(namespace["make"], writer.constants, file_name, writer.places, source)
