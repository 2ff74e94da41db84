"""Models by every name, compiles as functions of their arguments, runs through programs."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import meshc
from meshc.cli import main
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.driver.manifest import config_of
from meshc.driver.models import of_config
from meshc.frontend.checkpoints import catalogue_config, catalogue_names, model_parameters
from meshc.passes.instruments import Instrument
from meshc.support.diagnostics import Diagnostics

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TINY = ROOT / "tests" / "data" / "tiny"
FOLDERS = sorted(path for path in TINY.iterdir() if path.is_dir())
WINDOWED = TINY.parent / "tiny_gpt_oss" / "gpt-oss-5x2-yarn"


def expected(folder):
    return json.loads((folder / "expected.json").read_text())


def run(capsys, *words):
    """The JSON that ``meshc run`` prints."""
    assert main(["run", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", catalogue_names())
def test_built_in_models_have_graphs_of_both_phases(name):
    loaded = load_any(name, Diagnostics())
    layers = None if loaded.config.own.get("sparse") else 1  # models of several loops are not cut
    compiled = compile_loaded(loaded, CompileRequest(compile_to="graph", seq=32, layers=layers))
    assert list(compiled.modules) == ["prefill", "decode"]
    assert all(
        m.level == "graph" and "transpose_free" in m.holds for m in compiled.modules.values()
    )
    assert compiled.files["decode.meshir"] == meshc.print_module(compiled.modules["decode"])


@pytest.mark.parametrize("name", catalogue_names())
def test_parameters_spell_the_config(name):
    config = catalogue_config(name)
    found = model_parameters(config)
    assert (found["E"], found["H"]) == (config.hidden, config.heads)
    assert found.get("G", config.heads) == config.kv_heads
    assert load_any(name, Diagnostics()).config == config


@pytest.mark.parametrize("folder", [*FOLDERS, WINDOWED], ids=lambda path: path.name)
def test_config_survives_the_manifest(folder):
    loaded = load_any(str(folder), Diagnostics())
    request = CompileRequest(seq=16, compile_to="graph")
    compiled = compile_loaded(loaded, request)
    facts = json.loads(json.dumps(compiled.facts))
    assert config_of(facts) == loaded.config
    assert load_any(str(folder / "config.json"), Diagnostics()).config == loaded.config


@pytest.mark.parametrize(
    "field", ["hidden", "family", "eos_ids", "rope_scaling", "tied_embeddings"]
)
def test_a_changed_manifest_is_refused(field):
    loaded = load_any(str(FOLDERS[0]), Diagnostics())
    compiled = compile_loaded(loaded, CompileRequest(seq=8, compile_to="graph"))
    facts = json.loads(json.dumps(compiled.facts))
    facts["config"][field] = ["x"]
    with pytest.raises(meshc.MeshcError) as error:
        config_of(facts)
    assert error.value.diagnostics[0].code == "no-program"


def test_options_end_in_the_header():
    loaded = load_any(str(EXAMPLES / "tiny_llama.mesh"), Diagnostics())
    request = CompileRequest(
        device="wse2", mesh="3x2", phase="decode", seq=24, layers=2, dtype="f16", kv="cyclic"
    )
    module = compile_loaded(loaded, request).modules["decode"]
    assert module.options["dtype"] == "f16"
    assert (module.mesh.columns, module.mesh.rows) == (3, 2)
    assert module.device.name == "wse2"
    assert module.scalars == {"pos": (0, 23)}
    assert module.dims["layers"] == 2
    assert "ring_y" not in [channel.name for channel in module.channels]


ON_WAFER = {"mesh": "6x6", "seq": 8, "device": "wse2", "phase": "decode", "compile_to": "tile"}


@pytest.mark.parametrize(
    ("request_", "dtype"),
    [
        (CompileRequest(mesh="2x2", seq=8), "f32"),
        (CompileRequest(**ON_WAFER), "f16"),
        (CompileRequest(**ON_WAFER, dtype="f32"), "f32"),
    ],
)
def test_default_dtype(request_, dtype):
    loaded = load_any(str(EXAMPLES / "tiny_llama.mesh"), Diagnostics())
    module = compile_loaded(loaded, request_).modules["decode"]
    assert str(module.dtype()) == dtype


def test_the_library_compiles_to_a_directory(tmp_path):
    report = meshc.Diagnostics()
    out = tmp_path / "out"
    compiled = meshc.compile(EXAMPLES / "matmul.mesh", mesh="2x2", output=out, report=report)
    assert compiled.weight_names == ("w",)
    assert (out / "main.py").read_text() == compiled.files["main.py"]
    assert any(message.code == "memory" for message in report.messages)


def test_the_library_has_what_it_promises():
    for name in meshc.__all__:
        assert getattr(meshc, name) is not None
    classes = {getattr(meshc, cls.__name__) for cls in meshc.PASSES}
    assert classes == set(meshc.PASSES)


@pytest.mark.models
@pytest.mark.parametrize("mesh", ["1x1", "3x2"])
def test_run_from_config_and_weights(capsys, tmp_path, mesh):
    folder = TINY / "llama-3h1"
    want = expected(folder)
    ids = ",".join(map(str, want["prompt_ids"]))
    logits = tmp_path / "logits.npy"
    found = run(
        capsys, folder, "--mesh", mesh, "--prompt-ids", ids, "--max-tokens", len(want["tokens"]),
        "--ignore-eos", "--logits", logits,
    )  # fmt: skip
    assert set(found) == {
        "prompt_ids", "tokens", "text", "seconds_per_token", "mesh", "backend"
    }  # fmt: skip
    assert found["tokens"] == want["tokens"]
    assert found["prompt_ids"] == want["prompt_ids"]
    assert (found["text"], found["mesh"], found["backend"]) == (None, mesh, "python")
    assert found["seconds_per_token"] > 0
    steps = np.load(logits)
    assert steps.shape[0] == len(want["tokens"])
    assert steps.argmax(1).tolist() == want["tokens"]
    best = np.array(want["best_logits"])
    np.testing.assert_allclose(steps.max(1), best, atol=1e-3)


@pytest.mark.models
def test_run_from_a_compiled_directory(capsys, tmp_path):
    """With its weights written beside it, and with weights given."""
    folder, out = TINY / "llama-9h3-tied", tmp_path / "out"
    want = expected(folder)
    ids = ",".join(map(str, want["prompt_ids"]))
    tail = ("--prompt-ids", ids, "--max-tokens", "6", "--ignore-eos")
    words = ["compile", str(folder), "--mesh", "2x3", "--seq", "32", "-o", str(out)]
    assert main(words) == 0
    capsys.readouterr()
    assert main(["run", str(out), *tail]) == 1
    assert "error[weights-not-found]" in capsys.readouterr().err
    assert run(capsys, out, *tail, "--weights", folder)["tokens"] == want["tokens"][:6]
    assert main([*words, "--weights", str(folder)]) == 0
    capsys.readouterr()
    moved = tmp_path / "moved"
    shutil.move(out, moved)
    assert run(capsys, moved, *tail)["tokens"] == want["tokens"][:6]


def test_run_refuses_a_directory_of_ir(capsys, tmp_path):
    out = tmp_path / "out"
    tiny = str(EXAMPLES / "tiny_llama.mesh")
    assert main(["compile", tiny, "--compile-to", "graph", "--seq", "8", "-o", str(out)]) == 0
    capsys.readouterr()
    assert main(["run", str(out), "--prompt-ids", "1"]) == 1
    assert "error[no-program]" in capsys.readouterr().err


def test_a_text_needs_a_tokenizer(capsys, tmp_path):
    random = np.random.default_rng(3)
    tiny = str(EXAMPLES / "tiny_llama.mesh")
    compiled = meshc.compile(tiny, mesh="1x1", seq=8)
    weights = tmp_path / "weights"
    weights.mkdir()
    module = compiled.modules["decode"]
    tensors = {p.name: p.tensor for p in module.ports if p.direction == "in"}
    for name in compiled.weight_names:
        dims = tensors[name].dims if name in tensors else ("V", "E")
        shape = [module.dims[d] for d in dims]
        np.save(weights / f"{name}.npy", random.standard_normal(shape).astype(np.float32) * 0.1)
    words = ["run", tiny, "--mesh", "2x2", "--seq", "8", "--weights", str(weights)]
    assert main([*words, "--prompt", "hello"]) == 1
    assert "error[no-tokenizer]" in capsys.readouterr().err
    assert main([*words, "--prompt-ids", "1,2", "--max-tokens", "3"]) == 0
    assert len(capsys.readouterr().out.split(",")) == 3
    assert main([*words, "--prompt-ids", "1,2", "--max-tokens", "30"]) == 1
    assert "error[run-refused]" in capsys.readouterr().err


def test_a_weight_used_twice_is_packed_twice(tmp_path, capsys):
    model = tmp_path / "twice.mesh"
    model.write_text(
        "model twice(E=8, F=6, L=3) {\n  param w[E, F]\n"
        "  main(x[L, E]) -> [L, F] {\n    return x @ w + silu(x) @ w\n  }\n}\n"
    )
    words = ["compile", str(model), "--mesh", "2x2", "--check", "-o", str(tmp_path / "out")]
    assert main(words) == 0
    assert "checked: 13 passes" in capsys.readouterr().err


def test_check_finds_a_pass_that_changes_results(capsys, tmp_path, monkeypatch):
    """--check must be able to fail: a pass that doubles a scale is an internal error."""
    monkeypatch.chdir(tmp_path)
    original = meshc.Canonicalize.run

    def wrong(self, module, report):
        for op in module.walk():
            if op.NAME == "graph.scale":
                op.factor *= 2
        return original(self, module, report)

    monkeypatch.setattr(meshc.Canonicalize, "run", wrong)
    words = ["compile", str(EXAMPLES / "attention.mesh"), "--phase", "decode", "--seq", "4"]
    words += ["--mesh", "2x2"]
    assert main(words) == 0
    capsys.readouterr()
    assert main([*words, "--check"]) == 3
    assert "interp-mismatch" in capsys.readouterr().err


def test_facts_hold_no_paths():
    loaded = load_any(str(FOLDERS[0]), Diagnostics())
    compiled = compile_loaded(loaded, CompileRequest(mesh="1x1", seq=8))
    text = json.dumps(compiled.facts) + "".join(compiled.files.values())
    assert str(ROOT) not in text


@pytest.mark.parametrize("name", ["llama-3-8b", "qwen2-72b"])
def test_the_activation_of_a_configuration_reaches_its_graph(name):
    config = dataclasses.replace(catalogue_config(name), activation="gelu")
    graph = of_config(config, None).graph("decode", 64, 1)
    kinds = {op.NAME for op in graph.walk()}
    assert "graph.gelu" in kinds and "graph.silu" not in kinds


def test_instruments_are_told_what_comes_behind_the_passes():
    """Predicting cycles of a large mesh takes longer than all passes."""
    told = []

    class Told(Instrument):
        def before(self, step, module):
            told.append(step.NAME)

        def behind(self, work):
            told.append(work)

    loaded = load_any(str(ROOT / "examples" / "matmul.mesh"), Diagnostics())
    compile_loaded(loaded, CompileRequest(target="csl", mesh="4x4"), [Told()])
    assert told[-1] == "writing csl for 4x4 and counting its cycles" and "plan-memory" in told
