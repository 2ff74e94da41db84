"""Weights of tasks that stay quantised: programs compute what their graph does with the numbers
that codes stand for, in every order that needs allow."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reduced import each

import meshc
from meshc.interp.check import check_outcomes, random_trace, run_trace
from meshc.interp.sessions import Session
from meshc.interp.task_orders import Order
from meshc.ir.ops import graph as ops
from meshc.ir.ops import task
from meshc.support.diagnostics import MeshcError

DATA = Path(__file__).parents[1] / "data"
MODELS = [*sorted((DATA / "tiny_cuda").iterdir()), DATA / "tiny_families" / "phi3-4h2-parts"]
FORMATS = {
    # Zero points, the most that a code is, and whether groups have a least number.
    "q4_0": (8, 15, False),
    "q4_1": (0, 15, True),
    "q8_0": (128, 255, False),
    "int4_32": (0, 15, True),
    "e4m3_16": (0, 0, False),
    "e4m3_32": (0, 0, False),
}


def kept(graph, module, trace, form, seed):
    """``trace`` with codes, scales and least numbers that are drawn, and the numbers that they
    stand for in place of each weight that ``module`` keeps so."""
    rng, constant = np.random.default_rng(seed), dict(trace.constant)
    ports = {port.name: port for port in module.ports}
    zero, most, lifted = FORMATS[form]
    for name in [name for name in ports if name.endswith(f".{form}.codes")]:
        weight = name.removesuffix(f".{form}.codes")
        shape, fewer = (
            ports[f"{weight}.{form}.{part}"].tensor.shape(module.dims)
            for part in ("codes", "scales")
        )
        each_of = np.ones([n // m for n, m in zip(shape, fewer, strict=True)], np.float32)
        codes = rng.integers(0, most + 1, shape).astype(np.float32)
        if form.startswith("e4m3"):
            fractions = rng.integers(-15, 16, shape)
            codes = (fractions * 2.0 ** rng.integers(-9, 1, shape)).astype(np.float32)
        scales = rng.choice([-1.0, 0.5, 1.0, 2.0], fewer).astype(np.float32) / 64
        numbers = (codes - zero) * np.kron(scales, each_of)
        constant |= {name: codes, f"{weight}.{form}.scales": scales}
        if lifted:
            least = rng.integers(-8, 1, fewer).astype(np.float32) / 16
            constant[f"{weight}.{form}.least"] = least
            numbers = numbers + np.kron(least, each_of)
        constant[weight] = numbers
    (look_up,) = (op for op in graph.walk() if isinstance(op, ops.Embed))
    tokens, table = (value.name for value in look_up.tensors())
    steps = tuple(
        ({**given, look_up.result.name: constant[table][given[tokens].astype(int)]}, at)
        for given, at in trace.steps
    )
    return replace(trace, constant=constant, steps=steps)


def compiled(model, passes, batch):
    given = {"phase": "decode", "seq": 24, "device": "h200", "batch": batch}
    graph = meshc.compile(str(model), dtype="f32", compile_to="graph", **given).modules["decode"]
    return meshc.PassManager(meshc.parse_pipeline(passes)).run(graph) if passes else graph


CASES = [(path, form) for path in MODELS for form in FORMATS]


@pytest.mark.parametrize(
    ("path", "form", "number"),
    each(((*case, number) for number, case in enumerate(CASES)), 4),
)
def test_models(path, form, number):
    batch = 1 + number % 3
    parts = (1, 2)[number % 2]
    keep = f'stream-quantised{{formats=["all={form}"]}}'
    grain = f"expand-tasks{{rows={(16, 4, 8)[number % 3]},tokens=8,parts={parts}}}"
    graph = compiled(path, "", batch)
    module = compiled(path, f"canonicalize,eliminate-transpose,{grain},{keep}", batch)
    assert any(port.name.endswith(f".{form}.codes") for port in module.ports)
    trace = random_trace(graph, number, 3, first=number % 4)
    trace = kept(graph, module, trace, form, number)
    wanted = run_trace(graph, trace)
    families = [op.name for op in module.walk() if isinstance(op, task.Family)]
    first = random.Random(number).choice(families)
    for order in (None, Order(number), Order(number, first)):
        session = Session(module, trace.constant, order=order)
        found = [a for given, scalars in trace.steps for a in session.step(given, scalars)]
        check_outcomes(graph, module, wanted, found)


@pytest.mark.parametrize(
    ("formats", "words"),
    [
        ('"wq=q9"', "'wq' cannot stay quantised: files have it as q9, as kernels do not decode it"),
        ('"all=q9"', "stream-quantised has no formats=all=q9"),
        ('"wq=e4m3_128"', "'wq' cannot stay quantised: its rows are .* wide, which cuts groups"),
    ],
)
def test_what_cannot_stay_is_refused(formats, words):
    passes = f"expand-tasks,stream-quantised{{formats=[{formats}]}}"
    with pytest.raises(MeshcError, match=words):
        compiled(DATA / "tiny" / "llama-3h1", passes, 1)
