"""A layer of Llama-3.3-70B at its full width on eight ranks: a batch that reads a prompt beside
requests that decode, split and not, has the activations of the whole graph. It takes 8 GB of
memory, and a vocabulary of 512 stands for one of 128,256."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from meshc.driver import CompileRequest, graph_module, load_any
from meshc.interp.check import RandomArrays
from meshc.interp.together import rank_inputs, run_parts
from meshc.ir.clone import clone_module
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.support.diagnostics import Diagnostics

RANKS, TOKENS, REQUESTS = 8, 6, 3
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 1,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
BATCHES = [
    {"owner": [0, 0, 0, 0, 1, 1], "pos": [0, 1, 2, 3, 0, 1]},
    {"owner": [0, 1, 2, 2, 2, 0], "pos": [4, 2, 0, 1, 2, -1]},
]
"""Two prompts are read; then both go on, while a third one is read across the boundary."""


@pytest.mark.slow
def test_a_layer_at_full_width(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    loaded = load_any(str(tmp_path), Diagnostics())
    whole = graph_module(loaded, "decode", CompileRequest(device="ideal", seq=8))
    batch = f"batch-tokens{{tokens={TOKENS},requests={REQUESTS}}}"
    steps = parse_pipeline(f"canonicalize,eliminate-transpose,{batch}")
    whole = PassManager(steps).run(whole)
    weights = dict(RandomArrays(whole, 1, None, ("weight",)))
    ids = [np.arange(TOKENS).reshape(TOKENS, 1) * 7 + n for n in range(len(BATCHES))]
    wanted: list[np.ndarray] = []
    for more in ("", f"tensor-parallel{{ranks={RANKS}}}", ",split-tokens{at=3}"):
        passes = more if not more.startswith(",") else f"tensor-parallel{{ranks={RANKS}}}{more}"
        module = PassManager(parse_pipeline(passes)).run(clone_module(whole))
        count = module.ranks.count if module.ranks else 1
        own = [rank_inputs(module, weights, rank) for rank in range(count)]
        held: list[dict[str, np.ndarray]] = [{} for _ in range(count)]
        for number, scalars in enumerate(BATCHES):
            given = [{**own[n], **held[n], "tokens": ids[number]} for n in range(count)]
            results = run_parts(module, given, scalars, np.float32)
            held = [{"cache_k": one[1], "cache_v": one[2]} for one in results]
            there = np.array(scalars["pos"]) >= 0
            if not more:
                wanted.append(results[0][0][there])
            for one in results:
                error = np.abs(one[0][there] - wanted[number]).max()
                assert error <= 2e-5 * np.abs(wanted[number]).max()
