"""A model of two kinds of layers, one and then two, with weights and sizes of their own.

Interpreters and emitted programs are judged by NumPy in float64, which sees all tokens at once.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mesh_programs import MeshProgram, mesh_program
from reduced import only

import meshc
from meshc.cli import main
from meshc.frontend.language import elaborate, parse_model
from meshc.interp.check import Session
from meshc.support.spans import Source

EPS, THETA = 1e-5, 10000.0
PROMPT, COUNT = [3, 17, 8, 5, 9], 4
SIZES = {"E": 24, "H": 6, "G": 2, "D": 4, "K": 3, "C": 6, "F": 20, "W": 36, "V": 32}
LAYERS = {"first": 1, "rest": 2}
MODEL = """use blocks
model staged({sizes}) {{
  param embedding[V, E], final_norm[E], lm_head[E, V]
  main(tokens[B, L]) -> [B, L, V] {{
    x = embed(tokens, embedding)
    repeat {first} {{
      param attn_norm_a[E], wq_a[E, H, D], wk_a[E, G, D], wv_a[E, G, D], wo_a[H, D, E]
      param ffn_norm_a[E], gate_a[E, W], up_a[E, W], down_a[W, E]
      x = llama_attention(x, attn_norm_a, wq_a, wk_a, wv_a, wo_a, theta = 10000.0)
      x = llama_mlp(x, ffn_norm_a, gate_a, up_a, down_a)
    }}
    repeat {rest} {{
      param attn_norm_b[E], wq_b[E, {H}, {D}], wk_b[E, {G}, {D}], wv_b[E, {G}, {D}]
      param wo_b[{H}, {D}, E]
      param ffn_norm_b[E], gate_b[E, F], up_b[E, F], down_b[F, E]
      h = rms_norm(x, attn_norm_b)
      q = rope(h @ wq_b, theta = 10000.0)
      k = rope(h @ wk_b, theta = 10000.0)
      x = x + {attention}(q, k, h @ wv_b) @ wo_b
      h = rms_norm(x, ffn_norm_b)
      x = x + (gelu(h @ gate_b, form = tanh) * (h @ up_b)) @ down_b
    }}
    return x when prefill
    return rms_norm(x, final_norm) @ lm_head
  }}
}}
"""

SAME = {"H": "H", "G": "G", "D": "D", "attention": "gqa_attention"}
OTHER = {"H": "K", "G": "K", "D": "C", "attention": "mha_attention"}


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def norm(x, gain):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + EPS) * gain


def rotated(x):
    """Pairs of lanes half a head apart, [tokens, heads, lanes]."""
    half = x.shape[-1] // 2
    turn = np.arange(len(x))[:, None, None] * THETA ** (-np.arange(half) / half)
    pair = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * turn)
    return np.concatenate([pair.real, pair.imag], -1)


def layer(x, w, kind, activation):
    """One layer of the kind ``a`` or ``b``; ``w`` are its weights."""
    h = norm(x, w[f"attn_norm_{kind}"])
    q, k, v = (np.einsum("le,ehd->lhd", h, w[f"w{n}_{kind}"]) for n in "qkv")
    share = q.shape[1] // k.shape[1]
    q, k, v = rotated(q), np.repeat(rotated(k), share, 1), np.repeat(v, share, 1)
    scores = np.einsum("lhd,mhd->hlm", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    x = x + np.einsum("hlm,mhd,hde->le", shares, v, w[f"wo_{kind}"])
    h = norm(x, w[f"ffn_norm_{kind}"])
    return x + (activation(h @ w[f"gate_{kind}"]) * (h @ w[f"up_{kind}"])) @ w[f"down_{kind}"]


def logits(ids, weights, layers):
    """Of every token of ``ids``."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    x = w["embedding"][ids]
    for kind, count, activation in zip("ab", layers.values(), (silu, gelu), strict=True):
        for n in range(count):
            own = {name: array[n] for name, array in w.items() if name.endswith(f"_{kind}")}
            x = layer(x, own, kind, activation)
    return norm(x, w["final_norm"]) @ w["lm_head"]


SHAPES = {
    "embedding": "V E", "final_norm": "E", "lm_head": "E V",
    "attn_norm_a": "first E", "wq_a": "first E H D", "wk_a": "first E G D", "wv_a": "first E G D",
    "wo_a": "first H D E", "ffn_norm_a": "first E", "gate_a": "first E W", "up_a": "first E W",
    "down_a": "first W E",
    "attn_norm_b": "rest E", "wq_b": "rest E H D", "wk_b": "rest E G D", "wv_b": "rest E G D",
    "wo_b": "rest H D E", "ffn_norm_b": "rest E", "gate_b": "rest E F", "up_b": "rest E F",
    "down_b": "rest F E",
}  # fmt: skip


def text(layers=LAYERS, heads=SAME):
    """The model; ``layers`` are the dims of the two loops and their extents."""
    sizes = ", ".join(f"{name}={extent}" for name, extent in {**SIZES, **layers}.items())
    first, *others = layers
    return MODEL.format(sizes=sizes, first=first, rest=others[0] if others else first, **heads)


def random_weights(layers, heads=SAME):
    rng = np.random.default_rng(6)
    extents = {**SIZES, **layers}
    other = extents | {d: SIZES[heads[d]] for d in "HGD"}

    def drawn(name, dims):
        own = other if name.endswith("_b") else extents
        return rng.normal(0, 0.4, [own[d] for d in dims.split()]).astype(np.float32)

    return {name: drawn(name, dims) for name, dims in SHAPES.items()}


