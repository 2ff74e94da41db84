"""Prompts read many tokens at once (``--chunk``) in the CPU executor: the logits of the graph."""

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from test_cuda_cpu import BASE, weights_of

from meshc.backends.cuda import CpuMachine, CpuNode, LanguageModel, from_json
from meshc.backends.cuda.executor import CXX, QUICK, Mode
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.interp.graph import run_graph
from meshc.support.diagnostics import Diagnostics, MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
UNIT = {"f16": 2.0**-11, "bf16": 2.0**-8}
ROUNDINGS = 8
"""Of a layer, each by half a unit: inputs of four products, queries, keys, values, weights of
scores. Were each as large in the logits, they would add up as the root of their number does, for
signs are random; the bound is twice that."""
ROUNDINGS_OF_RANKS = 4
"""More of a layer on several GPUs: the parts of two sums, and both sums."""
OF_PROGRAMS = ("gpus", "collectives", "overlap", "chunk", "page")


def compiled(folder, config, **options):
    (folder / "config.json").write_text(json.dumps(config))
    report = Diagnostics()
    request = CompileRequest(**{"target": "cuda", "dtype": "f16", "seq": 100} | options)
    return compile_loaded(load_any(str(folder), report), request, (), report)


def of_graph(module, tensors, tokens):
    """Logits [tokens, vocabulary] of the interpreter, token by token in float64."""
    names = [p.value.name for p in module.function.params if p.role == "state"]
    states, rows = {}, []
    for position, token in enumerate(tokens):
        inputs = {"tokens": np.array([[token]]), **tensors, **states}
        logits, *caches = run_graph(module, inputs, {"pos": position})
        states = dict(zip(names, caches, strict=True))
        rows.append(logits.reshape(-1))
    return np.stack(rows)


def check(folder, config, length, steps=2, **options):
    """A prompt of ``length`` tokens, then ``steps`` more: the largest error relative to the largest
    logit, in units of the element type, and the bound."""
    result = compiled(folder, config, **options)
    program = from_json(result.files["manifest.json"])
    assert program.prefills and program.prefills[0].tokens == options["chunk"]
    one = {name: options[name] for name in options if name not in OF_PROGRAMS}
    module = compiled(folder, config, **one, compile_to="graph").modules["decode"]
    tensors = weights_of(module, str(module.dtype()))
    ranks, mode = options.get("gpus", 1), Mode("shuffled", True)
    machine = CpuMachine(program.kernels, result.files, mode, toolchain=QUICK)
    if ranks > 1:
        machine = CpuNode(program.kernels, result.files, ranks, mode, QUICK)
    model = LanguageModel(program, machine, tensors)
    prompt = [(7 * n * n + 3) % config["vocab_size"] for n in range(length)]
    rows: list[np.ndarray] = []
    tokens = list(model.generate(prompt, steps + 1, lambda _, row: rows.append(row)))
    wanted = of_graph(module, tensors, [*prompt, *tokens[:-1]])[length - 1 :]
    unit = UNIT[str(module.dtype())]
    error = np.abs(np.array(rows) - wanted).max() / np.abs(wanted).max() / unit
    roundings = ROUNDINGS + (ROUNDINGS_OF_RANKS if ranks > 1 else 0)
    return error, (roundings * config["num_hidden_layers"]) ** 0.5


@pytest.mark.parametrize(
    ("length", "chunk"),
    [(21, 16), *(pytest.param(*of, marks=pytest.mark.slow) for of in ((39, 40), (90, 64)))],
)
def test_logits_behind_a_prompt_are_those_of_the_graph(length, chunk, tmp_path):
    """In a whole chunk and a part of one, and in one chunk."""
    error, bound = check(tmp_path, BASE, length, chunk=chunk, page=16)
    assert 0 < error <= bound


@st.composite
def models(draw):
    """A configuration and how it is compiled and asked."""
    heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    config = BASE | {
        "model_type": draw(st.sampled_from(["llama", "qwen2"])),
        "hidden_size": 8 * draw(st.integers(4, 20)),
        "num_attention_heads": heads * group,
        "num_key_value_heads": heads,
        "head_dim": draw(st.sampled_from([64, 96, 128])),
        "intermediate_size": 8 * draw(st.integers(4, 30)),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "hidden_act": draw(st.sampled_from(["silu", "gelu", "gelu_pytorch_tanh"])),
        "tie_word_embeddings": draw(st.booleans()),
    }
    if config["model_type"] == "llama":
        config |= {"attention_bias": draw(st.booleans()), "mlp_bias": draw(st.booleans())}
    options = {
        "dtype": draw(st.sampled_from(["f16", "bf16"])),
        "page": draw(st.sampled_from([1, 16, 64])),
        "chunk": draw(st.sampled_from([*range(8, 56, 8), 64, 128])),
        "batch": draw(st.sampled_from([1, 1, 2])),
    }
    return config, options, draw(st.integers(1, 96))


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[*HealthCheck])
@given(models())
def test_drawn_models_read_prompts(tmp_path_factory, drawn):
    config, options, length = drawn
    try:
        error, bound = check(tmp_path_factory.mktemp("drawn"), config, length, **options)
    except MeshcError as refusal:
        (code,) = {d.code for d in refusal.diagnostics}
        assert code == "cuda-shape", refusal
        event("refused")
        return
    event(f"{error / bound:.1f} of the bound")
    assert error <= bound, (error, bound)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=[*HealthCheck])
@given(models(), st.integers(2, 3), st.sampled_from(["multimem", "peers"]), st.booleans())
def test_drawn_models_read_prompts_on_several_gpus(
    tmp_path_factory, drawn, gpus, collectives, split
):
    """In one piece, and in halves of which the first has some of the tokens of a chunk."""
    config, options, length = drawn
    options = options | {"gpus": gpus, "collectives": collectives}
    if split:
        options["overlap"] = str(1 + length % (options["chunk"] - 1))
    try:
        error, bound = check(tmp_path_factory.mktemp("drawn"), config, length, **options)
    except MeshcError as refusal:
        (code,) = {d.code for d in refusal.diagnostics}
        assert code in ("cuda-shape", "cuda-graph"), refusal
        event(f"refused: {code}")
        return
    event(f"{error / bound:.1f} of the bound")
    assert error <= bound, (error, bound)


@cache
def shipped():
    return load_any("llama-2-7b", Diagnostics())


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"chunk": 12}, "bad-argument", "not a multiple of 8 up to 2048"),
        ({"chunk": 0}, "bad-argument", "--chunk is 0"),
        ({"chunk": 4096}, "bad-argument", "not a multiple of 8 up to 2048"),
    ],
)
def test_what_no_kernels_read_at_once_is_refused(options, code, words):
    request = CompileRequest(target="cuda", dtype="f16", seq=64, **options)
    with pytest.raises(MeshcError, match=words) as error:
        compile_loaded(shipped(), request, (), Diagnostics())
    assert error.value.diagnostics[0].code == code
