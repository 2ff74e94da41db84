"""Decode steps as CUDA kernels in the CPU executor: the logits of the graph interpreter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reduced import each

from meshc.backends.cuda import CpuMachine, LanguageModel, from_json
from meshc.backends.cuda.executor import CXX, QUICK, Mode
from meshc.devices import device
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.driver.executable import Executable
from meshc.interp.graph import run_graph
from meshc.support.diagnostics import Diagnostics, MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

BASE = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "vocab_size": 200,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "torch_dtype": "float16",
}
SCALED = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GROUPED, OWN = "llama, grouped, tied", "llama, own head, scaled angles"
FEW = device("h200").with_numbers(cores=8)
"""A GPU of few blocks, which the executor runs one after the other."""
MODELS = {
    GROUPED: (BASE, {"cluster": 2, "page": 1}),
    OWN: (
        {**BASE, "tie_word_embeddings": False, "num_key_value_heads": 4, "rope_scaling": SCALED},
        {"cluster": 4, "page": 1},
    ),
    "qwen2, biases, one key head": (
        {**BASE, "model_type": "qwen2", "num_key_value_heads": 1, "rms_norm_eps": 1e-6},
        {"cluster": 8, "page": 64, "dtype": "bf16"},
    ),
    "sixteen heads of one key head": (
        {**BASE, "num_attention_heads": 16, "num_key_value_heads": 1},
        {"cluster": 2},
    ),
    "gelu by tanh": ({**BASE, "hidden_act": "gelu_pytorch_tanh"}, {"cluster": 1}),
    "llama, biases, exact gelu": (
        {**BASE, "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"},
        {"cluster": 2},
    ),
}


def compiled(name, folder, **more):
    """The compiled program of a model."""
    config, options = MODELS[name]
    (folder / "config.json").write_text(json.dumps(config))
    report = Diagnostics()
    few = {"target": "cuda", "dtype": "f16", "seq": 100, "device": FEW}
    request = CompileRequest(**few | options | more)
    return compile_loaded(load_any(str(folder), report), request, (), report)


def graph_of(name, folder):
    """The graph that the program of a model is made of."""
    options = {o: v for o, v in MODELS[name][1].items() if o == "dtype"}
    (folder / "config.json").write_text(json.dumps(MODELS[name][0]))
    request = CompileRequest(
        **{"target": "cuda", "dtype": "f16", "seq": 100, "compile_to": "graph"} | options
    )
    report = Diagnostics()
    return compile_loaded(load_any(str(folder), report), request, (), report).modules["decode"]


def rounded(values, dtype):
    if dtype == "f16":
        return values.astype(np.float16).astype(np.float64)
    return (values.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32).astype("f8")


def weights_of(module, dtype):
    rng = np.random.default_rng(1)
    found = {}
    for param in module.function.params:
        if param.role == "weight":
            shape = param.value.type.shape(module.dims)
            spread = 1.0 if "norm" in param.value.name else 0.08
            found[param.value.name] = rounded(rng.standard_normal(shape) * spread, dtype)
    return found


@pytest.mark.parametrize("name", each(MODELS, 3))
def test_logits_are_those_of_the_graph(name, tmp_path: Path):
    result, module = compiled(name, tmp_path), graph_of(name, tmp_path)
    tensors = weights_of(module, str(module.dtype()))
    program = from_json(result.files["manifest.json"])
    model = LanguageModel(
        program,
        CpuMachine(program.kernels, result.files, Mode("shuffled", True), toolchain=QUICK),
        tensors,
    )
    states = {}
    names = [p.value.name for p in module.function.params if p.role == "state"]
    for position, token in enumerate([3, 17, 199, 0, 42, 42, 8]):
        inputs = {"tokens": np.array([[token]]), **tensors, **states}
        logits, *caches = run_graph(module, inputs, {"pos": position})
        states = dict(zip(names, caches, strict=True))
        (found,) = model.step([token], [position])
        # Keys and values are rounded to 16 bits; everything else is f32.
        unit = 2.0**-11 if str(module.dtype()) == "f16" else 2.0**-8
        assert np.abs(found - logits.reshape(-1)).max() <= 4 * unit * np.abs(logits).max()


def test_requests_of_a_batch_do_not_touch_each_other(tmp_path: Path):
    """Three requests of other lengths, against each alone."""
    texts = [[3, 17, 199, 0, 42], [8, 8, 1], [150]]
    alone, together = [], []
    for batch, logits in ((1, alone), (3, together)):
        result = compiled(GROUPED, tmp_path, batch=batch)
        program = from_json(result.files["manifest.json"])
        tensors = weights_of(graph_of(GROUPED, tmp_path), "f16")
        machine = CpuMachine(program.kernels, result.files, toolchain=QUICK)
        if batch == 1:
            for text in texts:
                model = LanguageModel(program, machine, tensors)
                logits.append([model.step([t], [n])[0] for n, t in enumerate(text)])
            continue
        model = LanguageModel(program, machine, tensors)
        logits += [[] for _ in texts]
        most = max(map(len, texts))
        for step in range(most):  # all end together
            places = [step - (most - len(text)) for text in texts]
            tokens = [t[n] if n >= 0 else 0 for t, n in zip(texts, places, strict=True)]
            found = model.step(tokens, [max(n, 0) for n in places])
            for n, row, kept in zip(places, found, logits, strict=True):
                if n >= 0:
                    kept.append(row)
    for one, other in zip(alone, together, strict=True):
        assert np.abs(np.array(one) - np.array(other)).max() <= 1e-5 * np.abs(one).max()


def test_requests_that_fill_their_caches_are_as_with_room_to_spare(tmp_path: Path):
    """The last token of an answer has no row. A prompt that fills its caches is read before those
    of requests whose pages lie beside its own."""
    texts = [[3, 17, 199, 0, 42, 7, 9, 11], [8, 8, 1], [150, 2, 3]]
    answers = []
    for seq in (8, 40):
        result = compiled(GROUPED, tmp_path, batch=3, seq=seq)
        program = from_json(result.files["manifest.json"])
        mode = Mode("shuffled", True)
        machine = CpuMachine(program.kernels, result.files, mode, toolchain=QUICK)
        model = LanguageModel(program, machine, weights_of(graph_of(GROUPED, tmp_path), "f16"))
        rows = [[], [], []]

        def told(request, token, logits, rows=rows):
            rows[request].append(logits)
            return request == 0

        with pytest.raises(MeshcError, match=f"8 prompt tokens and {seq} new ones do not fit"):
            model.generate_all(texts, seq, told)
        assert [*model.generate(texts[0], 1, lambda token, row: None)]
        found = model.generate_all([texts[0], texts[1][:1], texts[2][:1]], 1, told)
        answers.append((found, model.generate_all([texts[0]] * 3, 1, told)))
        beside = model.generate_all([texts[1], texts[2], texts[0][:3]], 6, told)
        assert [len(tokens) for tokens in beside] == [1, 6, 6]
        answers[-1] += (beside, [np.array(each) for each in rows])
    tight, roomy = answers
    assert tight[:3] == roomy[:3]
    for one, other in zip(tight[3], roomy[3], strict=True):
        assert np.abs(one - other).max() <= 1e-3 * np.abs(other).max()


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (OWN, {"page": 16}),
        (OWN, {"page": 16, "cluster": 2, "chunk": 16}),
    ],
    ids=["steps", "chunks"],
)
def test_a_sequence_of_no_numbers_leaves_nothing(model, options, tmp_path: Path):
    """The next one, in the same place or beside it, has the logits that it has alone."""
    result = compiled(model, tmp_path, batch=2, **options)
    program = from_json(result.files["manifest.json"])
    tensors = weights_of(graph_of(OWN, tmp_path), "f16")
    tensors["embedding"][0] = np.nan
    machine = CpuMachine(program.kernels, result.files, toolchain=QUICK)
    model = LanguageModel(program, machine, tensors)
    spoilt, prompt = [1, 0, 0, 2, 0, 3, *[1, 2] * 10], [4, 5, 6, 7]

    def logits(prompts):
        rows = [[] for _ in prompts]
        model.generate_all(prompts, 2, lambda request, token, row: rows[request].append(row))
        return np.array(rows)

    (alone,) = logits([prompt])
    assert np.isfinite(alone).all()
    assert np.isnan(logits([spoilt])).all()
    np.testing.assert_array_equal(logits([prompt]), [alone])
    lost, beside = logits([spoilt, prompt])
    assert np.isnan(lost).all()
    np.testing.assert_array_equal(beside, alone)
    np.testing.assert_array_equal(logits([prompt, prompt]), [alone, alone])


def test_every_byte_of_a_directory_depends_on_the_arguments_only(tmp_path: Path):
    first, second = (compiled(GROUPED, tmp_path) for _ in range(2))
    assert first.files == second.files


def test_an_unknown_manifest_is_refused():
    for text in ("", "[]", "{}", '{"format": 1}', '{"format": 3, "kernels": 5}', "[" * 100000):
        with pytest.raises(MeshcError, match="no-program"):
            from_json(text)


def test_headers_that_kernels_are_not_compiled_with_are_refused(tmp_path: Path):
    """Those of a directory travel with it; kernels are compiled with those of the library."""
    result = compiled(GROUPED, tmp_path)
    weights = weights_of(graph_of(GROUPED, tmp_path), "f16")
    program = result.written(tmp_path / "program", weights)
    assert Executable(program, weights, "cuda-cpu", Diagnostics())
    header = tmp_path / "program" / "mc_functions.cuh"
    header.write_text(header.read_text().replace("2.0f", "2.5f"))
    with pytest.raises(MeshcError, match=r"\[no-program\]: .*mc_functions.cuh' is not that of"):
        Executable(program, weights, "cuda-cpu", Diagnostics())


def test_the_executor_says_why_it_cannot_run(tmp_path: Path, monkeypatch):
    result = compiled(GROUPED, tmp_path)
    program = from_json(result.files["manifest.json"])
    short = {
        name: replace(kernel, shared_bytes=kernel.shared_bytes // 2)
        for name, kernel in program.kernels.items()
    }
    tensors = weights_of(graph_of(GROUPED, tmp_path), "f16")
    model = LanguageModel(program, CpuMachine(short, result.files, toolchain=QUICK), tensors)
    with pytest.raises(MeshcError, match="cuda-executor") as problem:
        model.step([3], [0])
    assert "shared memory" in str(problem.value)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(MeshcError, match=r"cuda-executor.*no C\+\+ compiler"):
        CpuMachine(program.kernels, {**result.files, "step.cu": "// changed"})


@pytest.mark.parametrize(
    ("config", "options", "code"),
    [
        (BASE, {"dtype": "f32"}, "cuda-dtype"),
        ({**BASE, "head_dim": 40}, {"chunk": 16}, "cuda-shape"),
        (BASE, {"cluster": 17}, "bad-argument"),
        (BASE, {"page": 5}, "bad-argument"),
        (BASE, {"dataflow": "split"}, "bad-argument"),
        (BASE, {"phase": "prefill"}, "bad-phase"),
        (BASE, {"batch": 17}, "bad-argument"),
        (BASE, {"batch": 65, "target": "csl"}, "bad-argument"),
        (BASE, {"device": "wse2"}, "cuda-graph"),
    ],
)
def test_what_cannot_be_compiled_is_said_in_words(config, options, code, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = Diagnostics()
    request = CompileRequest(**{"target": "cuda", "dtype": "f16", "seq": 64} | options)
    with pytest.raises(MeshcError, match=code):
        compile_loaded(load_any(str(tmp_path), report), request, (), report)
