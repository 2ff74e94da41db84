"""Experts of gpt-oss as they are published, in MXFP4: values by the format, and refusals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ggml_blocks import DECODERS
from model_files import diagnosed
from quantised_files import safetensors_of

import meshc
from meshc.backends.cuda.executor import CXX
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.driver.weights import AS_STORED, formats_to_keep
from meshc.frontend.checkpoints import open_checkpoint, read_config
from meshc.frontend.checkpoints.tensor_source import Part
from meshc.support.diagnostics import Diagnostics

TINY = Path(__file__).parents[2] / "data" / "tiny_gpt_oss" / "gpt-oss-5x2-yarn"
LAYERS, EXPERTS, HIDDEN, FFN, HEADS, LANES, VOCAB = 2, 5, 64, 96, 6, 4, 53
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}


def _matrix(outputs: int, inputs: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Blocks [experts, outputs, groups, 16], scales [experts, outputs, groups], and what they mean
    [experts, inputs, outputs], by the formula of ggml's blocks, whose halves lie otherwise."""
    random = np.random.default_rng(seed)
    groups = inputs // 32
    blocks = random.integers(0, 256, (EXPERTS, outputs, groups, 16), dtype=np.uint8)
    scales = random.integers(120, 124, (EXPERTS, outputs, groups)).astype(np.uint8)
    meaning = np.empty((EXPERTS, inputs, outputs), np.float32)
    for at in np.ndindex(EXPERTS, outputs, groups):
        codes = [code for byte in blocks[at].tolist() for code in (byte & 15, byte >> 4)]
        of_ggml = bytes(low | high << 4 for low, high in zip(codes[:16], codes[16:], strict=True))
        inside = slice(32 * at[2], 32 * at[2] + 32)
        meaning[at[0], inside, at[1]] = DECODERS["MXFP4"](bytes([int(scales[at])]) + of_ggml)
    return blocks, scales, meaning


def _shared(layer: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    """The tensors of a layer that are not quantised."""
    queries, keys = HEADS * LANES, 2 * LANES
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
        "self_attn.q_proj.weight": (queries, HIDDEN),
        "self_attn.q_proj.bias": (queries,),
        "self_attn.k_proj.weight": (keys, HIDDEN),
        "self_attn.k_proj.bias": (keys,),
        "self_attn.v_proj.weight": (keys, HIDDEN),
        "self_attn.v_proj.bias": (keys,),
        "self_attn.o_proj.weight": (HIDDEN, queries),
        "self_attn.o_proj.bias": (HIDDEN,),
        "self_attn.sinks": (HEADS,),
        "mlp.router.weight": (EXPERTS, HIDDEN),
        "mlp.router.bias": (EXPERTS,),
        "mlp.experts.gate_up_proj_bias": (EXPERTS, 2 * FFN),
        "mlp.experts.down_proj_bias": (EXPERTS, HIDDEN),
    }
    return {
        f"model.layers.{layer}.{name}": (random.standard_normal(shape) / 4).astype(np.float32)
        for name, shape in shapes.items()
    }


def _models(folder: Path, edit: Mapping[str, np.ndarray | None] | None = None) -> tuple[Path, Path]:
    """A model whose experts are in MXFP4, some of its tensors changed or left out by ``edit``, and
    the same with the numbers that they mean."""
    random = np.random.default_rng(7)
    plain: dict[str, np.ndarray] = {}
    for name, shape in (("model.embed_tokens", (VOCAB, HIDDEN)), ("lm_head", (VOCAB, HIDDEN))):
        plain[f"{name}.weight"] = random.standard_normal(shape).astype(np.float32)
    plain["model.norm.weight"] = np.ones(HIDDEN, np.float32)
    stored = dict(plain)
    for layer in range(LAYERS):
        shared = _shared(layer, random)
        plain |= shared
        stored |= shared
        experts = f"model.layers.{layer}.mlp.experts"
        for name, outputs, inputs in (
            ("gate_up_proj", 2 * FFN, HIDDEN),
            ("down_proj", HIDDEN, FFN),
        ):
            blocks, scales, meaning = _matrix(outputs, inputs, seed=10 * layer + len(name))
            stored |= {f"{experts}.{name}_blocks": blocks, f"{experts}.{name}_scales": scales}
            plain[f"{experts}.{name}"] = meaning
    for name, tensor in (edit or {}).items():
        stored.pop(name)
        if tensor is not None:
            stored[name] = tensor
    config = json.loads((TINY / "config.json").read_text())
    config |= {"num_hidden_layers": LAYERS, "hidden_size": HIDDEN, "intermediate_size": FFN}
    config["layer_types"] = config["layer_types"][:LAYERS]
    made = (folder / "mxfp4", folder / "plain")
    quantised: list[dict[str, Any]] = [{"quantization_config": MXFP4}, {}]
    for place, tensors, more in zip(made, (stored, plain), quantised, strict=True):
        place.mkdir()
        (place / "config.json").write_text(json.dumps({**config, **more}))
        (place / "model.safetensors").write_bytes(safetensors_of(tensors, bytes_are="U8"))
    return made


