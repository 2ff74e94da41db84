"""Weights that torch has in memory: what is compiled of them is what is compiled of their files."""

from __future__ import annotations

from dataclasses import replace

import pytest

WORD = "the extra is not installed: pip install 'meshc[torch]'"
torch = pytest.importorskip("torch", reason=WORD)
transformers = pytest.importorskip("transformers", reason=WORD)

import meshc.torch  # noqa: E402
from meshc.driver.models import load_any  # noqa: E402
from meshc.driver.weights import open_weights  # noqa: E402
from meshc.support.diagnostics import Diagnostics, MeshcError  # noqa: E402
from meshc.torch.weights import model_in_memory  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]

SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 61,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
KINDS = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {},
    "mixtral": EXPERTS,
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "phi3": {"pad_token_id": 0, "eos_token_id": 2},
}
IDS = [[5, 17, 42, 3]]


def network(kind, dtype=torch.float32, **changes):
    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(kind, **SIZES, **KINDS[kind], **changes)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape) * 0.2)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_in_memory_are_those_of_the_files(kind, dtype, tmp_path):
    """By their names in meshc, to the last bit, whether they are decoded or taken as they stand:
    also where transformers holds several tensors of files together."""
    model, report = network(kind, dtype), Diagnostics()
    model.save_pretrained(tmp_path)
    loaded, tensors = model_in_memory(model, None, report)
    config = load_any(str(tmp_path), report).config
    assert replace(loaded.config, name=config.name) == config
    files = open_weights(tmp_path, config, None, report)
    assert tensors.checkpoint.names() == files.checkpoint.names()
    for name in files.checkpoint.names():
        assert (tensors[name] == files[name]).all()
        held, wanted = tensors.stored(name), files.stored(name)
        if not files.checkpoint.is_per_layer(name):
            held, wanted = [held], [wanted]
        for layer in range(len(files[name]) if files.checkpoint.is_per_layer(name) else 1):
            assert held[layer].dtype == wanted[layer].dtype
            assert (held[layer] == wanted[layer]).all()


def test_no_file_says_what_weights_in_memory_are():
    """So packed ones are not kept in files, where weights of another moment would be found."""
    _, tensors = model_in_memory(network("llama"), None, Diagnostics())
    assert tensors.stamp() is None


def test_the_model_is_compiled_as_it_is_now(tmp_path):
    """Its directory, its content in memory, and what became of it since."""
    model = network("qwen2")
    model.save_pretrained(tmp_path)
    first = compiled(tmp_path)
    assert torch.equal(compiled(model)(torch.tensor(IDS)).logits, first(torch.tensor(IDS)).logits)
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
    wanted = -first(torch.tensor(IDS)).logits
    assert torch.equal(compiled(model)(torch.tensor(IDS)).logits, wanted)
    assert torch.equal(first(torch.tensor(IDS)).logits, -wanted)


def test_a_directory_says_how_texts_are_generated(tmp_path):
    model = network("llama", eos_token_id=7)
    model.generation_config.max_new_tokens = 5
    model.generation_config.eos_token_id = 60
    model.save_pretrained(tmp_path)
    for given in (tmp_path, str(tmp_path), model):
        found = compiled(given)
        assert found.generation_config.max_new_tokens == 5
        assert found.generation_config.eos_token_id == 60
        assert found.config.eos_token_id == 7


def compiled(model, **flags):
    return meshc.torch.compile(model, backend="cuda-cpu", seq=32, **flags)


def test_a_head_that_is_no_longer_the_embedding_is_used():
    model = network("llama")
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * -1)
    loaded, tensors = model_in_memory(model, None, Diagnostics())
    assert not loaded.config.tied_embeddings
    assert (tensors["lm_head"] == model.lm_head.weight.detach().T.numpy()).all()


def test_layers_are_the_first_ones():
    model = network("llama")
    whole = compiled(model, layers=1)
    assert len(whole.new_cache()) == 1 == whole.config.num_hidden_layers
    model.model.layers = model.model.layers[:1]
    model.config.num_hidden_layers = 1
    ids = torch.tensor(IDS)
    assert torch.equal(whole(ids).logits, compiled(model)(ids).logits)


def refused(model, words, **flags):
    with pytest.raises(MeshcError) as refusal:
        compiled(model, **flags)
    assert words in str(refusal.value)


def test_what_cannot_be_compiled_is_refused_in_words(tmp_path):
    model = network("llama")
    refused(tmp_path / "nothing", "is no directory")
    refused("smollm2-135m", "is no directory")
    (tmp_path / "config.json").write_text('{"model_type": "none"}')
    refused(tmp_path, "transformers reads no model")
    refused(model, "another target", target="python")
    refused(model, "another gpus", gpus=2)
    refused(model, "takes no argument 'sek'", sek=3)
    refused(model, "3 layers", layers=3)
    refused(model.double(), "float64, which meshc does not read")
    refused(network("llama").to("meta"), "nothing is in memory")
    other = network("llama")
    other.model.layers[0].mlp = torch.nn.Identity()
    refused(other, "lacks 3 of")
    quantised = network("llama")
    quantised.config.quantization_config = {"quant_method": "gptq", "bits": 4}
    refused(quantised, "quantised in memory")


def test_a_backend_of_another_target_is_refused():
    with pytest.raises(MeshcError, match="csl-sim"):
        meshc.torch.compile(network("llama"), backend="csl-sim", seq=32)
