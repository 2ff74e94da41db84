"""Judges edits of emitted programs: the logits behind tokens of prompts, on the simulator with
bounded queues, must be those of the Python target, or the edit is noticed. Programs are decode
steps, of one request or of several, and programs of both phases."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
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
    run_emitted,
)
from meshc.sim.emitted_runs import compile_folder, host_names
from meshc.sim.machine.run_options import Options
from meshc.support.diagnostics import Diagnostics, MeshcError

CAPACITY = 9  # the prompt fills the caches
PROMPT = tuple(range(5, 14))
FAR = 30_077
"""A position so far behind that angles are many turns; the prompt goes over a multiple of 128."""


@dataclass(frozen=True)
class Setup:
    """A model, what it is compiled for, and how far logits may be off, in units of the largest.
    Steps are of so many requests (``batch``), or a program has both ``phases`` and reads prompts in
    chunks."""

    model: str
    device: str
    mesh: str
    dtype: str
    kv: str
    off: float
    first: int = 0  # position of the first token: attention sees how far tokens are apart alone
    batch: int = 1
    phases: str = ""
    chunk: int | None = None

    @property
    def file(self) -> str:
        """That of a PE's program."""
        return "model.csl" if self.phases else "decode.csl"

    @property
    def request(self) -> CompileRequest:
        return CompileRequest(
            target="csl", device=self.device, mesh=self.mesh, dtype=self.dtype, kv=self.kv,
            seq=CAPACITY, phase="both" if self.phases else "decode", phases=self.phases or "two",
            batch=self.batch, chunk=self.chunk,
        )  # fmt: skip


SETUPS = {
    "cyclic": Setup("llama-3h1", "wse2", "2x3", "f32", "cyclic", 2e-5, FAR),
    "shift": Setup("qwen2-7h1", "wse3", "1x3", "f32", "shift", 2e-5),
    "halves": Setup("llama-9h3-tied", "wse3", "2x2", "f16", "cyclic", 1e-2, FAR),
    "requests": Setup("llama-5h-mha", "wse3", "r=2,y=2,x=2", "f32", "shift", 2e-5, batch=2),
    "moved": Setup("llama-3h1", "wse3", "3x3", "f32", "cyclic", 2e-5, phases="moved", chunk=6),
}
READ = (PROMPT, PROMPT[:1], PROMPT[:4])
"""What programs of both phases are given, one behind another: but for the last two tokens, which
steps take, as a prompt."""
LATER = 2
"""Steps by which a request begins behind the one before."""
PROMPTS = (PROMPT, PROMPT[::-1])
"""What requests beside each other are given: no token of both is at one position but the middle."""


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
    files = compile_loaded(loaded, setup.request, (), report).files
    python = compile_loaded(loaded, CompileRequest(mesh="1x1", seq=CAPACITY), (), report)
    with opened("python") as backend:
        wanted = [
            np.ravel(
                run_emitted(python.emitted, RunRequest((prompt[:length],), 1), backend, report)[
                    0
                ].logits
            )
            for prompt in PROMPTS[: setup.batch]
            for length in range(1, len(PROMPT) + 1)
        ]
    return Program(files, open_weights(place, loaded.config, None, report), np.array(wanted))


def every(names: Iterable[str] = SETUPS) -> list[Mutation]:
    """All edits of some programs. Those of angles are made where positions are large and sums are
    f32, so that an angle that is not exact is seen."""
    found: list[Mutation] = []
    for name in names:
        setup = SETUPS[name]
        large = setup.dtype == "f32" and setup.first > 0
        found += mutations(name, program(name).files[setup.file], large)
    return found


def chosen(count: int, names: Iterable[str] = SETUPS, seed: int = 3) -> list[Mutation]:
    """``count`` of the edits, as many of each fault class in each program as there are."""
    dice, kinds = random.Random(seed), dict[tuple[str, str], list[Mutation]]()
    for one in every(names):
        kinds.setdefault((one.fault, one.program), []).append(one)
    for all_ in kinds.values():
        dice.shuffle(all_)
    rounds = zip_longest(*kinds.values())
    return [one for each in rounds for one in each if one is not None][:count]


def judge(name: str, mutation: Mutation | None) -> str:
    """How an edit of a program is noticed, which is as it was emitted where there is none: the code
    of what stops it, ``logits``, or not at all, an empty text."""
    known, setup = program(name), SETUPS[name]
    files = dict(known.files)
    if mutation is not None:
        files[setup.file] = mutation.applied(files[setup.file])
    try:
        with np.errstate(all="ignore"), TemporaryDirectory() as scratch:
            model = _loaded(files, known.tensors, Path(scratch))
            found = np.array(list(_logits(model, setup)))
    except MeshcError as problem:
        return problem.diagnostics[0].code
    wanted = known.wanted[list(_places(setup))]
    close = np.abs(found - wanted) <= setup.off * np.abs(known.wanted).max()
    return "" if close.all() else "logits"


def _loaded(files: Mapping[str, str], tensors: Mapping[str, Any], folder: Path) -> Any:
    """The host's model of a program, its caches empty."""
    for path, content in files.items():
        (folder / path).write_text(content)
    compile_folder(folder, folder / "out")
    options = Options(strict_queues=True, max_cycles=1_000_000, files=False)
    names = host_names(folder / "run.py", options)
    names["SCALARS"]["pos"] = (-1, 32767)  # also positions that caches do not reach
    model = names["Model"](str(folder / "out"), tensors.__getitem__)
    model.program.forget()
    return model


def _places(setup: Setup) -> Iterator[int]:
    """Where in what is wanted, behind each token of each prompt, the logits are that are found."""
    if setup.phases:
        for ids in READ:
            yield from range(max(len(ids) - 2, 0), len(ids))
    elif setup.batch > 1:
        for step in range(len(PROMPT) + LATER * (setup.batch - 1)):
            found = _positions(setup, step).items()
            yield from (number * len(PROMPT) + place for number, place in found)
    else:
        yield from range(len(PROMPT))


def _positions(setup: Setup, step: int) -> dict[int, int]:
    """The position of each request that is there in a step."""
    found = {number: step - LATER * number for number in range(setup.batch)}
    return {number: place for number, place in found.items() if 0 <= place < len(PROMPT)}


def _logits(model: Any, setup: Setup) -> Iterator[np.ndarray]:
    """Those of all steps."""
    if setup.phases:
        for ids in READ:
            model.read(ids[:-2])
            for place in range(max(len(ids) - 2, 0), len(ids)):
                yield model.step(ids[place], place)
    elif setup.batch > 1:
        for step in range(len(PROMPT) + LATER * (setup.batch - 1)):
            given = {n: (PROMPTS[n][at], at) for n, at in _positions(setup, step).items()}
            logits = model.step(given)
            yield from (logits[number] for number in given)
    else:
        for place, token in enumerate(PROMPT, setup.first):
            yield model.step(token, place)