def test_numbers_and_tokens_are_those_of_the_plain_model(tmp_path: Path) -> None:
    folders = _models(tmp_path)
    opened = [open_checkpoint(folder, read_config(folder)) for folder in folders]
    for name in opened[0].names():
        np.testing.assert_array_equal(*(checkpoint.read(name) for checkpoint in opened))
    tokens = []
    for folder in folders:
        with meshc.compile(str(folder), mesh="2x2", seq=24, dtype="f32").load() as program:
            tokens.append(program.generate([1, 40, 3, 48], 8, ignore_eos=True).tokens)
    assert tokens[0] == tokens[1]
    assert len(set(tokens[0])) > 2


def test_parts_are_those_of_the_whole(tmp_path: Path) -> None:
    source = open_checkpoint(tmp := _models(tmp_path)[0], read_config(tmp)).source
    name = "model.layers.1.mlp.experts.down_proj"
    whole = source.read(name)
    np.testing.assert_array_equal(source.read(name, Part(0, 1, 3)), whole[1:3])
    np.testing.assert_array_equal(source.read(name, Part(2, 5, 40)), whole[..., 5:40])


_SCALES = "model.layers.0.mlp.experts.down_proj_scales"
_BLOCKS = "model.layers.0.mlp.experts.down_proj_blocks"


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ({_SCALES: None}, "its scales are missing"),
        ({_SCALES: np.zeros((EXPERTS, HIDDEN, 2), np.uint8)}, "not U8 [5, 64, 3]"),
        ({_SCALES: np.zeros((EXPERTS, HIDDEN, 3), np.float32)}, "its scales are F32"),
        ({_BLOCKS: np.zeros((EXPERTS, HIDDEN, 3, 8), np.uint8)}, "its blocks are U8 [5, 64, 3, 8]"),
        ({_SCALES: np.full((EXPERTS, HIDDEN, 3), 255, np.uint8)}, "a scale is no number"),
    ],
)
def test_what_cannot_be_decoded_is_refused(
    edit: dict[str, np.ndarray | None], said: str, tmp_path: Path
) -> None:
    folder, _ = _models(tmp_path, edit)
    read = lambda: open_checkpoint(folder, read_config(folder)).read("w_down")  # noqa: E731
    found, *_ = diagnosed("quantised-weights-invalid", read)
    assert said in found.message


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    folder, _ = _models(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["block_size"] = 16
    (folder / "config.json").write_text(json.dumps(config))
    found, *_ = diagnosed("config-unsupported", lambda: read_config(folder))
    assert "'block_size' of the quantisation = 16 is not known" in found.message


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
def test_transformers_reads_the_same_numbers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder, _ = _models(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        quantization_config=transformers.Mxfp4Config(dequantize=True),
    )
    experts = model.model.layers[0].mlp.experts
    source = open_checkpoint(folder, read_config(folder)).source
    for name in ("gate_up_proj", "down_proj"):
        theirs = getattr(experts, name).detach().float().numpy()
        ours = source.read(f"model.layers.0.mlp.experts.{name}")
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
def test_experts_stay_quantised_on_a_gpu(tmp_path: Path) -> None:
    """Experts lie in the memory of the GPU as files have them, and logits are those of the numbers
    that codes stand for."""
    folders, answers = _models(tmp_path), []
    kept = formats_to_keep(AS_STORED, folders[0], read_config(folders[0]), None, "cuda")
    assert {*kept} == {f"{name}=mxfp4" for name in ("w_gate", "w_up", "w_down")}
    for folder, formats in zip(folders, (kept, ()), strict=True):
        request = CompileRequest(seq=32, target="cuda", dtype="bf16", keep_quantised=formats)
        compiled = compile_loaded(load_any(str(folder), Diagnostics()), request)
        codes = {
            w["codes"] for w in json.loads(compiled.files["manifest.json"])["weights"].values()
        }
        assert ("mxfp4" in codes) == bool(formats)
        with compiled.load(backend="cuda-cpu") as program:
            answers.append(program.generate([1, 40, 3, 48], 8, ignore_eos=True))
    assert answers[0].tokens == answers[1].tokens
    found, wanted = (answer.logits for answer in answers)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-3 * np.abs(wanted).max())
