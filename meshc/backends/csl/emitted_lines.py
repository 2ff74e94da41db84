"""Which lines of the program of a PE the ops of its module became: its tree says it."""

from __future__ import annotations

from collections import defaultdict

from meshc.analysis.traffic.runs import runs_of
from meshc.backends.csl.pe.pe_file import pe_file
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.backends.csl.tree.printed import lines_of
from meshc.backends.lines_of_ops import Stretch, completed
from meshc.devices.csl import targets
from meshc.ir.core import Op
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute


def emitted_lines(module: Module, portable: bool) -> dict[Op, list[Stretch]]:
    """By op, the lines of the program of a PE that ``module`` is emitted as; those of a kernel have
    the functions that it calls."""
    pe = pe_file(module, "", targets(module.the_device(), portable), timed=False)
    numbers: dict[Op, list[int]] = defaultdict(list)
    functions: dict[str, list[int]] = defaultdict(list)
    for number, line in enumerate(lines_of(pe.file), 1):
        functions[line.function].append(number)
        if line.op is not None:
            numbers[line.op].append(number)
    for node in csl.walk(pe.file):
        if isinstance(node, csl.Became) and isinstance(node.op, Compute):
            for each in node.walk():
                if isinstance(each, csl.Call):
                    numbers[node.op].extend(functions.get(each.function, ()))
    for op, written in pe.alike.items():
        numbers[op] += numbers.get(written, ())
    found = {
        op: [Stretch(*run) for run in runs_of(sorted({*at}))] for op, at in numbers.items() if at
    }
    return completed(module, found)
