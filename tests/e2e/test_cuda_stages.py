"""Models whose layers are of two kinds, one loop after the other, as CUDA kernels in the executor.

The judge is NumPy in float64, which sees all tokens at once and shares no code with the compiler.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from meshc.backends.cuda import CpuMachine, LanguageModel, ahead, from_json
from meshc.backends.cuda.executor import CXX
from meshc.backends.cuda.steps import step_program
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.ir.ops import graph
from meshc.support.diagnostics import Diagnostics, MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

HIDDEN, HEAD, WORDS, EPS = 64, 64, 40, 1e-5
PROMPT, FOLLOWING = [3, 17, 0, 39, 8], [39, 5, 21]


@dataclass(frozen=True)
class Kind:
    """Layers of one kind: how many, their heads, heads of keys, features, angles, and whether
    the feed-forward layer is gated."""

    layers: int
    heads: int
    kv_heads: int
    features: int
    theta: float
    gated: bool = True

    def text(self, n: int) -> str:
        """The loop of these layers, the ``n``-th of the model."""
        keys = "G" if self.heads > self.kv_heads else "H"
        names = ["n1", "wq", "wk", "wv", "wo", "n2", "w1", "w2", "w3", "H", "G", "F", "N"]
        gate = "silu(h @ w1) * (h @ w3)" if self.gated else "silu(h @ w1)"
        found = f"""    repeat N {{
      param n1[E], wq[E, H, D], wk[E, {keys}, D], wv[E, {keys}, D], wo[H, D, E]
      param n2[E], w1[E, F], w2[F, E]{", w3[E, F]" if self.gated else ""}
      h = rms_norm(x, n1)
      q = rope(h @ wq, theta = {self.theta})
      keys = append(cache.k, rope(h @ wk, theta = {self.theta}))
      values = append(cache.v, h @ wv)
      x = x + softmax(q @ transpose(keys) / sqrt(D), mask = causal) @ values @ wo
      h = rms_norm(x, n2)
      x = x + ({gate}) @ w2
    }}
