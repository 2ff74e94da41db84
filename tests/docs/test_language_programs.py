"""Every program of docs/language.md is compiled and run on every target that takes it.

The emitted program gets the inputs of some steps that the interpreter of the graph level gets, and
must give the same numbers up to rounding; a program that maps tokens to tokens generates some. What
a target does not take it must refuse, with the code that ``REFUSED`` says.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from csl_runs import run_steps

import meshc
from meshc.backends.cuda import CpuMachine, LanguageModel, from_json
from meshc.backends.cuda.executor import CXX, QUICK
from meshc.backends.python import load_program
from meshc.driver import CompileRequest, graph_module, load_any
from meshc.interp.bounds import compare, reduction_length
from meshc.interp.check import Session, random_trace, run_trace
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.output import write_directory

PAGE = Path(__file__).parents[2] / "docs" / "language.md"
TEXTS = re.findall(r"^```mesh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
PROGRAMS = {re.search(r"model (\w+)", text)[1]: text for text in TEXTS}
CACHED = [name for name, text in PROGRAMS.items() if re.search(r"append\(|attention\(", text)]
SEQ, PROMPT, TOKENS = 6, [3, 1, 4], 3

# What a target does not take; all else must run.
REFUSED = {
    "python": {
        ("functions", "main"): "unsupported-op",
        ("one_head", "prefill"): "unsupported-op",
        ("one_head", "decode"): "unsupported-op",
    },
    "csl": {
        ("mlp", "main"): "does-not-fit",
        ("functions", "main"): "unsupported-op",
        ("one_head", "prefill"): "unsupported-op",
        ("one_head", "decode"): "unsupported-op",
    },
}
# Larger meshes hold what 2x2 cores of a wafer do not.
LARGE = [("mlp", "main")]
CASES = [
    (name, phase)
    for name in PROGRAMS
    for phase in (("prefill", "decode") if name in CACHED else ("main",))
]
GENERATING = [
    n for n in CACHED if "embed(" in PROGRAMS[n] and (n, "decode") not in REFUSED["python"]
]


@pytest.fixture(params=CASES, ids="-".join)
def case(request):
    return request.param


def compiled(name, phase, target, folder, **options):
    """The compiled program, and the graph of its phase."""
    path = written(name, folder)
    wanted = {"phase": "both" if phase == "main" else phase, "seq": SEQ, **options}
    return meshc.compile(path, target=target, **wanted), graph_of(path, phase, wanted)


def written(name, folder):
    """The file of a program."""
    path = folder / f"{name}.mesh"
    path.write_text(PROGRAMS[name], encoding="utf-8")
    return path


def graph_of(path, phase, wanted):
    return graph_module(load_any(str(path), Diagnostics()), phase, CompileRequest(**wanted))


def inputs_of(module):
    """The names of the tensors that a program takes."""
    ports = [port for port in module.ports if port.direction == "in"]
    return {port.name for port in ports} - set(module.constants)


def agree(graph, wanted, got, precision):
    found = compare(wanted, got, precision, reduction_length(graph, precision))
    assert found.agrees, found


def check_python(found, graph, folder):
    trace = random_trace(graph, seed=1)
    write_directory(folder, found.files, found.facts)
    program = load_program(folder).load(trace.constant)
    known = inputs_of(*found.modules.values())
    got = []
    for inputs, scalars in trace.steps:
        results = program.run({n: a for n, a in inputs.items() if n in known}, **scalars)
        got += [array.copy() for array in results.values()]
    agree(graph, run_trace(graph, trace), got, "f32")


def check_cuda(found, graph):
    """Two steps from an empty cache, in the CPU executor."""
    program = from_json(found.files["manifest.json"])
    given = dict(random_trace(graph, seed=1).constant)
    roles = {param.value.name: param.role for param in graph.function.params}
    given = {n: np.zeros_like(a) if roles[n] == "state" else a for n, a in given.items()}
    (ids,) = (name for name, role in roles.items() if role == "in")
    machine = CpuMachine(program.kernels, found.files, toolchain=QUICK)
    model, session = LanguageModel(program, machine, given), Session(graph, given)
    got, wanted = [], []
    for position, token in enumerate((3, 17)):
        got.append(model.step([token], [position]))
        results = session.step({ids: np.full((1, 1), token, np.int32)}, {"pos": position})
        wanted.append(np.asarray(results[0]).reshape(1, -1))
    agree(graph, wanted, got, "f16")


def check_csl(found, graph, folder, monkeypatch):
    trace = random_trace(graph, seed=1)
    (module,) = found.modules.values()
    known = inputs_of(module)
    constants = {n: trace.constant[n] for n in known if n in trace.constant}
    steps = [({n: a for n, a in given.items() if n in known}, at) for given, at in trace.steps]
    folder.mkdir()
    names = dict.fromkeys(p.name for p in module.ports if p.direction == "out")
    each = run_steps(found.files, constants, steps, folder, monkeypatch)
    got = [outputs[name] for outputs in each for name in names]
    agree(graph, run_trace(graph, trace), got, "f16")


def test_on_python(case, tmp_path):
    name, phase = case
    options = {"mesh": "2x2", "dtype": "f32"}
    if case in REFUSED["python"]:
        with pytest.raises(MeshcError) as refusal:
            compiled(name, phase, "python", tmp_path, **options)
        assert refusal.value.diagnostics[0].code == REFUSED["python"][case]
    elif name not in GENERATING:
        found, graph = compiled(name, phase, "python", tmp_path, **options)
        check_python(found, graph, tmp_path / "out")


@pytest.mark.parametrize("name", GENERATING)
def test_tokens_on_python(name, tmp_path):
    """Prompt and answer, with the state that one phase leaves to the other."""
    options = {"mesh": "2x2", "dtype": "f32"}
    path = written(name, tmp_path)
    prefill, decode = (
        graph_of(path, phase, {"phase": phase, "seq": SEQ, **options})
        for phase in ("prefill", "decode")
    )
    whole = meshc.compile(path, target="python", phase="both", seq=SEQ, **options)
    weights = {**random_trace(prefill, 1).constant, **random_trace(decode, 1).constant}
    write_directory(tmp_path / "out", whole.files, whole.facts)
    rows = []
    program = load_program(tmp_path / "out").load(weights)
    tokens = list(program.generate(PROMPT, TOKENS, lambda _, row: rows.append(row.copy())))

    first, then = Session(prefill, weights), Session(decode, weights)
    first.step({"tokens": np.array([PROMPT[:-1]])}, {"len": len(PROMPT) - 1})
    then.adopt_state(first)
    for number, token in enumerate([PROMPT[-1], *tokens[:-1]]):
        pos = len(PROMPT) - 1 + number
        (logits,) = then.step({"tokens": np.array([[token]])}, {"pos": pos})
        agree(decode, [logits.reshape(-1)], [rows[number].reshape(-1)], "f32")
        assert tokens[number] == logits.argmax()


IN_CI = [*CASES[:25:5], ("twice", "decode")]
IN_TURNS = [
    pytest.param(case, id="-".join(case), marks=() if case in IN_CI else pytest.mark.slow)
    for case in CASES
]


@pytest.mark.parametrize("case", IN_TURNS)
def test_on_csl(case, tmp_path, monkeypatch):
    name, phase = case
    options = {"mesh": "2x2", "device": "wse2"}
    if case in REFUSED["csl"]:
        with pytest.raises(MeshcError) as refusal:
            compiled(name, phase, "csl", tmp_path, **options)
        assert refusal.value.diagnostics[0].code == REFUSED["csl"][case]
    else:
        found, graph = compiled(name, phase, "csl", tmp_path, **options)
        check_csl(found, graph, tmp_path / "out", monkeypatch)


@pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_cuda(name, tmp_path):
    """A decode step that begins with tokens is one kernel made of tasks, whatever its sizes;
    others, and programs without decode steps, are refused."""
    if name in CACHED and "embed(" in PROGRAMS[name]:
        found, graph = compiled(name, "decode", "cuda", tmp_path, dtype="f16")
        check_cuda(found, graph)
        return
    with pytest.raises(MeshcError) as refusal:
        compiled(name, "main", "cuda", tmp_path)
    (found,) = refusal.value.diagnostics
    assert found.code == ("cuda-graph" if name in CACHED else "bad-phase")
    assert ("tasks read elements of" in found.message) == (name in CACHED)


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE, ids="-".join)
def test_on_more_cores_of_csl(case, tmp_path, monkeypatch):
    found, graph = compiled(*case, "csl", tmp_path, mesh="4x4", device="wse2")
    check_csl(found, graph, tmp_path / "out", monkeypatch)


def test_every_target_runs_some_programs():
    assert len(PROGRAMS) >= 15
    assert all(len(CASES) - len(refused) >= 8 for refused in REFUSED.values())
    assert all(set(refused) <= set(CASES) for refused in REFUSED.values())