def staged(folder: Path, mesh: str, counts=(1, 2), names=("first", "rest"), **options):
    """The model on ``mesh``, with loops of ``counts`` layers over dims ``names``; its weights."""
    path = folder / "staged.mesh"
    path.write_text(text(dict(zip(names, counts, strict=True))))
    weights = random_weights(dict(zip(("first", "rest"), counts, strict=True)))
    (folder / "weights").mkdir()
    for name, array in weights.items():
        np.save(folder / "weights" / f"{name}.npy", array)
    capacity = len(PROMPT) + COUNT
    return mesh_program(str(path), mesh, capacity, folder / "weights", **options), weights


def check(program: MeshProgram, weights: dict, folder: Path, counts=(1, 2)) -> None:
    layers = dict(zip(("first", "rest"), counts, strict=True))
    tokens, found = program.run(folder, PROMPT, COUNT)
    wanted = logits([*PROMPT, *tokens[:-1]], weights, layers)[len(PROMPT) - 1 :]
    found = found.reshape(wanted.shape)
    np.testing.assert_allclose(found, wanted, atol=2e-5 * np.abs(wanted).max())
    assert tokens == wanted.argmax(-1).tolist()
    assert program.interpret(PROMPT, 2) == tokens[:2]


@pytest.mark.parametrize("mesh", only(("1x1", "2x2", "3x4", "2x6"), "3x4"))
def test_both_phases_agree_with_float64(mesh: str, tmp_path: Path) -> None:
    program, weights = staged(tmp_path, mesh)
    check(program, weights, tmp_path)


def test_a_device_whose_cores_hold_both_kinds(tmp_path: Path) -> None:
    program, weights = staged(tmp_path, "2x2", device="wse2")
    check(program, weights, tmp_path)


@pytest.mark.parametrize("policy", only(("shift", "concat", "cyclic"), "concat"))
def test_caches_of_both_kinds_of_layers(policy: str, tmp_path: Path) -> None:
    passes = {"shift-kv-cache": f"shift-kv-cache{{policy={policy}}}"}
    program, weights = staged(tmp_path, "3x2", passes=passes)
    check(program, weights, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(2, 1), (3, 2)])
def test_any_number_of_layers_of_each_kind(counts: tuple[int, int], tmp_path: Path) -> None:
    program, weights = staged(tmp_path, "2x3", counts)
    check(program, weights, tmp_path, counts)


def test_loops_over_one_dim(tmp_path: Path) -> None:
    program, weights = staged(tmp_path, "2x3", (2, 2), ("layers", "layers"))
    check(program, weights, tmp_path, (2, 2))


def test_a_batch_of_prompts(tmp_path: Path) -> None:
    prompts = [PROMPT, [7, 1], [30, 2, 2, 11]]
    path = tmp_path / "staged.mesh"
    path.write_text(text())
    compiled = meshc.compile(path, mesh="2x2", seq=16, dtype="f32", batch=len(prompts))
    weights = random_weights(LAYERS)
    for ids, answer in zip(prompts, compiled.load(weights).generate_all(prompts, 3), strict=True):
        wanted = logits([*ids, *answer.tokens[:-1]], weights, LAYERS)[len(ids) - 1 :]
        np.testing.assert_allclose(answer.logits, wanted, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("heads", [SAME, OTHER])
def test_the_graph_interpreter(heads: dict[str, str]) -> None:
    weights = random_weights(LAYERS, heads)
    model = parse_model(Source("staged.mesh", text(heads=heads)))
    session = Session(elaborate(model, "decode", seq=len(PROMPT)), weights)
    wanted = np.array([])
    for step, token in enumerate(PROMPT):
        (got,) = session.step({"tokens": np.array([[token]])}, {"pos": step})
        wanted = logits(PROMPT[: step + 1], weights, LAYERS)[-1]
        np.testing.assert_allclose(got[0, 0], wanted, rtol=1e-9, atol=1e-9)


def refused(folder: Path, capsys, model: str, *options: str) -> str:
    """What ``meshc compile`` says when it refuses the model."""
    path = folder / "staged.mesh"
    path.write_text(model)
    words = ["compile", str(path), "--seq", "16", "--compile-to", "tile", "-o", "-", *options]
    assert main(words) == 1
    return capsys.readouterr().err


def test_other_heads_in_the_second_kind_are_refused(tmp_path: Path, capsys) -> None:
    said = refused(tmp_path, capsys, text(heads=OTHER), "--mesh", "2x2")
    assert "give all layers of the model the same dims of heads and lanes" in said


def test_the_first_layers_of_two_kinds_are_refused(tmp_path: Path, capsys) -> None:
    model = text({"first": 1, "layers": 2})
    said = refused(tmp_path, capsys, model, "--mesh", "2x2", "--layers", "1")
    assert "model 'staged' has 2 loops over layers" in said


def test_two_kinds_that_one_region_does_not_hold_are_refused(tmp_path: Path, capsys) -> None:
    model = text({"first": 9, "rest": 20})
    said = refused(
        tmp_path, capsys, model, "--mesh", "2x1", "--target", "python", "--device", "wse2"
    )
    assert "9 + 20 layers need" in said
    assert "layers of 2 loops are not dealt to regions" in said


def test_regions_of_two_kinds_are_refused(tmp_path: Path) -> None:
    passes = {"split-regions": "split-regions{regions=2}"}
    with pytest.raises(meshc.MeshcError, match="one loop holds all of them"):
        staged(tmp_path, "2x2", passes=passes)
