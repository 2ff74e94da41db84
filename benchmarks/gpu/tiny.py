"""Small checkpoints of many families on a GPU, beside the interpreter of their graphs.

    python benchmarks/gpu/tiny.py --prepare DIR CHECKPOINT...
    python benchmarks/gpu/tiny.py --check DIR [--json FILE]

``--prepare`` compiles each checkpoint, with machine code, on a machine with nvcc or NVRTC, and
keeps its tensors and the logits that its graph gives behind each of some tokens, with weights and
caches rounded to the type of the program. ``--check`` runs steps, each twice, and a prompt where
the GPU is. A batch has the same tokens, one request one position behind the other. Then tokens that
the program chooses and draws are held against the host's.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from prepared import Prepared, opened
from references import to_words, values

from meshc.backends.cuda import Draw, LanguageModel
from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.driver.gpu_machine import GpuMachine
from meshc.serving.sampling import Sampler, Sampling
from meshc.support.diagnostics import MeshcError
from meshc.support.native import BuildError

Array = NDArray[Any]
CAPACITY, TOKENS, PROMPT = 48, 8, 21
CHOSEN, LAUNCHES = 12, (1, 4, 11)
"""Tokens that are chosen, and steps of a launch."""
SAMPLINGS = (Sampling(1.5, top_p=0.8), Sampling(3.0, 20, 0.9, 0.1))
LIMIT_SECONDS = 20
_EXPECTED = "expected.npz"
STEP_BOUND = {"f16": 2.0**-8, "bf16": 2.0**-6}
"""As a part of the largest logit: of one request the noise of sums and of what caches round the
other way; vectors of several requests, and those of prompts, are rounded to the program's type."""
PROMPT_BOUND = {"f16": 3 * 2.0**-8, "bf16": 3 * 2.0**-5}


def prepare(folder: Path, checkpoint: Path, dtype: str, batch: int, page: int) -> None:
    """Compile a checkpoint into ``folder`` and keep what its graph gives. Raises MeshcError."""
    import meshc
    from meshc.frontend.checkpoints import open_checkpoint, read_config
    from meshc.interp.graph import run_graph

    asked = {"dtype": dtype, "seq": CAPACITY, "batch": batch, "page": page, "device": "h200"}
    meshc.compile(str(checkpoint), target="cuda", output=folder, **asked)
    found = opened(folder, check=False)
    found.cubins.make(list(found.texts.values()))
    graph = meshc.compile(
        str(checkpoint), compile_to="graph", seq=CAPACITY, dtype="f32", phase="decode"
    ).modules["decode"]
    stored = open_checkpoint(checkpoint, read_config(checkpoint))
    roles = {p.value.name: p.role for p in graph.function.params}
    states = [name for name, role in roles.items() if role == "state"]
    weights = {n: _rounded(stored.read(n), dtype) for n, r in roles.items() if r == "weight"}
    ids = np.random.default_rng(5).integers(0, graph.dims["V"], PROMPT)
    rows, caches = [], dict[str, Array]()
    for position, token in enumerate(ids):
        given = {"tokens": np.array([[token]]), **weights, **caches}
        logits, *more = run_graph(graph, given, {"pos": position})
        caches = {n: _rounded(value, dtype) for n, value in zip(states, more, strict=True)}
        rows.append(logits.reshape(-1))
    tensors = {f"tensor:{name}": stored.read(name) for name in stored.names()}
    np.savez_compressed(folder / _EXPECTED, ids=ids, logits=np.array(rows), **tensors)


def _rounded(x: Array, dtype: str) -> Array:
    return values(to_words(x, dtype), dtype).astype(np.float32)


def check(device: Device, folder: Path) -> dict[str, Any]:
    """Largest errors of a program's steps and of its prompt, and whether steps repeat their
    bits. Raises MeshcError."""
    found = opened(folder, check=False)
    program, dtype = found.program, next(iter(found.program.weights.values())).dtype
    with np.load(folder / _EXPECTED) as kept:
        ids, wanted = kept["ids"], kept["logits"]
        tensors = {n.removeprefix("tensor:"): kept[n] for n in kept.files if ":" in n}
    scale, errors, same = float(np.abs(wanted).max()), [], True
    machine = _machine(device, found)
    model = LanguageModel(program, machine, tensors)
    for at in range(TOKENS + program.batch - 1):
        behind = [min(max(at - b, 0), TOKENS - 1) for b in range(program.batch)]
        tokens = [int(ids[n]) for n in behind]
        rows = model.step(tokens, behind)
        same = same and np.array_equal(rows, model.step(tokens, behind))
        errors.append(float(np.abs(rows - wanted[behind]).max()) / scale)
    prompt = model.prefill([int(n) for n in ids])
    off = float(np.abs(prompt - wanted[-1]).max()) / scale
    steps = max(errors) if np.isfinite(errors).all() else float("inf")
    bound = STEP_BOUND[dtype] if program.batch == 1 else PROMPT_BOUND[dtype]
    chosen = _chosen(model, [int(n) for n in ids])
    right = same and chosen and steps <= bound and off <= PROMPT_BOUND[dtype]
    return {"name": folder.name, "dtype": dtype, "batch": program.batch, "page": program.page,
            "steps": steps, "prompt": off, "same": same, "chosen": chosen,
            "right": right}  # fmt: skip


