"""Tiny random models of families that are no llamas, saved by Hugging Face transformers.

Usage: python tools/oracle/tiny_families.py [tests/data]

What a directory holds is in ``tiny_models.py``, which makes them.
"""

from __future__ import annotations

import sys
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
    for number, model in enumerate(MODELS):
        make(model, folder / model.place, seed=number)


if __name__ == "__main__":
    main(sys.argv[1:])