"""
        return re.sub(rf"\b({'|'.join(names)})\b", rf"\1_{n}", found)

    def weights(self, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Random weights of all layers by their names."""
        shapes = {
            "n1": (HIDDEN,), "wq": (HIDDEN, self.heads, HEAD), "wk": (HIDDEN, self.kv_heads, HEAD),
            "wv": (HIDDEN, self.kv_heads, HEAD), "wo": (self.heads, HEAD, HIDDEN), "n2": (HIDDEN,),
            "w1": (HIDDEN, self.features), "w2": (self.features, HIDDEN),
        }  # fmt: skip
        if self.gated:
            shapes["w3"] = shapes["w1"]
        return {f"{name}_{n}": rounded(rng, (self.layers, *s)) for name, s in shapes.items()}

    def layer(self, x, w):
        """The residual stream [tokens, hidden] behind a layer with the weights ``w``."""
        h = norm(x, w["n1"])
        q, k, v = (np.einsum("le,ehd->lhd", h, w[name]) for name in ("wq", "wk", "wv"))
        q, k = (rotated(part, self.theta) for part in (q, k))
        k, v = (np.repeat(part, self.heads // self.kv_heads, 1) for part in (k, v))
        scores = np.einsum("lhd,mhd->hlm", q, k) / np.sqrt(HEAD)
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        x = x + np.einsum("hlm,mhd,hde->le", shares, v, w["wo"])
        h = norm(x, w["n2"])
        inner = h @ w["w1"]
        inner = inner / (1 + np.exp(-inner))
        return x + (inner * (h @ w["w3"]) if self.gated else inner) @ w["w2"]


def rounded(rng, shape):
    return (0.2 * rng.standard_normal(shape)).astype(np.float16).astype(np.float64)


def norm(x, gain):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + EPS) * gain


def rotated(x, theta):
    """Pairs of lanes half a head apart, [tokens, heads, lanes]."""
    half = x.shape[-1] // 2
    angle = np.arange(len(x))[:, None, None] * theta ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def text_of(kinds):
    sizes = {"E": HIDDEN, "D": HEAD, "V": WORDS}
    for n, kind in enumerate(kinds):
        sizes |= {f"H_{n}": kind.heads, f"F_{n}": kind.features, f"N_{n}": kind.layers}
        if kind.heads > kind.kv_heads:
            sizes[f"G_{n}"] = kind.kv_heads
    shown = ", ".join(f"{name}={extent}" for name, extent in sizes.items())
    shares = "".join(
        f"  heads H_{n} share G_{n}\n" for n, k in enumerate(kinds) if k.heads > k.kv_heads
    )
    return f"""use blocks
model stages({shown}) {{
{shares}  param embedding[V, E], final_norm[E], lm_head[E, V]
  main(tokens[B, L]) -> [B, L, V] {{
    x = embed(tokens, embedding)
{"".join(kind.text(n) for n, kind in enumerate(kinds))}    return x when prefill
    return rms_norm(x, final_norm) @ lm_head
  }}
}}
"""


def weights_of(kinds):
    rng = np.random.default_rng(5)
    shapes = {"embedding": (WORDS, HIDDEN), "final_norm": (HIDDEN,), "lm_head": (HIDDEN, WORDS)}
    found = {name: rounded(rng, shape) for name, shape in shapes.items()}
    for n, kind in enumerate(kinds):
        found |= kind.weights(n, rng)
    return found


def expected(kinds, weights, ids):
    """Logits of every token of ``ids``, in float64."""
    x = weights["embedding"][ids]
    for n, kind in enumerate(kinds):
        for layer in range(kind.layers):
            end = f"_{n}"
            own = {
                name.removesuffix(end): w[layer] for name, w in weights.items() if end in name[-2:]
            }
            x = kind.layer(x, own)
    return norm(x, weights["final_norm"]) @ weights["lm_head"]


def compiled(folder: Path, kinds, **options):
    (folder / "stages.mesh").write_text(text_of(kinds))
    report = Diagnostics()
    request = CompileRequest(target="cuda", dtype="f16", seq=64, **options)
    return compile_loaded(load_any(str(folder / "stages.mesh"), report), request, (), report)


DENSE, WIDE = Kind(1, 2, 2, 96, 10000.0), Kind(2, 2, 2, 160, 10000.0)
OTHER = Kind(2, 4, 2, 160, 500.0, gated=False)


@pytest.mark.parametrize(
    ("kinds", "room", "options"),
    [
        ((DENSE, WIDE), False, {"cluster": 2}),
        ((WIDE, DENSE, OTHER), True, {"cluster": 1}),
    ],
    ids=["other features", "three stages, other heads, angles and activation"],
)
def test_prompt_and_steps_agree_with_float64(kinds, room, options, tmp_path, monkeypatch):
    """Without ``room`` beside each other kernels prefetch what the next one reads."""
    monkeypatch.setattr(ahead, "_fit_together", lambda *_: room)
    result = compiled(tmp_path, kinds, **options)
    program, weights = from_json(result.files["manifest.json"]), weights_of(kinds)
    assert [stage.layers for stage in program.stages] == [kind.layers for kind in kinds]
    model = LanguageModel(program, CpuMachine(program.kernels, result.files), weights)
    ids = [*PROMPT, *FOLLOWING]
    wanted = expected(kinds, weights, ids)[len(PROMPT) - 1 :]
    found = [model.prefill(PROMPT)]
    for position, token in enumerate(FOLLOWING, start=len(PROMPT)):
        found.append(model.step([token], [position])[0])
    error = np.abs(np.array(found) - wanted).max(-1) / np.abs(wanted).max(-1)
    assert error.max() <= 2.0**-10
    # The same tokens by decode steps alone.
    found = [model.step([token], [position])[0] for position, token in enumerate(ids)]
    wanted = expected(kinds, weights, ids)
    error = np.abs(np.array(found) - wanted).max(-1) / np.abs(wanted).max(-1)
    assert error.max() <= 2.0**-10


def test_stages_share_kernels_and_tables_that_are_the_same(tmp_path):
    program = from_json(compiled(tmp_path, (DENSE, WIDE)).files["manifest.json"])
    assert {"attention_block", "ffn_inner", "ffn_inner_2"} <= program.kernels.keys()
    assert "attention_block_2" not in program.kernels
    assert len(program.frequencies) == 1
    assert program.buffers["keys"].shape[0] == 1 and program.buffers["keys_2"].shape[0] == 2
    assert program.weights["down_2"].sources == ("w2_1",)
    program = from_json(compiled(tmp_path, (DENSE, OTHER)).files["manifest.json"])
    assert "attention_block_2" in program.kernels and len(program.frequencies) == 2
    assert program.stages[1].launches[0].arguments[-2:] == ("cosines_2", "sines_2")


def test_what_is_prefetched_behind_a_stage_is_of_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(ahead, "_fit_together", lambda *_: False)
    program = from_json(compiled(tmp_path, (WIDE, DENSE)).files["manifest.json"])
    last = [
        launch.arguments[-1] for launch, _ in program.launches() if "ffn_outer" in launch.kernel
    ]
    assert last == ["qkv[1]", "qkv_2[0]", ""]
    # Stages of other heads deal their weights out in another way than the text of a kernel says.
    program = from_json(compiled(tmp_path, (WIDE, OTHER)).files["manifest.json"])
    last = [
        launch.arguments[-1] for launch, _ in program.launches() if "ffn_outer" in launch.kernel
    ]
    assert last[:2] == ["qkv[1]", ""]


def test_a_cache_of_two_loops_is_refused(tmp_path):
    """No model in the language shares one; a graph that is written by hand may."""
    module = compiled(tmp_path, (WIDE, WIDE)).modules["decode"]
    first, second = (op for op in module.function.body.ops if isinstance(op, graph.Repeat))
    states = {param.value for param in module.function.params if param.role == "state"}
    mine = next(n for n, value in enumerate(second.operands) if value in states)
    second.operands[mine] = next(value for value in first.operands if value in states)
    with pytest.raises(MeshcError, match=r"cuda-graph.*share the cache"):
        step_program(module, "stages", 16)
