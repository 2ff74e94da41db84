"""Compiles as objects: what they show, and their programs in this process."""

import re
from html import escape
from pathlib import Path

import numpy as np
import pytest

import meshc
from meshc.backends.cuda.executor import CXX
from meshc.support.diagnostics import MeshcError

ROOT = Path(__file__).parents[2]
MLP = ROOT / "examples" / "mlp.mesh"
TINY = ROOT / "tests" / "data" / "tiny_cuda" / "llama-4h2"


@pytest.fixture(scope="module")
def mlp():
    return meshc.compile(MLP, mesh="2x3")


@pytest.fixture(scope="module")
def weights():
    rng = np.random.default_rng(1)
    shapes = {"norm": (64,), "w_gate": (64, 160), "w_up": (64, 160), "w_down": (160, 64)}
    return {name: rng.standard_normal(shape) / shape[0] ** 0.5 for name, shape in shapes.items()}


def by_numpy(x, norm, w_gate, w_up, w_down):
    h = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * norm
    gate = h @ w_gate
    return x + (gate / (1 + np.exp(-gate)) * (h @ w_up)) @ w_down


def test_reprs_are_short(mlp):
    counts = f"{len(mlp.files)} files, {len(mlp.remarks)} remarks"
    assert repr(mlp) == f"<Compiled mlp: main for python on ideal, mesh 2x3; {counts}>"
    assert re.fullmatch(r"<Module @mlp_main: tile level, \d+ ops>", repr(mlp.modules["main"]))
    model = meshc.compile("smollm2-135m", mesh="8x8", seq=64)
    assert len(repr(model)) < 100 and len(repr(model.modules)) < 200


def test_remarks_are_those_of_this_compile(mlp):
    report = meshc.Diagnostics()
    report.remark("fused", "of something else")
    again = meshc.compile(MLP, mesh="2x3", report=report)
    assert again.remarks == mlp.remarks
    assert {m.code for m in mlp.remarks} >= {"products-merged", "gemm"}
    assert report.messages[1:] == list(mlp.remarks)


def test_what_was_found_before_an_error_is_reported():
    report = meshc.Diagnostics()
    with pytest.raises(meshc.MeshcError, match="does-not-fit"):
        meshc.compile("llama-3-8b", mesh="4x4", device="toy", report=report)
    assert report.messages


def test_html_is_escaped_and_complete(tmp_path):
    folder = tmp_path / "<b>&"
    folder.mkdir()
    (folder / "mlp.mesh").write_text(MLP.read_text())
    compiled = meshc.compile(folder / "mlp.mesh", mesh="2x3")
    html = compiled._repr_html_()
    assert "<b>" not in html and "&lt;b&gt;&amp;" in html  # in the places of remarks
    for name in compiled.files:
        assert name in html
    assert "&lt;Compiled mlp" in html and f"{len(compiled.files)} files" in html
    for remark in compiled.remarks:
        assert escape(remark.message) in html
    assert set(re.findall(r"<(\w+)", html)) <= {
        "div", "code", "pre", "details", "summary", "table", "tr", "td",
    }  # fmt: skip


def test_a_tensor_program_maps_arrays_to_arrays(mlp, weights):
    program = mlp.load(weights)
    for seed in (2, 3):
        x = np.random.default_rng(seed).standard_normal((16, 64))
        (found,) = program.run({"x": x}).values()
        assert np.abs(found - by_numpy(x, **weights)).max() < 1e-5
    short = program.run({"x": x[:5]})["result"]
    assert short.shape == (5, 64)
    assert np.abs(short - by_numpy(x[:5], **weights)).max() < 1e-5


def test_weights_lie_in_a_folder(mlp, weights, tmp_path):
    for name, array in weights.items():
        np.save(tmp_path / f"{name}.npy", array)
    x = np.random.default_rng(2).standard_normal((16, 64))
    (found,) = mlp.load(tmp_path).run({"x": x}).values()
    assert np.array_equal(found, mlp.load(weights).run({"x": x})["result"])


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("arrays", "scalars", "words"),
    [
        ({}, {}, "the inputs of this program are: x"),
        ({"x": np.ones((16, 64)), "y": np.ones(1)}, {}, "the inputs of this program are: x"),
        ({"x": np.ones((16, 63))}, {}, "the dim E has 63 elements in an input, elsewhere 64"),
        ({"x": np.ones((17, 64))}, {}, "'x' has shape"),
        ({"x": np.ones(64)}, {}, "'x' has shape"),
        ({"x": np.ones((16, 64)) * 1j}, {}, "not real numbers"),
        ({"x": [["a"]]}, {}, "not real numbers"),
        ({"x": np.ones((16, 64))}, {"pos": 3}, "no run-time scalar 'pos'"),
    ],
)
def test_ill_shaped_inputs_are_refused(mlp, weights, arrays, scalars, words):
    with pytest.raises(meshc.MeshcError, match=re.escape(words)) as caught:
        mlp.load(weights).run(arrays, **scalars)
    assert caught.value.diagnostics[0].code == "run-refused"


