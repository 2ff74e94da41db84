"""Prompts in one piece in emitted CSL: one program for every length, whose caches decode takes."""

import json
from pathlib import Path

import numpy as np
import pytest
from csl_prompts import MODEL, Prompts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshc.cli import main
from meshc.driver import CompileRequest, RunRequest, compile_loaded, load_any, opened, run_emitted
from meshc.passes.resources.csl.plan_memory import PlanCslMemory
from meshc.support.diagnostics import Diagnostics, MeshcError

TINY = Path(__file__).parents[1] / "data" / "tiny"
SIZES = {"E": 12, "H": 4, "G": 2, "D": 4, "F": 10, "layers": 2}
TOO_SMALL = {"csl-memory-full", "does-not-fit", "csl-regions", "unsupported-op"}


def written(folder, **sizes):
    """A file with a model of these sizes."""
    path = folder / "drawn.mesh"
    path.write_text(MODEL.format(**SIZES | {"dtype": "f32"} | sizes))
    return path


@pytest.mark.parametrize(
    ("mesh", "arch", "dtype"),
    [
        ("2x2", "wse3", "f32"),
        pytest.param("3x2", "wse2", "f16", marks=pytest.mark.slow),  # below, with shared memory
        pytest.param("2x4", "wse3", "f16", marks=pytest.mark.slow),
        pytest.param("2x2", "wse3", "bf16", marks=pytest.mark.slow),
        pytest.param("3x2", "wse2", "bf16", marks=pytest.mark.slow),
        pytest.param("1x3", "wse2", "f32", marks=pytest.mark.slow),
    ],
)
def test_one_program_reads_prompts_of_every_length(mesh, arch, dtype, tmp_path):
    path = written(tmp_path, dtype=dtype)
    prompts = Prompts(path, tmp_path, device=arch, mesh=mesh, seq=7)
    assert prompts.capacity == 7
    for length in (7, 1, 6, 2, 5, 3, 4):  # shorter ones behind longer ones, and the other way
        found = prompts.compare(length)
        assert found.agrees, (length, found)


@pytest.mark.parametrize("dtype", ["f16", pytest.param("f32", marks=pytest.mark.slow)])
def test_buffers_that_share_memory_keep_what_they_need(dtype, tmp_path, monkeypatch):
    """Every buffer that may share memory does; results are those of the interpreter."""
    monkeypatch.setattr(PlanCslMemory.__init__, "__defaults__", ("always",))
    path = written(tmp_path, dtype=dtype)
    prompts = Prompts(path, tmp_path, device="wse2", mesh="3x2", seq=7)
    for length in (7, 2, 6):
        found = prompts.compare(length)
        assert found.agrees, (length, found)
    text = (tmp_path / "program" / "prefill.csl").read_text()
    assert "var shared_f" in text


SIZE = st.integers(1, 4)


@st.composite
def models(draw):
    """Sizes of a model, and how it is compiled."""
    groups = draw(st.integers(1, 3))
    sizes = {
        "E": draw(st.integers(2, 14)),
        "H": groups * draw(st.integers(1, 3)),
        "G": groups,
        "D": 2 * draw(st.integers(1, 3)),
        "F": draw(st.integers(2, 14)),
        "layers": draw(st.integers(1, 2)),
        "dtype": draw(st.sampled_from(["f32", "f16", "bf16"])),
    }
    options = {
        "mesh": f"{draw(SIZE)}x{draw(SIZE)}",
        "device": draw(st.sampled_from(["wse2", "wse3"])),
        "seq": draw(st.integers(1, 11)),
        "kv": draw(st.sampled_from(["auto", "shift", "cyclic", "concat"])),
    }
    return sizes, options


SHARING = st.sampled_from(["large", "always"])


