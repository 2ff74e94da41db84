"""Whole decode steps in emitted CSL: tokens of transformers, from the simulated wafer."""

import json

import pytest
from csl_decoding import TINY, Decoder

pytestmark = pytest.mark.models


@pytest.mark.parametrize(
    ("model", "mesh", "arch", "kv"),
    [
        ("llama-3h1", "3x2", "wse3", "cyclic"),
        ("llama-9h3-tied", "2x3", "wse2", "cyclic"),
    ],
)
def test_tokens_of_transformers(model, mesh, arch, kv, tmp_path, monkeypatch):
    facts = json.loads((TINY / model / "expected.json").read_text())
    wanted = facts["tokens"][:4]
    decoder = Decoder(
        model, tmp_path, monkeypatch, device=arch, mesh=mesh, kv=kv, dtype="f32", seq=24
    )
    assert decoder.generate(facts["prompt_ids"], len(wanted)) == wanted
