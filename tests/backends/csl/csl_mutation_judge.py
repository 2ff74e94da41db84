"""Judges edits of emitted decode programs: the logits behind each token of a prompt, on the
simulator with bounded queues, must be those of the Python target, or the edit is noticed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from csl_decoding import TINY
from csl_mutations import Mutation, mutations

from meshc.driver import (
    CompileRequest,
    RunRequest,
    compile_loaded,
    find_weights,
    load_any,
    open_weights,
    opened,
    run_compiled,
)
from meshc.sim.machine.options import Options
from meshc.sim.running import compile_folder, host_names
from meshc.support.diagnostics import Diagnostics, MeshcError

PE_FILE = "decode.csl"


@dataclass(frozen=True)
class Setup:
    """A model, what it is compiled for, and how far logits may be off, in units of the largest."""

    model: str
    device: str
    mesh: str
    dtype: str
    kv: str
    off: float
    first: int = 0  # position of the first token: attention sees how far tokens are apart alone


SETUPS = {
    "cyclic": Setup("llama-3h1", "wse2", "2x3", "f32", "cyclic", 2e-5, 30_000),
    "shift": Setup("qwen2-7h1", "wse3", "1x3", "f32", "shift", 2e-5),
    "halves": Setup("llama-9h3-tied", "wse3", "2x2", "f16", "cyclic", 1e-2, 30_000),
}
CAPACITY = 12
PROMPT = tuple(range(5, 14))


@dataclass(frozen=True)
class Program:
    """The files of a setup, the tensors of its model and the logits behind each token."""

    files: Mapping[str, str]
    tensors: Mapping[str, Any]
    wanted: np.ndarray


@cache
def program(name: str) -> Program:
    """A setup compiled, with what the Python target finds in f32."""
    setup, report = SETUPS[name], Diagnostics()
    loaded = load_any(str(TINY / setup.model), report)
    place = find_weights(setup.model, TINY / setup.model, None)
    asked = CompileRequest(
        target="csl", device=setup.device, mesh=setup.mesh, dtype=setup.dtype, kv=setup.kv,
        seq=CAPACITY, phase="decode",
    )  # fmt: skip
    files = compile_loaded(loaded, asked, (), report).files
    python = compile_loaded(loaded, CompileRequest(mesh="1x1", seq=CAPACITY), (), report)
    with opened("python") as backend:
        wanted = [
            np.ravel(run_compiled(python, RunRequest((one,), 1), backend, report)[0].logits)
            for one in (PROMPT[:length] for length in range(1, len(PROMPT) + 1))
        ]
    return Program(files, open_weights(place, loaded.config, None, report), np.array(wanted))


def every() -> list[Mutation]:
    """All edits of the programs. Those of angles are made where positions are large and sums are
    f32, so that an angle that is not exact is seen."""
    return [
        one
        for name, setup in SETUPS.items()
        for one in mutations(
            name, program(name).files[PE_FILE], setup.dtype == "f32" and setup.first > 0
        )
    ]


def chosen(count: int, seed: int = 3) -> list[Mutation]:
    """``count`` of the edits, as many of each fault class as there are."""
    dice, by_fault = random.Random(seed), dict[str, list[Mutation]]()
    for one in every():
        by_fault.setdefault(one.fault, []).append(one)
    for all_ in by_fault.values():
        dice.shuffle(all_)
    rounds = zip_longest(*by_fault.values())
    return [one for each in rounds for one in each if one is not None][:count]


def judge(name: str, mutation: Mutation | None) -> str:
    """How an edit of a program is noticed, which is as it was emitted where there is none: the code
    of what stops it, ``logits``, or not at all, an empty text."""
    known = program(name)
    files = dict(known.files)
    if mutation is not None:
        files[PE_FILE] = mutation.applied(files[PE_FILE])
    try:
        with np.errstate(all="ignore"):
            found = _logits(files, known.tensors, SETUPS[name].first)
    except MeshcError as problem:
        return problem.diagnostics[0].code
    most = np.abs(known.wanted).max()
    close = np.abs(found - known.wanted) <= SETUPS[name].off * most
    return "" if close.all() else "logits"


def _logits(files: Mapping[str, str], tensors: Mapping[str, Any], first: int) -> np.ndarray:
    """Those behind each token of the prompt, caches empty before it."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for path, content in files.items():
            (folder / path).write_text(content)
        compile_folder(folder, folder / "out")
        options = Options(strict_queues=True, max_cycles=1_000_000, files=False)
        names = host_names(folder / "run.py", options)
        names["SCALARS"]["pos"] = (0, 32767)  # also positions that caches do not reach
        model = names["Model"](str(folder / "out"), tensors.__getitem__)
        model.program.forget()
        return np.array([model.step(token, place) for place, token in enumerate(PROMPT, first)])
