"""Cores choose the largest of many whole numbers, in which ties are many and exact, as NumPy does;
and the tokens of decode steps."""

from __future__ import annotations

import json

import numpy as np
import pytest
from csl_runs import emit as emit_csl
from csl_runs import run_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mesh_programs import load_program, write

from meshc.backends.python import HostFacts
from meshc.backends.python import emit as emit_python
from meshc.devices import device
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.interp.check import run_any
from meshc.interp.tile import TileMachine
from meshc.ir.clone import clone_module
from meshc.ir.parser import parse_module
from meshc.passes.manager import PassManager
from meshc.pipelines import pipeline_to
from meshc.sim.emitted_runs import compile_folder, host_names
from meshc.sim.machine.run_options import Options
from meshc.support.diagnostics import Diagnostics
from meshc.support.spans import Source

GRAPH = """module @choice level(graph) {{
  dims L = {rows}, E = {depth}, V = {count}
  options dtype = {dtype}, accumulate = f32
  func @main(in %x: {dtype}[L, E], weight %w: {dtype}[E, V]) -> (f32[L]) {{
    %y = graph.matmul %x, %w {{contract = [E]}} : {dtype}[L, V]
    %chosen = graph.arg_max %y {{dim = V}} : f32[L]
    graph.return %chosen
  }}
}}
"""


class Choice:
    """The largest of ``count`` sums of ``depth`` products, at each level and by each back end."""

    def __init__(self, case):
        self.case = case
        text = GRAPH.format(**case)
        self.graph = parse_module(Source("choice.meshir", text))
        self.graph.device = device(case["arch"])
        grid = f"{case['columns']}x{case['lines']}"
        pinned = f'partition{{grid={grid},forms=["y={case["form"]}"]}}'
        self.tile = self.lowered("tile", pinned)
        self.mesh = self.lowered("mesh", pinned)

    def lowered(self, level, partition):
        passes = pipeline_to(level, {"partition": partition})
        return PassManager(passes).run(clone_module(self.graph), Diagnostics())

    def operands(self, kind):
        """Whole numbers whose products are small, zero, below zero or minus infinity everywhere, or
        largest at the end."""
        rng = np.random.default_rng(self.case["seed"])
        x = rng.integers(0, 3, (self.case["rows"], self.case["depth"]))
        w = rng.integers(0, 2, (self.case["depth"], self.case["count"]))
        dtype = {"f16": np.float16, "f32": np.float32}[self.case["dtype"]]
        if kind == "infinite":
            x, w = np.full(x.shape, -np.inf), w + 1
        elif kind == "last":
            x, w = x + 1, np.where(np.arange(w.shape[1]) == w.shape[1] - 1, 1, w - 1)
        elif kind == "below":
            x, w = -x, w + 1
        else:
            x = x * (rng.choice([-1, 1], x.shape) if kind == "small" else 0)
        return {"x": x.astype(dtype), "w": w.astype(dtype)}

    def wanted(self, given):
        """What NumPy chooses."""
        product = given["x"].astype(np.float64) @ given["w"].astype(np.float64)
        return product.argmax(1).astype(np.float32)

    def interpreted(self, given):
        """At each level."""
        for module in (self.graph, self.mesh):
            yield run_any(module, given, {})[0]
        machine = TileMachine(self.tile)
        for name, tensor in given.items():
            machine.load(name, tensor)
        yield machine.run({})["chosen"]

    def python(self, given, folder):
        """In lockstep."""
        write(folder, emit_python({"main": self.tile}, HostFacts("choice")))
        program = load_program(folder).load({"w": given["w"]})
        return program.run({"x": given["x"]})["chosen"]


def check(case, folder, monkeypatch, simulated=True):
    """All judges agree about all kinds of operands."""
    choice = Choice(case)
    for kind in ("small", "zero", "below", "infinite", "last"):
        given = choice.operands(kind)
        wanted = choice.wanted(given)
        for found in choice.interpreted(given):
            np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(choice.python(given, folder / f"{kind}_python"), wanted)
        if simulated:
            files = emit_csl({"main": clone_module(choice.tile)})
            there = folder / kind
            there.mkdir()
            found, _ = run_files(files, given, there, monkeypatch)
            np.testing.assert_array_equal(found["chosen"], wanted)


