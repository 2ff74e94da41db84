"""Batches in emitted CSL: requests go through regions one behind another, and each gets what it
gets alone, by the interpreter of the tile level, the Python target and the fabric simulator."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from csl_decoding import TINY
from csl_layers import Layers, wafer
from csl_runs import run_script
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from mesh_programs import load_program, write
from reduced import each

import meshc
from meshc.backends import python
from meshc.cli import main
from meshc.driver import CompileRequest, compile_loaded, load_any, open_weights
from meshc.interp.tile import TileMachine
from meshc.sim.emitted_runs import compile_folder, host_names
from meshc.sim.machine.run_options import Options
from meshc.support.diagnostics import Diagnostics, MeshcError

pytestmark = pytest.mark.models

SHORT = {"does-not-fit", "too-many-routes", "too-many-queues", "csl-queues", "csl-memory-full"}
"""Refusals of programs that need more than a core has."""
NEAR = {"f16": 3e-2, "f32": 2e-4}


def compiled(path, batch, **request):
    """The decode step of a model for ``batch`` requests."""
    asked = CompileRequest(target="csl", phase="decode", batch=batch, **request)
    return compile_loaded(load_any(str(path), Diagnostics()), asked, (), Diagnostics())


def positions_until_full(requests, capacity):
    """For each step the position of each request, -1 of those that are not there: each begins a
    step later than the one before, and ends when its caches are full."""
    return [
        [step - n if 0 <= step - n < capacity else -1 for n in range(requests)]
        for step in range(capacity + requests - 1)
    ]


class Requests:
    """``batch`` requests of a model with random weights: together on every judge, whose programs
    are ``judges``, and each alone in the interpreter."""

    def __init__(self, path, batch, folder, **request):
        self.one = compiled(path, 1, **request).modules["decode"]
        made = compiled(path, batch, **request)
        self.all = made.modules["decode"]
        self.rng = np.random.default_rng(batch)
        self.kind = {"f16": np.float16, "f32": np.float32}[str(self.one.dtype())]
        given = [b.value for b in self.one.buffers if b.role == "in"]
        ports = [p for p in self.one.ports if p.direction == "in"]
        shapes = {p.name: tuple(p.tensor.shape(self.one.dims)) for p in ports}
        (self.entry,) = {p.name for p in ports if p.buffer in given}
        self.shape = shapes.pop(self.entry)
        self.tensors = {n: self._random(s, 0.4) for n, s in shapes.items()}
        for name in self.one.constants:
            del self.tensors[name]
        self.alone = [self._loaded(TileMachine(self.one)) for _ in range(batch)]
        self.together = self._loaded(TileMachine(self.all))
        write(folder / "python", python.emit({"decode": self.all}, python.HostFacts("layers")))
        self.lockstep = load_program(folder / "python").load(self.tensors)
        write(folder / "csl", made.files)
        compile_folder(folder / "csl", folder / "out")
        simulated = Options(strict_queues=True, files=False)
        names = host_names(folder / "csl" / "run.py", simulated)
        self.wafer = names["Program"](str(folder / "out"), self.tensors.__getitem__)
        self.predicted = json.loads(made.files["report.json"])["predicted_cycles"]

    def _random(self, shape, scale=1.0):
        return (scale * self.rng.standard_normal(shape)).astype(self.kind)

    def _loaded(self, machine):
        for name, tensor in self.tensors.items():
            machine.load(name, tensor)
        return machine

    def compare(self, positions):
        """A step of all requests, each at its position if it is there."""
        rows = self._random((len(positions), *self.shape[1:]))
        self.together.load(self.entry, rows)
        (interpreted,) = self.together.run({"pos": tuple(positions)}).values()
        (stepped,) = self.lockstep.run({self.entry: rows}, pos=positions).values()
        (simulated,) = self.wafer.run({self.entry: rows}.__getitem__, {"pos": positions}).values()
        near = NEAR[str(self.one.dtype())]
        for number, position in enumerate(positions):
            found = [judged[[number]] for judged in (interpreted, stepped, simulated)]
            if position < 0:
                assert not np.any(found)
                continue
            self.alone[number].load(self.entry, rows[[number]])
            (wanted,) = self.alone[number].run({"pos": position}).values()
            assert np.isfinite(wanted).all() and np.ptp(wanted) > 0
            for one in found:
                np.testing.assert_allclose(one, wanted, near, near * np.abs(wanted).max())

    def refuses(self, positions, words):
        """Hold the host to refuse a step before it writes anything."""
        before = self.wafer.kept()
        with pytest.raises(SystemExit, match=words):
            self.wafer.run({}.__getitem__, {"pos": positions})
        after = self.wafer.kept()
        assert all(np.array_equal(before[name], after[name]) for name in before)


def check(path, batch, folder, **request):
    """Requests until the caches of each are full, and refusals behind that."""
    requests, capacity = Requests(path, batch, folder, **request), request["seq"]
    for positions in positions_until_full(batch, capacity):
        requests.compare(positions)
        if min(positions) >= 0:
            assert abs(requests.wafer.spent.max() / requests.predicted - 1) < 0.1
    requests.refuses([-1] * (batch - 1) + [capacity], f"--pos is {capacity}, not -1 to")
    requests.refuses([0] * (batch + 1), f"{batch + 1} values of --pos, not {batch}")
    requests.wafer.stop()


LAYERS = Layers(N=3, E=6, H=2, G=1, D=4, F=5, V=7)
CASES = [
    ("wse2", "r=3,y=1,x=2", 2),
    pytest.param("wse3", "r=2,y=2,x=2", 3, marks=pytest.mark.slow),
    pytest.param("wse2", "y=2,x=2", 4, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("arch", "mesh", "batch"), CASES)
def test_requests_behind_each_other(arch, mesh, batch, tmp_path):
    path = tmp_path / "layers.mesh"
    path.write_text(LAYERS.text("f32"))
    device = wafer(tmp_path, arch, 6, 2)
    check(path, batch, tmp_path, device=device, mesh=mesh, dtype="f32", seq=3)


@st.composite
def drawn(draw):
    """A model, or sizes of one, and how a batch of it is compiled."""
    groups = draw(st.integers(1, 2))
    layers = Layers(
        N=draw(st.integers(1, 4)),
        E=draw(st.integers(2, 9)),
        H=groups * draw(st.integers(1, 2)),
        G=groups,
        D=2 * draw(st.integers(1, 3)),
        F=draw(st.integers(1, 9)),
        V=draw(st.integers(2, 9)),
    )
    folders = sorted(f.name for f in TINY.iterdir())
    return {
        "model": draw(st.sampled_from([layers, *folders])),
        "types": draw(st.sampled_from([("f32", "f32"), ("f16", "f16"), ("f16", "f32")])),
        "regions": draw(st.integers(1, 3)),
        "across": draw(st.integers(1, 3)),
        "rows": draw(st.integers(1, 3)),
        "columns": draw(st.integers(1, 3)),
        "batch": draw(st.integers(2, 4)),
        "arch": draw(st.sampled_from(["wse2", "wse3"])),
        "kv": draw(st.sampled_from(["auto", "cyclic", "shift", "concat"])),
        "seq": draw(st.integers(1, 6)),
    }


def check_drawn(case, folder):
    """Compile and run what was drawn; programs for which cores have too little are drawn again."""
    dtype, sums = case["types"]
    path = folder / "layers.mesh"
    if isinstance(case["model"], Layers):
        path.write_text(case["model"].text(dtype, sums))
    else:
        path = TINY / case["model"]
    down = -(-case["regions"] // case["across"])
    columns, rows = case["across"] * case["columns"], down * case["rows"]
    mesh = f"y={case['rows']},x={case['columns']}"
    asked = {
        "device": wafer(folder, case["arch"], columns, rows),
        "mesh": f"r={case['regions']},{mesh}" if case["regions"] > 1 else mesh,
        "kv": case["kv"],
        "dtype": dtype,
        "seq": case["seq"],
    }
    try:
        check(path, case["batch"], folder, **asked)
    except MeshcError as refusal:
        assert {d.code for d in refusal.diagnostics} <= SHORT, refusal
        assume(False)


def _many(count):
    @settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=drawn())
    def run(tmp_path_factory, case):
        check_drawn(case, tmp_path_factory.mktemp("batches"))

    return run


test_drawn_batches = _many(1)
test_many_drawn_batches = pytest.mark.slow(_many(60))


PROMPTS = ([5, 17, 32, 3, 8], [9], [30, 2, 2])
TOKENS, CAPACITY = 3, 7  # the longest prompt and its answer, not a token more


@pytest.mark.parametrize(
    ("phase", "mesh"),
    [
        ("both", "1x2"),
        pytest.param("both", "r=2,y=1,x=2", marks=pytest.mark.slow),
        pytest.param("decode", "2x2", marks=pytest.mark.slow),
    ],
)
def test_prompts_of_one_command(phase, mesh, tmp_path, capfd):
    """Each prompt gets the tokens that it gets alone on the Python target, whether a program of its
    own reads prompts or the steps do; a batch with one that is too long is refused."""
    model, common = TINY / "llama-3h1", ["--mesh", mesh, "--seq", str(CAPACITY), "--dtype", "f32"]
    alone = meshc.compile(model, mesh="1x1", seq=CAPACITY, dtype="f32", phase="decode").load()
    wanted = [alone.generate(ids, TOKENS, ignore_eos=True).tokens for ids in PROMPTS]
    device = wafer(tmp_path, "wse3", 4, 2)
    out = str(tmp_path / "out")
    words = ["compile", str(model), "--target", "csl", "--device", device, "--batch", "3", *common]
    assert main([*words, "--phase", phase, "--weights", str(model), "-o", out]) == 0
    given = [w for ids in PROMPTS for w in ("--prompt-ids", ",".join(map(str, ids)))]
    capfd.readouterr()
    run = ["run", out, *given, "--ignore-eos", "--max-tokens"]
    assert main([*run, str(TOKENS), "--json"]) == 0
    answers = json.loads(capfd.readouterr().out)["requests"]
    assert [answer["tokens"] for answer in answers] == wanted
    assert main([*run, str(TOKENS + 1)]) == 1
    assert "5 and 4 tokens do not fit a cache of 7" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("phase", each(["both", "decode"], 2))
def test_the_host_program_prints_the_tokens_of_each_prompt(phase, tmp_path, monkeypatch):
    """``run.py`` of a compiled directory, behind its own commands."""
    loaded = load_any(str(TINY / "llama-3h1"), Diagnostics())
    asked = CompileRequest(
        target="csl", device="wse3", mesh="2x1", seq=CAPACITY, dtype="f32", phase=phase, batch=3
    )
    write(tmp_path, compile_loaded(loaded, asked, (), Diagnostics()).files)
    (tmp_path / "weights").mkdir()
    tensors = open_weights(loaded.weights, loaded.config, None, Diagnostics())
    for name in tensors:
        np.save(tmp_path / "weights" / f"{name}.npy", np.asarray(tensors[name], np.float32))
    monkeypatch.chdir(tmp_path)
    for folder in [".", "prefill", "decode"] if phase == "both" else ["."]:
        if (tmp_path / folder / "layout.csl").exists():
            compile_folder(tmp_path / folder, tmp_path / "out" / folder)
    words = [w for ids in PROMPTS for w in ("--prompt-ids", ",".join(map(str, ids)))]
    lines = run_script(options=(*words, "--max-tokens", str(TOKENS))).splitlines()
    answers = [list(map(int, line.split(","))) for line in lines[-len(PROMPTS) :]]
    alone = meshc.compile(TINY / "llama-3h1", mesh="1x1", seq=CAPACITY, dtype="f32").load()
    assert answers == [alone.generate(ids, TOKENS, ignore_eos=True).tokens for ids in PROMPTS]
    told = [line for line in lines if line.startswith("prompt ")]
    assert len(told) == len(PROMPTS) * TOKENS
    for number, tokens in enumerate(answers):
        mine = [line for line in told if line.startswith(f"prompt {number}, ")]
        assert [int(re.search(r"token (\d+):", line)[1]) for line in mine] == tokens


def test_what_passes_do_to_a_batch_is_checked(tmp_path, capfd):
    """``--check`` before the pass that puts the loop over requests there, and behind it."""
    path = tmp_path / "layers.mesh"
    path.write_text(Layers(N=1, E=4, H=1, G=1, D=2, F=3, V=3).text("f32"))
    words = ["compile", str(path), "--target", "csl", "--mesh", "1x2", "--phase", "decode"]
    words += ["--seq", "3", "--batch", "2", "--check", "-o", str(tmp_path / "out")]
    assert main(words) == 0
    assert "passes compute what they were given" in capfd.readouterr().err
