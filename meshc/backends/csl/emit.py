"""Tile-level modules to the files of CSL programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from meshc.analysis.csl.request_rounds import rounds_of
from meshc.analysis.csl.words import kept_atoms
from meshc.backends.csl.fabric.regions import Regions
from meshc.backends.csl.host_file import Vocabulary, host_file
from meshc.backends.csl.layout_file import layout_file
from meshc.backends.csl.pe.idle_file import idle_file
from meshc.backends.csl.pe.pe_file import PeFile, check_kernels, pe_file
from meshc.backends.csl.phases_file import phases_file, reads_prompts
from meshc.backends.csl.report import report
from meshc.backends.csl.spelling.names import IDLE, check_axes, phase_file, scalar_name
from meshc.backends.csl.tree.printed import printed
from meshc.devices.csl import targets
from meshc.ir.affine import Floor
from meshc.ir.batch import REQUEST
from meshc.ir.module import Module
from meshc.ir.types import DType
from meshc.support.diagnostics import fail, in_each

_MOST = 1 << 15
"""The run-time scalars of a program are 16-bit integers, which are smaller."""


def emit(
    modules: Mapping[str, Module],
    portable: bool = False,
    vocabulary: Vocabulary | None = None,
    shared: bool = True,
    grouped: bool = True,
    direct: bool = True,
    full: bool = False,
) -> dict[str, str]:
    """Path and text of every file: layout, code of the phase, the host's ``run.py``, commands. The
    host of a step of decoding makes tokens of a ``vocabulary``.

    They are for the device of the modules; a ``portable`` program runs on every architecture of the
    catalogue. What several places of a program do is a function, unless nothing is ``shared``.
    Where a program goes on behind a wait is found by groups of cases, unless they are not
    ``grouped``; from the last wait of a loop's round it goes on with the next round, unless that is
    not ``direct``. A program may be ``full``, that is take more memory than a core has, which its
    report then says; else that is ``csl-memory-full``.

    Several phases are a program each, in a folder with the phase's name; where one reads prompts
    and the other continues them, a host beside these folders runs both. Raises ``csl-device`` for
    another device, ``csl-regions`` and ``regions-apart`` for regions that do not lie side by side,
    and what the parts raise.
    """
    choices = (shared, grouped, direct)
    if len(modules) == 1:
        ((phase, module),) = modules.items()
        return _program(phase, module, portable, choices, "", vocabulary, full)[1]
    programs = in_each(
        modules,
        lambda phase: _program(phase, modules[phase], portable, choices, "../", vocabulary),
    )
    found = {
        f"{phase_file(phase)}/{name}": text
        for phase, (_, files) in programs.items()
        for name, text in files.items()
    }
    if vocabulary is not None and reads_prompts(modules):
        symbols = {phase: pe.symbols for phase, (pe, _) in programs.items()}
        found["run.py"] = phases_file(modules, symbols, vocabulary)
        for arch in targets(next(iter(modules.values())).the_device(), portable).archs:
            found[f"commands_{arch}.sh"] = _commands(modules, arch)
    return found


def check(module: Module) -> None:
    """Raise what of a module has no CSL, whatever it takes of a core: ``csl-device``,
    ``unsupported-batch``, ``csl-extent``, ``csl-axis-name``,
    ``csl-port-name``, ``csl-kernel`` and ``csl-dtype``."""
    targets(module.the_device())
    rounds = rounds_of(module)
    if REQUEST in module.scalars:
        fail(
            "unsupported-batch",
            f"a program that is told its request by '{REQUEST}' is not emitted as CSL",
            help="pipeline-requests lets a step work on all of them",
        )
    for name, (low, high) in module.scalars.items():
        if low < (-1 if rounds is not None and name in rounds.loop.each else 0):
            fail(
                "csl-extent", f"'{name}' begins with {low}, and the programs of cores count from 0"
            )
        if high >= _MOST:
            fail(
                "csl-extent",
                f"'{name}' grows to {high}, and the programs of cores count to {_MOST - 1}",
                help="use a shorter sequence (--seq)",
            )
    _check_rounded_up(module)
    check_axes(module.the_mesh().coordinates)
    for name in module.scalars:
        scalar_name(name)
    check_kernels(module)


def _check_rounded_up(module: Module) -> None:
    """Fail with ``csl-extent`` where a number of tokens, to which something is added before a
    division to round up, may exceed 16 bits. A chunk and what is before it fit the caches."""
    for atom in kept_atoms(module):
        if not isinstance(atom, Floor):
            continue
        tokens = sum(module.scalars[name][1] for name in atom.body.free_vars)
        if module.rows is not None:
            tokens = min(tokens, module.capacity)
        if tokens + atom.body.constant >= _MOST:
            fail(
                "csl-extent",
                f"{atom.body} grows to {tokens + atom.body.constant}, and the programs of cores "
                f"count to {_MOST - 1}",
                help="use a shorter sequence (--seq)",
            )


def _program(
    phase: str,
    module: Module,
    portable: bool,
    choices: tuple[bool, bool, bool],
    place: str,
    vocabulary: Vocabulary | None,
    full: bool = False,
) -> tuple[PeFile, dict[str, str]]:
    """What a core runs in one phase, and its files; ``choices`` say whether code is shared, cases
    are grouped and waits lead direct to the next round, ``place`` where the folders of weights and
    of what is kept between runs lie."""
    check(module)
    goals = targets(module.the_device(), portable)
    pe = pe_file(module, phase, goals, *choices)
    if not full:
        pe.memory.check()
    idle = (
        {f"{IDLE}.csl": printed(idle_file(pe.launched))} if Regions(module.the_mesh()).idle else {}
    )
    return pe, {
        "layout.csl": printed(layout_file(module, pe, phase_file(phase))),
        f"{phase_file(phase)}.csl": printed(pe.file),
        **idle,
        "run.py": host_file(module, pe.symbols, place, vocabulary),
        **{f"commands_{one}.sh": _commands({"": module}, one) for one in goals.archs},
        "report.json": f"{_json(report(module, pe, goals))}\n",
    }


def with_entry(text: str, key: str, value: Any) -> str:
    """The text of a report with one entry more."""
    return f"{_json({**json.loads(text), key: value})}\n"


def _json(found: Any, pad: str = "") -> str:
    """JSON with lists on one line each, or each of their entries where these have names."""
    if isinstance(found, list) and found:
        if any(isinstance(one, dict) for one in found):
            rows = (f"{pad}  {json.dumps(one)}" for one in found)
            return "\n".join(["[", ",\n".join(rows), f"{pad}]"])
        return f"[ {', '.join(map(json.dumps, found))} ]"
    if not isinstance(found, Mapping) or not found:
        return json.dumps(found)
    inner = [f"{pad}  {json.dumps(key)}: {_json(found[key], f'{pad}  ')}" for key in found]
    return "{\n" + ",\n".join(inner) + f"\n{pad}}}"


def _format(module: Module) -> str:
    """The compiler's option for the format of 16-bit floats, f16 without one."""
    brains = any(buffer.type.dtype == DType.BF16 for buffer in module.buffers)
    return "--fp16-format=bf16 " if brains else ""


def _commands(modules: Mapping[str, Module], arch: str) -> str:
    """Compile each module in the folder of its phase, or here, and run the host."""
    lines = ["#!/usr/bin/env bash", "set -e", *(["mkdir -p out"] if len(modules) > 1 else [])]
    for phase, module in modules.items():
        regions, folder = Regions(module.the_mesh()), f"{phase_file(phase)}/" if phase else ""
        lines.append(
            f"cslc {folder}layout.csl --arch={arch} "
            f"--fabric-dims={regions.columns + 7},{regions.rows + 2} "
            f"--fabric-offsets=4,1 --memcpy --channels=1 {_format(module)}"
            f"-o out{folder and '/' + folder[:-1]}"
        )
    return "\n".join([*lines, 'cs_python run.py --name out "$@"']) + "\n"
