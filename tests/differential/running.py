"""Running what was compiled: emitted Python in this process, emitted CSL on the simulator, CUDA
kernels in the executor."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case

import meshc
from meshc.backends.cuda import CpuMachine, LanguageModel, from_json
from meshc.backends.cuda.executor import QUICK, SCHEDULES, Mode
from meshc.backends.python import load_program
from meshc.interp.sessions import Session
from meshc.interp.task_orders import Order
from meshc.sim import cs_python, cslc
from meshc.sim.host import host_operations

Found = tuple[list[list[np.ndarray]], list[int]]
"""The results of every run, and the tokens that were generated."""


def write(files: dict[str, str], folder: Path) -> None:
    """Write an emitted program."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def run_python(case: Case, compiled: meshc.Compiled, folder: Path) -> Found:
    """The emitted program, imported from ``folder``."""
    write(compiled.files, folder / "program")
    module = load_program(folder / "program")
    order = None
    if case.order:
        columns, rows = map(int, case.options["mesh"].split("x"))
        order = np.random.default_rng(case.seed).permutation(columns * rows)
    program = module.load(case.weights(), order)
    if case.form == "generate":
        logits: list[list[np.ndarray]] = []
        tokens = program.generate(
            case.ids(), case.steps, lambda _, row: logits.append([row.reshape(1, 1, -1).copy()])
        )
        return logits, tokens
    if case.form == "batch":
        return _run_batch(case, program)
    found = []
    for run in range(1 if case.form == "prefill" else case.steps):
        scalars = {"decode": {"pos": run}, "prefill": {"len": case.prompt}}.get(case.form, {})
        results = program.run(case.inputs(run), **scalars)
        found.append([array.copy() for array in results.values()])
    return found, []


def _run_batch(case: Case, program: Any) -> Found:
    """All prompts at once; the logits and tokens of a step side by side."""
    prompts = case.prompts()
    logits: list[list[np.ndarray]] = [[] for _ in prompts]
    tokens = program.generate_all(
        prompts, case.steps, lambda n, _, row: logits[n].append(row.reshape(1, 1, -1).copy())
    )
    steps = range(case.steps)
    return [[own[s] for own in logits] for s in steps], [own[s] for s in steps for own in tokens]


def run_csl(case: Case, compiled: meshc.Compiled, folder: Path) -> Found:
    """The emitted program on the simulator, with bounded queues, step by step; what PEs keep is
    carried on by the host."""
    place = folder / "program"
    write(compiled.files, place)
    (place / "data").mkdir()
    commands = compiled.files[f"commands_{case.options['device']}.sh"]
    words = next(line for line in commands.splitlines() if line.startswith("cslc ")).split()
    (module,) = compiled.modules.values()
    names = dict.fromkeys(p.name for p in module.ports if p.direction == "out")
    found = []
    with _process_restored(place), redirect_stdout(StringIO()):
        if cslc.main(words[1:]) != 0:
            raise RuntimeError("cslc does not accept what was emitted")
        for run in range(case.steps):
            for name, tensor in {**case.weights(), **case.inputs(run)}.items():
                np.save(place / "data" / f"{name}.npy", tensor)
            at = {"decode": ["--pos", str(run)], "prefill": ["--len", str(case.prompt)]}
            if (
                cs_python.main(
                    ["--strict-queues", "run.py", "--name", "out", *at.get(case.form, [])]
                )
                != 0
            ):
                raise RuntimeError("run.py failed")
            found.append([np.load(place / "data" / f"{n}.npy") for n in names])
    return found, []


def run_cuda(case: Case, compiled: meshc.Compiled, folder: Path) -> Found:
    """The emitted kernels in the executor, in any of its schedules, with pages of the cache in any
    order. Requests that have not begun compute a token that nobody asks for."""
    program = from_json(compiled.files["manifest.json"])
    random = np.random.default_rng([case.seed, 11])
    mode = Mode(str(random.choice(SCHEDULES)), bool(random.integers(2)), case.seed)
    machine = CpuMachine(program.kernels, compiled.files, mode, QUICK)
    model = LanguageModel(program, machine, case.weights())
    pages = random.permutation(machine.read("pages").ravel()).reshape(program.batch, -1)
    machine.write("pages", pages)
    first, *others = case.turns()
    found = [[model.prefill(first[0].ids)]]
    for step in others:
        ids, cached = [0] * program.batch, [0] * program.batch
        for turn in step:
            ids[turn.request], cached[turn.request] = turn.ids[0], turn.cached
        logits = model.step(ids, cached)
        found.append([logits[turn.request] for turn in step])
    return [[row.reshape(1, 1, -1) for row in rows] for rows in found], []


def run_tasks(case: Case, compiled: meshc.Compiled, folder: Path) -> Found:
    """The tasks in the interpreter: block by block, or in a random order that needs allow."""
    module = compiled.modules["decode"]
    session = Session(module, case.weights(), order=Order(case.seed % 1000, blocks=case.order))
    found = []
    for run in range(case.steps):
        results = session.step(case.inputs(run), {"pos": run} if "pos" in module.scalars else {})
        found.append([array.copy() for array in results])
    return found, []


@contextmanager
def _process_restored(folder: Path) -> Iterator[None]:
    """Work in ``folder``; what a host script changes in this process is put back."""
    before = os.getcwd()
    path, argv, options = list(sys.path), list(sys.argv), host_operations.OPTIONS[0]
    depth = sys.getrecursionlimit()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:], sys.argv[:], host_operations.OPTIONS[0] = path, argv, options
        sys.setrecursionlimit(depth)
        for name in [n for n in sys.modules if n.split(".")[0] == "cerebras"]:
            del sys.modules[name]


RUNNERS: dict[str, Callable[[Case, meshc.Compiled, Path], Found]] = {
    "python": run_python,
    "csl": run_csl,
    "cuda": run_cuda,
    "tasks": run_tasks,
}
