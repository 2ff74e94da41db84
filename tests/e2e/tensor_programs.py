"""Models of tensors, without caches: compiled from text and run as emitted NumPy programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from laying_out import laid_out
from mesh_programs import write

from meshc.backends.python import HostFacts, emit, load_program
from meshc.backends.request import CompileRequest
from meshc.driver.compiling import graph_module
from meshc.driver.models import LoadedModel
from meshc.frontend.language import parse_model
from meshc.interp.inputs import random_inputs
from meshc.ir.module import Module
from meshc.passes.manager import PassManager
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import Diagnostics
from meshc.support.spans import Source

MESHES = ("1x1", "1x4", "3x2", "2x3", "4x4")


def graph_of(text: str, mesh: str) -> Module:
    """The graph of the phase main, in f32."""
    model = parse_model(Source("model.mesh", text), diagnostics=Diagnostics())
    request = CompileRequest(mesh=mesh, dtype="f32")
    return graph_module(LoadedModel("model", model, None), "main", request)


def random_tensors(module: Module, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs and params of ``module``, rounded to what its cores keep."""
    found = random_inputs(module, seed)
    return {name: array.astype(np.float32).astype(np.float64) for name, array in found.items()}


def results(
    folder: Path,
    text: str,
    mesh: str,
    tensors: Mapping[str, np.ndarray],
    passes: dict[str, str] | None = None,
) -> list[np.ndarray]:
    """What the emitted program of ``text`` gives for ``tensors`` in its second run, so that
    anything the first one left behind shows."""
    module = graph_of(text, mesh)
    inputs = {p.value.name for p in module.function.params if p.role == "in"}
    tile = PassManager(pipeline_to("tile", laid_out(passes, mesh))).run(module)
    write(folder, emit({"main": tile}, HostFacts("model")))
    program = load_program(folder).load({n: a for n, a in tensors.items() if n not in inputs})
    for _ in range(2):
        found = program.run({n: a for n, a in tensors.items() if n in inputs})
    return list(found.values())


def assert_close(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    """Equal but for rounding in f32, relative to the largest element."""
    assert len(found) == len(wanted)
    for got, expected in zip(found, wanted, strict=True):
        assert got.shape == expected.shape
        assert np.abs(got - expected).max() <= 1e-4 * max(1.0, np.abs(expected).max())
