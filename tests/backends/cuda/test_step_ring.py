"""The ring that a step is predicted with is the one that its kernel has."""

import re

import pytest

import meshc
from meshc.backends.cuda.step_times import step_with_full_caches

MODELS = (
    # Columns in 16 bits, and as digits beside which attention takes more; norms of heads and many
    # experts; a query head's lanes of 64; latents.
    ("llama-3-8b", "f16"),
    ("llama-3-8b", "q8_0"),
    ("qwen3-30b-a3b", "f16"),
    ("gpt-oss-20b", "f16"),
    ("deepseek-v2-lite", "f16"),
)


@pytest.mark.parametrize(("model", "form"), MODELS)
def test_the_model_knows_how_many_tiles_a_block_has_room_for(model, form):
    asked = {} if form == "f16" else {"keep_quantised": (f"all={form}",)}
    made = meshc.compile(
        model, target="cuda", device="h200", dtype="f16", phase="decode", seq=1024, **asked
    )
    (tiles,) = re.findall(r"STAGES = (\d+);", made.files["step.cu"])
    time = step_with_full_caches(made.modules["decode"])
    assert time is not None
    assert time.ring.tiles == int(tiles)
