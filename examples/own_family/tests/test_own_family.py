"""The family of this package: what its config gives, and what it refuses."""

import json

import pytest

import meshc

SIZES = {
    "architectures": ["GlmForCausalLM"], "model_type": "glm", "hidden_size": 32, "head_dim": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 64,
    "num_hidden_layers": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    def written(**others):
        (tmp_path / "config.json").write_text(json.dumps(SIZES | others))
        return tmp_path

    return written


def test_half_of_each_head_turns(folder):
    compiled = meshc.compile(folder(), seq=16, compile_to="graph")
    turns = {op.rotated for op in compiled.modules["decode"].walk() if op.NAME == "graph.rope"}
    assert turns == {4}


def test_what_it_does_not_compute_is_refused(folder):
    with pytest.raises(meshc.MeshcError, match="glm has no bias in its MLP"):
        meshc.compile(folder(mlp_bias=True), mesh="2x2", seq=16)
