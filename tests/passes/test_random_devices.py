"""Random graphs on random devices with random pins: what is not refused is right at every level."""

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from random_devices import has_loop, random_place
from random_graphs import random_graph

from meshc.backends.python import HostFacts, emit, load_program
from meshc.interp.check import check_same, random_trace, run_trace
from meshc.ir.clone import clone_module
from meshc.passes.manager import PassManager
from meshc.passes.mesh.form_search import Search
from meshc.passes.mesh.partition import Partition
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import MeshcError


def random_pins(module, grid, drawn):
    """Pins of some of the choices that a graph has on its device."""
    search = Search(Partition(grid=grid).problem(module))
    search.run()
    chosen = {n: drawn.choice(f) for n, f in search.several.items() if drawn.random() < 0.6}
    return tuple(f"{name}={form}" for name, form in chosen.items())


def lowered(module, place, pins):
    """The module of the mesh level behind ``partition``, and that of the tile level."""
    settings = {
        "partition": str(Partition(grid=place.mesh, forms=pins)),
        "split-regions": f"split-regions{{regions={place.regions}}}",
    }
    passes = pipeline_to("tile", settings)[2:]
    return [PassManager(steps).run(clone_module(module)) for steps in (passes[:1], passes)]


def emitted_results(tile, trace, folder: Path):
    """What the emitted Python gives."""
    for name, text in emit({"main": tile}, HostFacts("random")).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    program = load_program(folder).load(trace.constant)
    ((inputs, _),) = trace.steps
    return list(program.run(inputs).values())


def judge(seeds, folder: Path):
    """Interpreters of mesh and tile level and the emitted program against the graph, whose
    interpreter knows of no cores. Counts what was compiled by levels, and refusals by code."""
    counts = Counter()
    for seed in seeds:
        module, _ = random_graph(seed)
        place = random_place(seed, has_loop(module))
        module.device = place.device
        try:
            pins = random_pins(module, place.mesh, random.Random(seed))
            mesh, tile = lowered(module, place, pins)
        except MeshcError as error:
            counts[error.diagnostics[0].code] += 1
            continue
        words = (seed, place.mesh, place.regions, pins)
        assert check_same(module, mesh).agrees, words
        assert check_same(module, tile).agrees, words
        trace = random_trace(module, seed, steps=1)
        (wanted,) = run_trace(module, trace)
        (found,) = emitted_results(tile, trace, folder / str(seed))
        assert found.shape == wanted.shape, words
        assert np.abs(found - wanted).max() <= 1e-4 * max(1.0, np.abs(wanted).max()), words
        counts[f"{place.levels} levels"] += 1
    return counts


KNOWN = {"bad-option", "unsupported-layout", "weight-used-twice", "too-many-queues"}


def test_random_graphs_on_random_devices(tmp_path):
    counts = judge(range(14), tmp_path)
    refused = {code: count for code, count in counts.items() if not code.endswith("levels")}
    assert set(refused) <= KNOWN and sum(refused.values()) < 5, counts
    assert all(counts[f"{levels} levels"] for levels in (1, 2, 3)), counts


@pytest.mark.slow
def test_many_random_graphs_on_random_devices(tmp_path):
    print(sorted(judge(range(2000), tmp_path).items()))
