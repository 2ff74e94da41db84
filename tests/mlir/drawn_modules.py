"""Modules by number: those behind random passes of the fuzzer, and those of random programs."""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from random import Random

from cases import draw_case
from fuzz_orders import drawn_order
from judging import compile_case

from meshc.ir.clone import clone_module
from meshc.ir.module import Module
from meshc.ir.parser import parse_module
from meshc.passes.base import Pass
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source

SEED = 49
_TARGETS = {"python": 2.0, "tasks": 1.0}


def drawn_module(number: int) -> Module:
    """The same module for the same ``number``."""
    random = Random(f"{SEED}:{number}")
    if number % 2:
        return _of_a_program(number, random)
    text, passes = drawn_order(random)
    return _behind(parse_module(Source("drawn", text)), parse_pipeline(passes))


def _behind(module: Module, passes: Iterable[Pass]) -> Module:
    """``module`` behind those of ``passes`` that do not refuse it."""
    for step in passes:
        before = clone_module(module)
        try:
            module = PassManager([step]).run(module)
        except MeshcError:
            module = before
    return module


def _of_a_program(number: int, random: Random) -> Module:
    """A phase of a random program, lowered to a random level."""
    for index in range(1_000 * number, 1_000 * (number + 1)):
        case = draw_case(SEED, index, _TARGETS)
        if case.target == "python":
            case.options["compile_to"] = random.choice(("graph", "mesh", "tile"))
        with tempfile.TemporaryDirectory(prefix="drawn-") as folder:
            try:
                compiled = compile_case(case, Path(folder))
            except MeshcError:
                continue
        return random.choice(list(compiled.modules.values()))
    raise AssertionError("no program compiles")