def _chosen(model: LanguageModel, ids: list[int]) -> bool:
    """Whether the tokens that the program chooses, in launches of several numbers of steps, are
    those that the host takes and draws by the same logits."""
    prompts = [ids[: 5 + n] for n in range(model.program.batch)]
    wanted = model.generate_all(prompts, CHOSEN, lambda *_: False)
    equal = all(
        model.generate_chosen(prompts, CHOSEN, lambda *_: False, (), steps) == wanted
        for steps in LAUNCHES
    )
    for sampling in SAMPLINGS:
        ours, theirs = ([Sampler(sampling, 7, n) for n in range(len(prompts))] for _ in range(2))
        wanted = model.generate_all(
            prompts, CHOSEN, lambda *_: False, (), lambda n, row, by=ours: by[n](row)
        )
        draw = Draw(
            sampling.numbers().tolist(),
            [one.key for one in theirs],
            lambda n, row, by=theirs: by[n](row),
        )
        found = model.generate_chosen(prompts, CHOSEN, lambda *_: False, (), LAUNCHES[-1], draw)
        equal = equal and found == wanted
    return equal


def _apart(folder: Path, driver: str) -> dict[str, Any]:
    """:func:`check` in a process of its own, which a fault or a kernel without end takes along."""
    forked = multiprocessing.get_context("fork")
    ours, theirs = forked.Pipe(duplex=False)

    def work() -> None:
        try:
            with Device(library=driver) as device:
                theirs.send(check(device, folder))
        except MeshcError as problem:
            theirs.send({"name": folder.name, "refused": str(problem), "right": False})

    process = forked.Process(target=work)
    process.start()
    theirs.close()
    found: dict[str, Any] = {"name": folder.name, "refused": "no answer", "right": False}
    try:
        if ours.poll(LIMIT_SECONDS):
            found = ours.recv()
    except EOFError:
        pass
    process.kill()
    process.join()
    return found


def _machine(device: Device, found: Prepared) -> GpuMachine:
    """Of the machine code that was kept."""

    def known(texts: Sequence[str], arch: str, compiler: object) -> list[Any]:
        return [found.cubins.find(text) for text in texts]

    with patch("meshc.backends.cuda.driver.gpu_machine._compiled", known):
        return GpuMachine(device, found.program.device, found.program.kernels, found.texts)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    does = made.add_mutually_exclusive_group(required=True)
    does.add_argument("--prepare", type=Path, metavar="DIR")
    does.add_argument("--check", type=Path, metavar="DIR")
    made.add_argument("checkpoints", type=Path, nargs="*", metavar="CHECKPOINT")
    made.add_argument("--json", type=Path, metavar="FILE")
    made.add_argument("--driver", default="libcuda.so.1", metavar="LIB.so")
    return made


def main(given: Sequence[str] | None = None) -> int:
    """The exit code: 1 where something is wrong or refused."""
    options = parser().parse_args(given)
    wrong = 0
    if options.prepare is not None:
        for n, checkpoint in enumerate(options.checkpoints):
            dtype, batch, page = ("f16", "bf16")[n % 2], (1, 3, 1, 7)[n % 4], (16, 1, 64)[n % 3]
            name = f"{checkpoint.name}-{dtype}-{batch}-{page}"
            try:
                prepare(options.prepare / name, checkpoint, dtype, batch, page)
            except (MeshcError, BuildError) as problem:
                wrong += 1
                print(f"{checkpoint.name}: {problem}", file=sys.stderr)
        return int(wrong > 0)
    found = []
    for folder in sorted(p for p in options.check.iterdir() if (p / _EXPECTED).is_file()):
        one = _apart(folder, options.driver)
        found.append(one)
        wrong += not one["right"]
        print("right" if one["right"] else "WRONG", *one.values(), flush=True)
    print(f"{len(found)} checked, {wrong} wrong")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