FIXED = {"depth": 5, "count": 13, "rows": 1, "dtype": "f16", "seed": 1}
CASES = [
    {"columns": 3, "lines": 2, "arch": "wse2", "form": "gemv_y", **FIXED},
    pytest.param(
        {"columns": 2, "lines": 3, "arch": "wse3", "form": "gemv_x", **FIXED, "count": 2},
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize("case", CASES)
def test_choice(case, tmp_path, monkeypatch):
    check(case, tmp_path, monkeypatch)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.fixed_dictionaries(
        {
            "columns": st.integers(1, 5),
            "lines": st.integers(1, 4),
            "depth": st.integers(1, 9),
            "count": st.integers(1, 40),
            "rows": st.just(1),
            "dtype": st.sampled_from(["f16", "f32"]),
            "arch": st.sampled_from(["wse2", "wse3"]),
            "form": st.sampled_from(["gemv_x", "gemv_y"]),
            "seed": st.integers(0, 99),
        }
    )
)
def test_drawn_choices(tmp_path_factory, case):
    with pytest.MonkeyPatch.context() as monkeypatch:
        check(case, tmp_path_factory.mktemp("drawn"), monkeypatch)


STEPS = """model chooser(E={E}, H=2, D=4, F=7, V={V}, N={N}) {{
  weights {dtype}  accumulate f32
  param embedding[V, E], last[E], head[E, V]
  main(tokens[B, L]) -> [B, L, V] {{
    x = embed(tokens, embedding)
    repeat N {{
      param n1[E], wq[E, H, D], wk[E, H, D], wv[E, H, D], wo[H, D, E], w1[E, F], w2[F, E]
      h = rms_norm(x, n1)
      keys = append(cache.k, rope(h @ wk))
      values = append(cache.v, h @ wv)
      x = x + softmax(rope(h @ wq) @ transpose(keys) / sqrt(D), mask = causal) @ values @ wo
      x = x + silu(rms_norm(x, n1) @ w1) @ w2
    }}
    return x when prefill
    return rms_norm(x, last) @ head
  }}
}}
"""
STEPS_OF = {"E": 9, "V": 29, "N": 3, "dtype": "f16", "batch": 1, "seed": 3, "seq": 4}
STEP_CASES = [
    {"mesh": "r=2,y=2,x=2", "arch": "wse3", **STEPS_OF, "batch": 2},
    {"mesh": "4x3", "arch": "wse2", **STEPS_OF},
]


class Steps:
    """A decode step whose host, or whose cores, choose tokens, on the simulator."""

    def __init__(self, path, case, choose, folder):
        request = CompileRequest(
            target="csl",
            phase="decode",
            choose=choose,
            device=case["arch"],
            **{name: case[name] for name in ("mesh", "dtype", "batch", "seq")},
        )
        made = compile_loaded(load_any(str(path), Diagnostics()), request)
        self.module, self.batch = made.modules["decode"], case["batch"]
        self.predicted = json.loads(made.files["report.json"])["predicted_cycles"]
        write(folder, made.files)
        compile_folder(folder, folder / "out")
        self.names = host_names(folder / "run.py", Options(strict_queues=True, files=False))
        self.folder = folder

    def tensors(self, rng, dtype):
        """Weights, in which each column of the head stands twice or more."""
        roles = {b.value: b.role for b in self.module.buffers}
        found = {}
        for port in self.module.ports:
            if port.direction == "in" and roles[port.buffer] == "weight":
                shape = port.tensor.shape(self.module.dims)
                found[port.name] = (0.4 * rng.standard_normal(shape)).astype(dtype)
        columns = rng.integers(0, self.module.dims["V"] // 2 + 1, self.module.dims["V"])
        found["head"] = found["head"][:, columns]
        return found

    def load(self, tensors):
        self.program = self.names["Program"](str(self.folder / "out"), tensors.__getitem__)
        self.words, copy = 0, self.program.runner.memcpy_d2h

        def counted(target, *args, **options):
            self.words += target.size
            return copy(target, *args, **options)

        self.program.runner.memcpy_d2h = counted

    def step(self, rows, position):
        """The result of each request."""
        self.words = 0
        told = {"pos": [position] * self.batch if self.batch > 1 else position}
        (found,) = self.program.run(lambda name: rows, told).values()
        return found.reshape(self.batch, -1)


def check_steps(case, folder):
    """The token of the cores is the first of those that have the logit which the host takes."""
    path = folder / "chooser.mesh"
    path.write_text(STEPS.format(**case))
    rng = np.random.default_rng(case["seed"])
    host, cores = (Steps(path, case, name, folder / name) for name in ("host", "cores"))
    dtype = {"f16": np.float16, "f32": np.float32}[case["dtype"]]
    tensors = host.tensors(rng, dtype)
    for one in (host, cores):
        one.load(tensors)
    for position in range(case["seq"]):
        rows = rng.standard_normal((case["batch"], 1, case["E"])).astype(dtype)
        logits, tokens = host.step(rows, position), cores.step(rows, position)
        assert tokens.shape == (case["batch"], 1)
        for row, (token,) in zip(logits, tokens, strict=True):
            same = (tensors["head"] == tensors["head"][:, [int(token)]]).all(0)
            assert token == np.flatnonzero(same)[0]
            assert row[int(token)] >= row.max() - 1e-2 * np.ptp(row)
    stamps = 6 * int(np.prod(cores.names["PES"]))
    assert cores.words == stamps + case["batch"]
    assert abs(cores.program.spent.max() / cores.predicted - 1) < 0.1
    for one in (host, cores):
        one.program.stop()


@pytest.mark.slow
@pytest.mark.parametrize("case", STEP_CASES)
def test_steps(case, tmp_path):
    check_steps(case, tmp_path)


def test_generated_tokens(tmp_path):
    """What the host program generates is what the interpreter of its program chooses."""
    case = {"mesh": "2x1", "arch": "wse3", **STEPS_OF, "N": 1}
    path = tmp_path / "chooser.mesh"
    path.write_text(STEPS.format(**case))
    cores = Steps(path, case, "cores", tmp_path / "cores")
    tensors = cores.tensors(np.random.default_rng(1), np.float16)
    rows = np.random.default_rng(2).standard_normal((case["V"], case["E"]))
    tensors["embedding"] = rows.astype(np.float16)
    told = []
    model = cores.names["Model"](str(cores.folder / "out"), tensors.__getitem__)
    found = model.generate([5, 2], 3, lambda token, logits: told.append((token, logits)))
    machine = TileMachine(cores.module)
    for name, tensor in tensors.items():
        if name != "embedding":
            machine.load(name, tensor)
    (entry,) = cores.names["INPUTS"]
    ids = [5, 2]
    for position in range(4):
        machine.load(entry[0], tensors["embedding"][ids[position]][None, None])
        (token,) = machine.run({"pos": position}).values()
        if position:
            ids.append(int(token.item()))
    assert found == ids[2:]
    assert told == [(token, None) for token in found]
    tensors["head"][:] = np.nan
    model.program.give(cores.names["spread"](tensors.__getitem__, cores.names["WEIGHTS"]))
    with pytest.raises(SystemExit, match="logits are NaN"):
        model.generate([5], 1)
    model.stop()


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.fixed_dictionaries(
        {
            "mesh": st.sampled_from(
                ["1x1", "1x3", "3x1", "2x2", "4x3", "r=2,y=2,x=2", "r=3,y=1,x=2"]
            ),
            "arch": st.sampled_from(["wse2", "wse3"]),
            "E": st.integers(2, 12),
            "V": st.integers(2, 70),
            "N": st.just(3),
            "dtype": st.sampled_from(["f16", "f32"]),
            "batch": st.integers(1, 3),
            "seed": st.integers(0, 99),
            "seq": st.just(3),
        }
    )
)
def test_drawn_steps(tmp_path_factory, case):
    check_steps(case, tmp_path_factory.mktemp("steps"))
