"""Batches in emitted CSL: requests go through regions one behind another, and each gets what it
gets alone, by the interpreter of the tile level, the Python target and the fabric simulator."""

from __future__ import annotations

import numpy as np
import pytest
from csl_layers import Layers, wafer
from csl_runs import run_steps
from mesh_programs import load_program, write

from meshc.backends import python
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.interp.tile import TileMachine
from meshc.support.diagnostics import Diagnostics

pytestmark = pytest.mark.models

CAPACITY = 4
SHORT = {"does-not-fit", "too-many-routes", "too-many-queues", "csl-queues"}
"""Refusals of programs that need more than a core has."""


def compiled(path, batch, **request):
    """The decode step of a model for ``batch`` requests."""
    asked = CompileRequest(target="csl", phase="decode", batch=batch, **request)
    return compile_loaded(load_any(str(path), Diagnostics()), asked, (), Diagnostics())


def positions_until_full(requests, capacity):
    """For each step the position of each request, -1 of those that are not there: each begins a
    step later than the one before, and ends when its caches are full."""
    last = capacity + requests - 1
    return [
        [step - n if 0 <= step - n < capacity else -1 for n in range(requests)]
        for step in range(last)
    ]


def check_requests(path, batch, folder, monkeypatch, near, **request):
    """All requests together on every judge, against each alone in the interpreter."""
    alone = compiled(path, 1, **request).modules["decode"]
    made = compiled(path, batch, **request)
    together = made.modules["decode"]
    rng = np.random.default_rng(batch)
    (entry,) = (b.value for b in alone.buffers if b.role == "in")
    ports = [p for p in alone.ports if p.direction == "in" and p.name not in alone.constants]
    kind = {"f16": np.float16, "f32": np.float32}[str(alone.dtype())]
    shapes = {p.name: tuple(p.tensor.shape(alone.dims)) for p in ports}
    (name,) = {p.name for p in ports if p.buffer is entry}
    tensors = {n: (0.4 * rng.standard_normal(s)).astype(kind) for n, s in shapes.items()}
    del tensors[name]
    machines = [TileMachine(alone) for _ in range(batch)]
    all_at_once = TileMachine(together)
    for machine in (*machines, all_at_once):
        for one, tensor in tensors.items():
            machine.load(one, tensor)
    write(folder / "python", python.emit({"decode": together}, python.HostFacts("layers")))
    lockstep = load_program(folder / "python").load(tensors)
    steps, wanted, others = [], [], []
    for positions in positions_until_full(batch, request["seq"]):
        x = rng.standard_normal((batch, *shapes[name][1:])).astype(kind)
        rows = {}
        for number, (machine, position) in enumerate(zip(machines, positions, strict=True)):
            if position >= 0:
                machine.load(name, x[[number]])
                (rows[number],) = machine.run({"pos": position}).values()
        wanted.append(rows)
        all_at_once.load(name, x)
        (interpreted,) = all_at_once.run({"pos": tuple(positions)}).values()
        (stepped,) = lockstep.run({name: x}, pos=positions).values()
        others.append((interpreted, stepped.copy()))
        steps.append(({name: x}, {"pos": positions}))
    found = run_steps(made.files, tensors, steps, folder, monkeypatch)
    for rows, judged, simulated in zip(wanted, others, found, strict=True):
        (values,) = simulated.values()
        for number in range(batch):
            row = rows.get(number, np.zeros((1, *values.shape[1:])))
            assert np.isfinite(row).all()
            for one in (*judged, values):
                scale = max(np.abs(row).max(), 1e-3)
                np.testing.assert_allclose(one[[number]], row, near, near * scale)


LAYERS = Layers(N=3, E=6, H=2, G=1, D=4, F=5, V=7)


@pytest.mark.parametrize(
    ("arch", "mesh", "batch"),
    [
        ("wse3", "r=2,y=2,x=2", 3),
        ("wse2", "r=3,y=1,x=2", 2),
        ("wse2", "y=2,x=2", 2),
    ],
)
def test_requests_behind_each_other(arch, mesh, batch, tmp_path, monkeypatch):
    path = tmp_path / "layers.mesh"
    path.write_text(LAYERS.text("f32"))
    device = wafer(tmp_path, arch, 6, 2)
    asked = {"device": device, "mesh": mesh, "dtype": "f32", "seq": CAPACITY}
    check_requests(path, batch, tmp_path, monkeypatch, 2e-4, **asked)