def test_extents_of_inputs_agree(tmp_path):
    """Both are shorter than they may be, and not the same."""
    text = "model two(M=8, N=8) { weights f32 accumulate f32 main(a[M, N], b[M, N]) -> [M, N] "
    (tmp_path / "two.mesh").write_text(text + "{ return a + b } }")
    program = meshc.compile(tmp_path / "two.mesh", mesh="2x2").load()
    a = np.arange(64.0).reshape(8, 8)
    assert np.array_equal(program.run({"a": a[:3], "b": a[:3]})["result"], 2 * a[:3])
    with pytest.raises(meshc.MeshcError, match="the dim M has 4 elements"):
        program.run({"a": a[:3], "b": a[:4]})


def test_what_cannot_be_loaded_is_refused(mlp, weights):
    for load, code in (
        (lambda: mlp.load(), "weights-not-found"),
        (lambda: mlp.load({}), "weights-missing-tensor"),
        (lambda: mlp.load({**weights, "w_up": weights["w_up"].T}), "run-refused"),
        (lambda: mlp.load(weights, backend="cuda"), "bad-argument"),
        (lambda: mlp.load(weights).generate([1]), "no-tokens"),
        (lambda: meshc.compile(MLP, compile_to="tile").load(weights), "no-program"),
        (lambda: _csl().load({"w": np.ones((96, 48), np.float32)}), "no-tokens"),
    ):
        with pytest.raises(meshc.MeshcError) as caught:
            load()
        assert {d.code for d in caught.value.diagnostics} == {code}


def _csl():
    return meshc.compile(ROOT / "examples" / "matmul.mesh", target="csl", device="wse2", mesh="4x4")


@pytest.mark.parametrize(
    "target",
    [
        "python",
        pytest.param(
            "cuda", marks=pytest.mark.skipif(CXX.path() is None, reason="no C++ compiler")
        ),
    ],
)
@pytest.mark.models
def test_a_language_model_generates(target):
    backend = {"python": "python", "cuda": "cuda-cpu"}[target]
    compiled = meshc.compile(TINY, target=target, mesh={"python": "2x2"}.get(target, ""), seq=16)
    with compiled.load(backend=backend) as model:
        assert repr(model) == f"<Executable {compiled.loaded.name} on {backend}>"
        first = model.generate([5, 17, 42], max_tokens=3, ignore_eos=True)
        again = model.generate([5, 17, 42], max_tokens=3, ignore_eos=True)
        assert first.tokens == again.tokens and len(first.tokens) == 3
        assert first.logits.shape[0] == 3 and np.isfinite(first.logits).all()
        assert (first.mesh, first.seconds_per_token is None) == {
            "python": ("2x2", False),
            "cuda": (None, True),
        }[target]
        # Nothing is cached of the last token.
        assert len(model.generate([5] * 14, max_tokens=3, ignore_eos=True).tokens) == 3
        for call, code in (
            (lambda: model.generate([5], max_tokens=0), "bad-argument"),
            (lambda: model.generate([10**6]), "run-refused"),
            (lambda: model.generate([5] * 14, max_tokens=4), "run-refused"),
            (lambda: model.generate("text"), "tokenizer-not-found"),
            (lambda: model.run({}), "run-refused"),
        ):
            with pytest.raises(meshc.MeshcError) as caught:
                call()
            assert caught.value.diagnostics[0].code == code


def test_modules_of_all_levels_run(weights):
    x = np.random.default_rng(4).standard_normal((16, 64))
    for level in ("graph", "mesh", "tile"):
        place = {} if level == "graph" else {"mesh": "2x2"}
        module = meshc.compile(MLP, **place, compile_to=level, dtype="f32").modules["main"]
        (found,) = meshc.run(module, {"x": x, **weights})
        assert np.abs(found - by_numpy(x, **weights)).max() < 1e-5, level
    with pytest.raises(meshc.MeshcError, match="takes no array 'z'"):
        meshc.run(module, {"x": x, **weights, "z": x})


@pytest.mark.parametrize(("name", "near"), [("gpu", "gpus"), ("meshes", "mesh"), ("zzz", "batch")])
def test_an_unknown_argument_is_an_error_with_those_that_are_near(name, near):
    with pytest.raises(MeshcError) as caught:
        meshc.compile(Path(__file__).parents[2] / "examples" / "mlp.mesh", **{name: 2})
    (found,) = caught.value.diagnostics
    assert found.code == "bad-argument" and f"'{name}'" in found.message and near in found.help


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("algo", "gemm=summa"),
        ("form", "q=gemv_y"),
        ("keep_quantised", "all=q4_0"),
        ("passes_before", "meet=canonicalize"),
    ],
)
def test_a_text_in_the_place_of_several_is_told(name, value):
    """Its letters are not taken one by one."""
    with pytest.raises(TypeError, match=rf"{name} takes several texts, such as \('{value}',\)"):
        meshc.compile("smollm2-135m", phase="decode", **{name: value})
