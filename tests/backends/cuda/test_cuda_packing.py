"""Weights as 16-bit words in the order in which kernels read them, beside plain formulas."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from packing_reference import fragments as fragments_stated
from packing_reference import reference, to_bf16, to_f16
from reduced import each

from meshc.backends.cuda import from_json
from meshc.backends.cuda.packing import element_words, fragments, in_fragments, packed, words
from meshc.backends.cuda.packing.element_words import copied
from meshc.backends.cuda.ranks import RankTensors
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.ir.stored import BF16, Layers, floats
from meshc.support.diagnostics import Diagnostics, MeshcError

ODD = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4e38, -3.4e38, 1e-40, 65520.0, 1.0039062]


def bf16_of(value):
    """The nearest bf16 of a float, the even one of two, by its definition."""
    if np.isnan(value):
        return np.nan
    bits = int(np.float32(value).view(np.uint32))
    down, rest = bits >> 16, bits & 0xFFFF
    return down + (rest > 0x8000 or (rest == 0x8000 and down & 1))


@pytest.mark.parametrize("exact", [False, True], ids=["rounded", "stored in bf16"])
def test_words_of_bf16(exact, monkeypatch):
    monkeypatch.setattr(element_words, "_RUN", 16)  # one run of the odd ones, others without
    drawn = np.random.default_rng(0).standard_normal((7, 11)).astype(np.float32)
    drawn[0] = np.array(ODD, np.float32)
    if exact:
        drawn = (drawn.view(np.uint32) & 0xFFFF0000).view(np.float32)
    found = words(drawn, "bf16")
    for value, word in zip(drawn.flat, found.flat, strict=True):
        wanted = bf16_of(value)
        assert (word & 0x7FFF) > 0x7F80 if np.isnan(wanted) else word == wanted


def test_words_of_f16():
    drawn = np.array(ODD, np.float32).reshape(1, -1)
    with np.errstate(over="ignore"):
        wanted = drawn.astype(np.float16).view(np.uint16)
    assert (words(drawn, "f16") == wanted).all()


def test_elements_that_are_words_are_not_moved():
    drawn = np.random.default_rng(0).integers(0, 1 << 16, (5, 7)).astype(np.uint16)
    for dtype, given in (("bf16", drawn.view(BF16)), ("f16", drawn.view(np.float16))):
        assert np.shares_memory(words(given.T, dtype), drawn)
        assert (words(given.T, dtype) == drawn.T).all()


@pytest.fixture(params=["compiled", "for any processor", "in NumPy"])
def compiler(request, monkeypatch):
    """With a C compiler, where there is one, for this processor or any, and without."""
    if request.param == "in NumPy":
        monkeypatch.setattr(fragments, "_compiled", lambda: None)
    elif fragments._C.path() is None:
        pytest.skip("there is no C compiler")
    elif request.param == "for any processor":
        flags = (*fragments._C.flags, "-U__x86_64__")
        monkeypatch.setattr(fragments, "_C", replace(fragments._C, flags=flags))
        monkeypatch.setattr(fragments, "_compiled", cache(fragments._compiled.__wrapped__))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(16, 16), (70, 300), (1, 2), (200, 33)])
def test_fragments_of_a_matrix(rows, width, turned, compiler):
    given = np.arange(1, 1 + rows * width).astype(np.uint16).reshape(rows, width)
    given = np.ascontiguousarray(given.T).T if turned else given
    found = in_fragments(given)
    assert found.shape == (-(-rows // 16), -(-width // 16), 32, 8)
    for group, block, lane, place in np.ndindex(*found.shape):
        half, pair, one = place // 2 % 2, place // 4, place % 2
        row = 16 * group + 8 * half + lane // 4
        column = 16 * block + 4 * (lane % 4) + 2 * pair + one
        inside = row < rows and column < width
        assert found[group, block, lane, place] == (given[row, column] if inside else 0)


@pytest.mark.parametrize("asked", ["f16", "bf16"])
def test_words_of_the_other_type_become_what_numpy_makes_of_them(asked, compiler):
    """All 65,536 of them; what is no number stays none."""
    other = {"f16": BF16, "bf16": np.dtype(np.float16)}[asked]
    given = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    target = np.zeros(1 << 16, np.uint16)
    at = given.ctypes.data + np.arange(256, dtype=np.uint64) * np.uint64(512)
    if not fragments.fragments_at(at, 256, target, asked):
        fragments.fragments_of(words(given.view(other), asked), target)
    values = floats(given.view(other)).astype(np.float32)
    none = fragments_stated(np.isnan(values).astype(np.uint16)).reshape(-1) > 0
    values[np.isnan(values)] = 0
    wanted = fragments_stated((to_f16 if asked == "f16" else to_bf16)(values))
    found = floats(target.view(BF16 if asked == "bf16" else np.float16))
    assert (np.isnan(found) == none).all()
    assert (target[~none] == wanted.reshape(-1)[~none]).all()


def test_copies_of_parts_of_matrices():
    given = np.arange(130 * 600).reshape(130, 600)
    for source in (given, given.T, given[1:, 3:].T, given[::2]):
        target = np.zeros_like(source)
        copied(source, target)
        assert (target == source).all()


LLAMA = {
    "model_type": "llama", "hidden_size": 136, "num_attention_heads": 6, "num_key_value_heads": 3,
    "head_dim": 64, "intermediate_size": 184, "num_hidden_layers": 2, "vocab_size": 205,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 256,
    "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "float16",
}  # fmt: skip
QWEN2 = LLAMA | {"model_type": "qwen2", "tie_word_embeddings": True, "hidden_size": 128}
EXPERTS = LLAMA | {
    "model_type": "qwen3_moe", "num_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": True,
    "moe_intermediate_size": 40, "hidden_size": 128,
}  # fmt: skip
LATENT = {
    "model_type": "deepseek_v2", "hidden_size": 128, "num_attention_heads": 2, "q_lora_rank": None,
    "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
    "num_key_value_heads": 2, "intermediate_size": 160, "num_hidden_layers": 2, "vocab_size": 205,
    "first_k_dense_replace": 2, "n_routed_experts": None, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "max_position_embeddings": 256, "tie_word_embeddings": False,
    "hidden_act": "silu", "torch_dtype": "float16",
}  # fmt: skip
MODELS = {
    "tasks": (LLAMA, {}),
    "tasks of three rows": (QWEN2, {"batch": 3, "dtype": "bf16"}),
    "experts": (EXPERTS, {"dtype": "bf16"}),
    "latent attention": (LATENT, {}),
    "kernels of chunks": (LLAMA | {"hidden_size": 128}, {"chunk": 16}),
    "kernels with biases": (QWEN2, {"chunk": 16, "dtype": "bf16"}),
    "a rank of two": (LLAMA | {"hidden_size": 128}, {"gpus": 2}),
    "codes of four bits": (QWEN2, {"keep_quantised": ("all=q4_1",)}),
    "codes of eight bits": (QWEN2, {"keep_quantised": ("all=q8_0",), "batch": 2}),
    "codes and zero points": (QWEN2, {"keep_quantised": ("all=int4_64",), "dtype": "bf16"}),
    "floats of eight bits": (QWEN2, {"keep_quantised": ("all=e4m3_128",), "dtype": "bf16"}),
    "codes of experts": (EXPERTS, {"keep_quantised": ("all=e4m3_32",)}),
}


def program_of(name, folder):
    """The program of a model, and float32 tensors for it."""
    config, options = MODELS[name]
    (folder / "config.json").write_text(json.dumps(config))
    report = Diagnostics()
    request = CompileRequest(**{"target": "cuda", "dtype": "f16", "seq": 64} | options)
    text = compile_loaded(load_any(str(folder), report), request, (), report).files["manifest.json"]
    program, rng = from_json(text), np.random.default_rng(1)
    shapes = {
        source: shape
        for weight in program.weights.values()
        for source, shape in zip(weight.sources, weight.source_shapes, strict=True)
    }
    ranks = program.ranks
    for source, axes in ({} if ranks is None else ranks.dealt).items():
        shape = list(shapes[source])
        for dealt in axes:
            shape[dealt.axis] = dealt.whole
        shapes[source] = tuple(shape)
    drawn = {
        source: rng.standard_normal(shape, dtype=np.float32) for source, shape in shapes.items()
    }
    for source in [source for source in shapes if source.endswith(".codes")]:
        form, shape = source.split(".")[-2], shapes[source]
        drawn[source] = rng.integers(0, 256 if form == "q8_0" else 16, shape).astype(np.uint8)
        if form.startswith("e4m3"):  # of three bits behind the first, and below the normal ones
            numbers = rng.integers(-15, 16, shape) * 2.0 ** rng.integers(-9, 5, shape)
            drawn[source] = numbers.astype(np.float32)
    return program, json.loads(text)["weights"], drawn


class Stored(dict):
    """Tensors as files of 16 bits hold them: matrices by columns, layers one by one."""

    def __init__(self, tensors, kind, layered):
        super().__init__(tensors)
        self._kind, self._layered, self.read = kind, layered, []

    def stored(self, name):
        whole = np.asarray(self[name])
        if name not in self._layered:
            return self._one(whole)
        return Layers(whole.shape, lambda n: self.read.append((name, n)) or self._one(whole[n]))

    def _one(self, values):
        by_columns = np.ascontiguousarray(values.T)
        held = words(by_columns, self._kind)
        return held.view(BF16 if self._kind == "bf16" else np.float16).T

    def stamp(self):
        return None


@pytest.mark.parametrize("name", each(MODELS, 2))
def test_packed_weights_are_what_is_stated_of_them(name, tmp_path, compiler):
    program, stated, tensors = program_of(name, tmp_path)
    given = tensors if program.ranks is None else RankTensors(program.ranks, tensors, 1)
    for key, weight in program.weights.items():
        assert (packed(weight, given) == reference(stated[key], given)).all(), key


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("name", each(MODELS, 6))
def test_weights_of_16_bits_are_packed_as_their_numbers_are(name, kind, tmp_path, compiler):
    program, stated, tensors = program_of(name, tmp_path)
    layered = {s for w in program.weights.values() if w.layers for s in w.sources}
    held = Stored(tensors, kind, layered)
    numbers = {
        source: np.asarray(floats(words(tensor, kind).view(BF16 if kind == "bf16" else np.float16)))
        for source, tensor in tensors.items()
    }
    numbers = {source: tensor.astype(np.float32) for source, tensor in numbers.items()}
    given, wanted = held, numbers
    if program.ranks is not None:
        given, wanted = (RankTensors(program.ranks, t, 1) for t in (held, numbers))
    for key, weight in program.weights.items():
        assert (packed(weight, given) == reference(stated[key], wanted)).all(), key
    assert len(held.read) >= len(layered)


def test_tensors_of_another_shape_are_refused(tmp_path):
    program, _, tensors = program_of("tasks", tmp_path)
    weight = program.weights["wq"]
    with pytest.raises(MeshcError, match="'wq' has shape"):
        packed(weight, {"wq": tensors["wq"][:, 1:]})
    with pytest.raises(KeyError):
        packed(weight, {})