def check_any_model(folder, drawn, share):
    """A drawn model reads prompts of some lengths as the interpreter does; or it is too large."""
    sizes, options = drawn
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PlanCslMemory.__init__, "__defaults__", (share,))
        try:
            prompts = Prompts(written(folder, **sizes), folder, **options)
        except MeshcError as refusal:
            assert {d.code for d in refusal.diagnostics} <= TOO_SMALL, refusal
            return
    capacity = prompts.capacity
    for length in dict.fromkeys((capacity, 1, (capacity + 1) // 2)):
        found = prompts.compare(length)
        assert found.agrees, (length, found)


@settings(max_examples=1, derandomize=True)
@given(models(), SHARING)
def test_any_model(tmp_path_factory, drawn, share):
    check_any_model(tmp_path_factory.mktemp("drawn"), drawn, share)


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[*HealthCheck])
@given(models(), SHARING)
def test_many_models(tmp_path_factory, drawn, share):
    check_any_model(tmp_path_factory.mktemp("drawn"), drawn, share)


def tokens_of(model, prompts, count, **options):
    """What the programs of a tiny model for CSL generate, and the phases."""
    report = Diagnostics()
    loaded = load_any(str(TINY / model), report)
    compiled = compile_loaded(loaded, CompileRequest(**options), (), report)
    with opened(options.get("target", "python")) as backend:
        answers = run_emitted(compiled.emitted, RunRequest(prompts, count), backend, report)
    return answers, [*compiled.modules]


@pytest.mark.models
@pytest.mark.parametrize(
    ("model", "mesh", "arch", "dtype"),
    [
        pytest.param("llama-3h1", "3x3", "wse3", "f32", marks=pytest.mark.slow),
        pytest.param("qwen2-7h1", "4x2", "wse2", "f16", marks=pytest.mark.slow),
    ],
)
def test_decode_takes_the_caches_of_prefill(model, mesh, arch, dtype):
    """Tokens of transformers behind its prompt, and those of the Python target behind a shorter one
    and one of a single token, which decode reads alone."""
    facts = json.loads((TINY / model / "expected.json").read_text())
    ids = facts["prompt_ids"]
    prompts = (tuple(ids), tuple(ids[1:4]), tuple(ids[:1]))
    options = {"mesh": mesh, "device": arch, "dtype": dtype, "seq": 12}
    answers, phases = tokens_of(model, prompts, 3, target="csl", **options)
    assert phases == ["prefill", "decode"]
    assert answers[0].tokens == facts["tokens"][:3]
    for prompt, answer in zip(prompts, answers, strict=True):
        ((wanted,), _) = tokens_of(model, (prompt,), 3, mesh=mesh, dtype="f32", seq=12)
        assert answer.tokens == wanted.tokens
        near = {"f32": 1e-4, "f16": 3e-2}[dtype]
        np.testing.assert_allclose(answer.logits, wanted.logits, near, near)


@pytest.mark.slow
@pytest.mark.models
def test_a_command_reads_prompts_and_refuses_what_does_not_fit(capfd):
    """A prompt that overflows the caches is refused before it is read."""
    words = ["run", str(TINY / "llama-3h1"), "--target", "csl", "--mesh", "1x3", "--dtype", "f32"]
    words += ["--seq", "9", "--prompt-ids", "59,15,1,58,30,41,27"]
    assert main([*words, "--max-tokens", "3"]) == 0
    said = capfd.readouterr()
    assert said.out == "19,58,6\n" and "prompt-by-steps" not in said.err
    assert main([*words, "--max-tokens", "4"]) == 1
    said = capfd.readouterr().err
    assert "run-refused" in said and "7 and 4 tokens do not fit a cache of 9" in said


@pytest.mark.slow
def test_lengths_out_of_range_are_refused_before_anything_is_written(tmp_path):
    path = written(tmp_path, E=4, H=1, G=1, D=2, F=2, layers=1)
    prompts = Prompts(path, tmp_path, device="wse3", mesh="1x2", seq=4)
    prompts.compare(4)
    before = prompts.program.kept()
    for length in (0, 5):
        with pytest.raises(SystemExit, match=f"--len is {length}, not 1 to 4"):
            prompts.program.run({}.__getitem__, {"len": length})
    after = prompts.program.kept()
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name])
