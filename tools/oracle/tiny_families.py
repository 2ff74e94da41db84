"""Tiny random models of families that are no llamas, saved by Hugging Face transformers.

Usage: python tools/oracle/tiny_families.py [tests/data]

What a directory holds is in ``tiny_models.py``, which makes them.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from tiny_models import TinyModel, make
from tiny_models import _sizes as sizes

_PLACE = "tiny_families"


def _model(
    name: str, family: str, settings: dict[str, object], dtype: torch.dtype = torch.float32
) -> TinyModel:
    return TinyModel(name, family, settings, dtype, place=_PLACE)


def _long_rope(pairs: int, **more: object) -> dict[str, object]:
    """LongRoPE with factors for ``pairs``, which all differ."""
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.125 * i for i in range(pairs)],
        "long_factor": [1.5 + 0.75 * i for i in range(pairs)],
        **more,
    }


def _phi3(common: dict[str, object], **more: object) -> dict[str, object]:
    return {**common, "pad_token_id": 0, **more}


def _full(hidden: int, heads: int, ffn: int, vocab: int, layers: int) -> dict[str, object]:
    """The sizes of a decoder whose heads have keys of their own."""
    found = sizes(hidden, heads, heads, hidden // heads, ffn, vocab, layers)
    return {k: v for k, v in found.items() if k not in ("num_key_value_heads", "head_dim")}


MODELS = (
    _model(
        "phi3-5h1-window",
        "phi3",
        _phi3(sizes(30, 5, 1, 6, 37, 53, 3), sliding_window=5),
    ),
    _model(
        "phi3-4h2-long-bf16",
        "phi3",
        _phi3(
            sizes(24, 4, 2, 6, 31, 47, 2),
            rope_parameters=_long_rope(3),
            original_max_position_embeddings=5,
            tie_word_embeddings=True,
        ),
        torch.bfloat16,
    ),
    _model(
        "phi3-3h3-short-partial",
        "phi3",
        _phi3(
            sizes(24, 3, 3, 8, 29, 43, 2),
            rope_parameters=_long_rope(2, partial_rotary_factor=0.5, attention_factor=1.0),
            original_max_position_embeddings=64,
            sliding_window=4,
        ),
    ),
    _model("gpt_neox-5h-parallel", "gpt_neox", {**_full(40, 5, 31, 53, 3), "rotary_pct": 0.25}),
    _model(
        "gpt_neox-3h-serial-bf16",
        "gpt_neox",
        {
            **_full(36, 3, 26, 47, 2),
            "rotary_pct": 0.5,
            "use_parallel_residual": False,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "hidden_act": "gelu_pytorch_tanh",
        },
        torch.bfloat16,
    ),
    # The family that docs/families.md adds.
    TinyModel(
        "glm-6h2",
        "glm",
        {**sizes(20, 6, 2, 8, 27, 59, 2), "pad_token_id": 0, "partial_rotary_factor": 0.5},
        place="tiny_unshipped",
    ),
)


def main(arguments: list[str]) -> None:
    """Write every model under the folder in ``arguments``, or where the tests read them."""
    folder = Path(arguments[0] if arguments else "tests/data")
    for model in MODELS:
        make(model, folder / model.place, seed=zlib.crc32(model.name.encode()))


if __name__ == "__main__":
    main(sys.argv[1:])
