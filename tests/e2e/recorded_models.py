"""Tiny random checkpoints with what transformers answers to a prompt, and programs held against it;
drawn models, held against the interpreter of their graphs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from mesh_programs import MeshProgram, load_program, mesh_program, write

from meshc.driver import CompileRequest, compile_loaded, graph_module, load_any, open_weights
from meshc.interp.check import Session
from meshc.interp.inputs import RandomArrays
from meshc.support.diagnostics import Diagnostics

PROMPTS = ([], [9], [30, 2, 2, 31, 7, 7, 1, 12, 30], [11, 4], [5, 5], [40, 3, 8])
"""Prompts of a batch behind the first one, which is that of transformers."""


def facts(folder: Path) -> dict[str, list[float]]:
    """Prompt, tokens and logits of transformers."""
    found: dict[str, list[float]] = json.loads((folder / "expected.json").read_text())
    return found


def check(folder: Path, mesh: str, out: Path, **options: dict[str, str]) -> MeshProgram:
    """Interpreter and emitted program against transformers; logits of the prompt too."""
    wanted = facts(folder)
    ids, tokens = [int(i) for i in wanted["prompt_ids"]], wanted["tokens"]
    program = mesh_program(str(folder), mesh, len(ids) + len(tokens), **options)
    found, logits = program.run(out, ids, len(tokens))
    assert found == tokens
    first = np.array(wanted["prompt_logits"])
    np.testing.assert_allclose(logits[0], first, atol=2e-4 * np.abs(first).max())
    # The second step reads what the first one cached.
    assert program.interpret(ids, 2) == tokens[:2]
    return program


def check_batch(folder: Path, batch: int, mesh: str, out: Path) -> None:
    """Each of ``batch`` prompts gets what it gets alone on one core, the first one what
    transformers gives."""
    wanted = facts(folder)
    first, count = [int(i) for i in wanted["prompt_ids"]], len(wanted["tokens"])
    prompts = [first, *PROMPTS[1:batch]]
    loaded = load_any(str(folder), Diagnostics())
    assert loaded.weights is not None
    tensors = open_weights(loaded.weights, loaded.config, None, Diagnostics())
    capacity = count + max(map(len, prompts))

    def program(mesh: str, size: int):  # type: ignore[no-untyped-def]
        request = CompileRequest(mesh=mesh, seq=capacity, dtype="f32", batch=size)
        write(out / str(size), compile_loaded(loaded, request).files)
        return load_program(out / str(size)).load(tensors)

    found = program(mesh, batch).generate_all(prompts, count)
    alone = program("1x1", 1)
    assert found[0] == wanted["tokens"]
    assert found[1:] == [alone.generate(prompt, count) for prompt in prompts[1:]]


def check_drawn(text: str, mesh: str, batch: int, seed: int, out: Path, count: int = 3) -> None:
    """The emitted program of a model ``text`` with random weights, for ``batch`` prompts of random
    tokens and lengths, against the graph that decodes every prompt token by token: logits of all
    steps within what f32 explains."""
    (out / "drawn.mesh").write_text(text, encoding="utf-8")
    loaded = load_any(str(out / "drawn.mesh"), Diagnostics())
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 9, batch)
    request = CompileRequest(mesh=mesh, seq=int(max(lengths)) + count, dtype="f32", batch=batch)
    one = graph_module(loaded, "decode", CompileRequest(seq=request.seq, dtype="f32"))
    tensors = dict(RandomArrays(one, seed, {}, ("weight",)))
    vocab = len(tensors["embedding"])
    prompts = [[int(i) for i in random.integers(0, vocab, n)] for n in lengths]
    write(out / "program", compile_loaded(loaded, request).files)
    program = load_program(out / "program").load(tensors)
    logits: list[list[np.ndarray]] = [[] for _ in prompts]
    found = program.generate_all(
        prompts, count, lambda number, _, row: logits[number].append(row.copy())
    )
    for prompt, tokens, rows in zip(prompts, found, logits, strict=True):
        session, behind = Session(one, tensors), []
        for position, token in enumerate([*prompt, *tokens[:-1]]):
            (result,) = session.step({"tokens": np.array([[token]])}, {"pos": position})
            behind.append(result.ravel())
        wanted = np.array(behind[len(prompt) - 1 :])
        np.testing.assert_allclose(rows, wanted, atol=2e-5 * np.abs(wanted).max())


def check_of(models: st.SearchStrategy[str], count: int) -> Callable[[], None]:
    """A test of ``count`` drawn ``models`` on drawn meshes, in batches of up to six prompts."""
    side = st.integers(1, 5)

    @settings(max_examples=count, derandomize=count < 10)
    @given(models, side, side, st.integers(1, 6), st.integers(0, 9999))
    def drawn(text: str, columns: int, rows: int, batch: int, seed: int) -> None:
        with TemporaryDirectory() as folder:
            check_drawn(text, f"{columns}x{rows}", batch, seed, Path(folder))

    return drawn
