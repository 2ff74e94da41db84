"""Whole decode steps in emitted CSL: tokens of transformers, from the simulated wafer."""

import json

import numpy as np
import pytest
from csl_decoding import TINY, Decoder

from meshc.cli import main
from meshc.driver import CompileRequest, RunRequest, compile_loaded, load_any, opened, run_emitted
from meshc.support.diagnostics import Diagnostics, MeshcError

pytestmark = pytest.mark.models

MODELS = sorted(p.name for p in TINY.iterdir())


def expected(model):
    """Prompt and greedy tokens of transformers."""
    facts = json.loads((TINY / model / "expected.json").read_text())
    return facts["prompt_ids"], facts["tokens"]


@pytest.mark.parametrize(
    ("model", "mesh", "arch", "kv", "dtype"),
    [
        pytest.param("llama-3h1", "3x2", "wse3", "cyclic", "f32", marks=pytest.mark.slow),
        ("llama-9h3-tied", "2x3", "wse2", "shift", "f32"),
        pytest.param("qwen2-7h1", "4x2", "wse3", "concat", "f16", marks=pytest.mark.slow),
        pytest.param("llama-5h-mha", "1x4", "wse3", "cyclic", "f32", marks=pytest.mark.slow),
    ],
)
def test_tokens_of_transformers(model, mesh, arch, kv, dtype, tmp_path, monkeypatch):
    ids, tokens = expected(model)
    request = {"device": arch, "mesh": mesh, "kv": kv, "dtype": dtype, "seq": 24}
    decoder = Decoder(model, tmp_path, monkeypatch, **request)
    assert decoder.generate(ids, 4) == tokens[:4]
    assert 0.85 <= decoder.predicted / decoder.cycles <= 1.15


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("kv", ["cyclic", "shift", "concat"])
@pytest.mark.parametrize(("mesh", "dtype"), [("2x3", "f32"), ("4x4", "f16"), ("5x3", "f32")])
@pytest.mark.parametrize("model", MODELS)
def test_tokens_of_all_models(model, mesh, arch, kv, dtype, tmp_path, monkeypatch):
    ids, tokens = expected(model)
    request = {"device": arch, "mesh": mesh, "kv": kv, "dtype": dtype, "seq": 24}
    try:
        decoder = Decoder(model, tmp_path, monkeypatch, **request)
    except MeshcError as refusal:
        assert {d.code for d in refusal.diagnostics} == {"does-not-fit"}
        pytest.skip(str(refusal))
    assert decoder.generate(ids, 6) == tokens[:6]


def test_a_model_runs_on_the_simulator_by_one_command():
    """Two prompts, one behind the other: the caches of the first are empty for the second. The
    program that would read them in one piece does not fit, so decode steps do."""
    ids, tokens = expected("llama-3h1")
    report = Diagnostics()
    loaded = load_any(str(TINY / "llama-3h1"), report)
    asked = CompileRequest(target="csl", mesh="2x2", dtype="f32", seq=48)
    compiled = compile_loaded(loaded, asked, (), report)
    assert list(compiled.modules) == ["decode"]
    (warning,) = (d for d in report.messages if d.severity == "warning")
    assert warning.code == "prompt-by-steps" and "csl-memory-full" in warning.message
    python = compile_loaded(loaded, CompileRequest(mesh="2x2", dtype="f32", seq=48), (), report)
    request = RunRequest((tuple(ids), tuple(ids[:2])), 3)
    with opened("csl") as backend:
        first, second = run_emitted(compiled.emitted, request, backend, report)
    assert first.tokens == tokens[:3] and first.backend == "csl-sim"
    with opened("python") as backend:
        (wanted,) = run_emitted(python.emitted, RunRequest((tuple(ids[:2]),), 3), backend, report)
    assert second.tokens == wanted.tokens
    np.testing.assert_allclose(second.logits, wanted.logits, 1e-4, 1e-5)


@pytest.mark.slow
def test_prompts_that_do_not_fit_the_cache_are_refused():
    report = Diagnostics()
    loaded = load_any(str(TINY / "llama-3h1"), report)
    asked = CompileRequest(target="csl", mesh="1x2", dtype="f32", seq=8)
    compiled = compile_loaded(loaded, asked, (), report)
    with (
        opened("csl") as backend,
        pytest.raises(MeshcError, match="7 and 3 tokens do not fit a cache of 8") as caught,
    ):
        run_emitted(compiled.emitted, RunRequest(((1, 2, 3, 4, 5, 6, 7),), 3), backend, report)
    assert caught.value.diagnostics[0].code == "run-refused"


@pytest.mark.slow
def test_several_prompts_of_one_command_run_one_behind_another(capsys):
    ids, tokens = expected("llama-3h1")
    given = ",".join(map(str, ids))
    words = ["run", str(TINY / "llama-3h1"), "--target", "csl", "--mesh", "1x2", "--dtype", "f32"]
    words += ["--seq", "24", "--prompt-ids", given, "--prompt-ids", given, "--max-tokens", "2"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [request["tokens"] for request in found["requests"]] == [tokens[:2]] * 2
