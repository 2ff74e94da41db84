"""Tile-level modules to the files of CSL programs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from meshc.backends.csl.host_file import Vocabulary, host_file
from meshc.backends.csl.kernels.choices import USUAL, Choices
from meshc.backends.csl.layout_file import layout_file
from meshc.backends.csl.pe.pe_file import check_kernels, pe_file
from meshc.backends.csl.report import report
from meshc.backends.csl.spelling.names import check_axes, phase_file, scalar_name
from meshc.devices.csl import targets
from meshc.ir.batch import REQUEST
from meshc.ir.module import Module
from meshc.ir.ops.tile import scalars_of_rounds
from meshc.support.diagnostics import fail, in_each

_MOST = 1 << 15
"""The run-time scalars of a program are 16-bit integers, which are smaller."""


def emit(
    modules: Mapping[str, Module],
    portable: bool = False,
    vocabulary: Vocabulary | None = None,
    choices: Choices = USUAL,
) -> dict[str, str]:
    """Path and text of every file: layout, code of the phase, the host's ``run.py``, commands. The
    host of a single phase makes tokens of a ``vocabulary``, if the phase is a step of decoding.

    They are for the device of the modules; a ``portable`` program runs on every architecture of the
    catalogue. ``choices`` are ways of writing kernels that may be turned off. Several phases are a
    program each, in a folder with the phase's name. Raises
    ``csl-device`` for another device and what the parts raise.
    """
    if len(modules) == 1:
        ((phase, module),) = modules.items()
        return _program(phase, module, portable, "state", vocabulary, choices)

    def program(phase: str) -> dict[str, str]:
        return _program(phase, modules[phase], portable, "../state", None, choices)

    programs = in_each(modules, program)
    return {
        f"{phase_file(phase)}/{name}": text
        for phase, files in programs.items()
        for name, text in files.items()
    }


def check(module: Module) -> None:
    """Raise what of a module has no CSL, whatever it takes of a core: ``csl-device``,
    ``unsupported-batch``, ``csl-regions``, ``csl-extent``, ``csl-axis-name``,
    ``csl-port-name``, ``csl-kernel`` and ``csl-dtype``."""
    targets(module.the_device())
    if scalars_of_rounds(module) or REQUEST in module.scalars:
        fail("unsupported-batch", "a program of several requests is not emitted as CSL yet")
    if module.the_mesh().regions > 1:
        fail("csl-regions", "a program of several regions is not emitted as CSL yet")
    for name, (_, high) in module.scalars.items():
        if high >= _MOST:
            fail(
                "csl-extent",
                f"'{name}' grows to {high}, and the programs of cores count to {_MOST - 1}",
                help="use a shorter sequence (--seq)",
            )
    check_axes(module.the_mesh().coordinates)
    for name in module.scalars:
        scalar_name(name)
    check_kernels(module)


def _program(
    phase: str,
    module: Module,
    portable: bool,
    state: str,
    vocabulary: Vocabulary | None,
    choices: Choices,
) -> dict[str, str]:
    """The files of one phase; ``state`` is where what it keeps between runs lies."""
    check(module)
    goals = targets(module.the_device(), portable)
    pe = pe_file(module, phase, goals, choices)
    return {
        "layout.csl": layout_file(module, pe, phase_file(phase)),
        f"{phase_file(phase)}.csl": pe.text,
        "run.py": host_file(module, pe.symbols, state, vocabulary),
        **{f"commands_{one}.sh": _commands(module, one) for one in goals.archs},
        "report.json": _json(report(module, pe, goals)),
    }


def _json(found: Mapping[str, Any]) -> str:
    """JSON with lists of numbers and words on one line."""
    text = json.dumps(found, indent=2)
    return re.sub(r"\[[^][{}]*\]", lambda m: re.sub(r"\s+", " ", m[0]), text) + "\n"


def _commands(module: Module, arch: str) -> str:
    mesh = module.the_mesh()
    return (
        "#!/usr/bin/env bash\n"
        "set -e\n"
        f"cslc layout.csl --arch={arch} --fabric-dims={mesh.columns + 7},{mesh.rows + 2} "
        "--fabric-offsets=4,1 --memcpy --channels=1 -o out\n"
        'cs_python run.py --name out "$@"\n'
    )
