"""The float64 references of the attention blocks against modules of Hugging Face transformers.

Random sizes, weights and caches: the modules take what the kernels take, a token of each request
and what the request has cached. Other tests hold the kernels to the same references.
"""

import decode_reference
import latent_reference
import numpy as np
import pytest
from decode_reference import from_kind

from meshc.analysis.cuda.dsmem import LatentAttention
from meshc.backends.cuda.kernels.attention_block.kernel import Attention
from meshc.backends.cuda.kernels.latent_block.kernel import Latent

pytestmark = pytest.mark.oracle
# Older ones cache expanded keys and values instead of latents.
transformers = pytest.importorskip("transformers", minversion="5.20")
torch = pytest.importorskip("torch")

CLOSE = 1e-6  # of the largest value; the modules compute angles and some norms in f32


@pytest.fixture(params=range(8))
def rng(request):
    return np.random.default_rng(request.param)


def tensor(words, dtype):
    """Words of 16 bits as a float64 tensor."""
    return torch.from_numpy(np.ascontiguousarray(from_kind(words, dtype)))


def normed(norm, weight, x):
    """A norm of transformers, in float64, of a vector as the hidden states of one token."""
    norm.weight.data = weight
    return norm.double()(torch.from_numpy(x.astype(np.float64)).reshape(1, 1, -1))


def cached_rows(pool, pages, length, page):
    """What a request has cached, token by token."""
    where = np.arange(length)
    return pool[pages[where // page], ..., where % page, :]


def fill(linear, weight, bias=None):
    """Set a linear layer: ``weight`` is [inputs, outputs]."""
    linear.weight.data = weight.T.contiguous()
    if bias is not None:
        linear.bias.data = bias.reshape(-1)


def agree(found, case, reference, monkeypatch):
    """Outputs are those of a reference that keeps the new token as it is, where caches round it."""
    monkeypatch.setattr(reference, "to_kind", lambda values, dtype: values)
    monkeypatch.setattr(reference, "from_kind", unrounded)
    wanted = reference.expected(case)[0]
    assert np.abs(np.array(found) - wanted).max() <= CLOSE * np.abs(wanted).max()


def unrounded(values, dtype):
    return values if values.dtype == np.float64 else from_kind(values, dtype)


def test_grouped_attention_is_that_of_transformers(rng, monkeypatch):
    kv_heads, group = int(rng.integers(1, 4)), int(rng.choice([1, 2, 3, 8, 12]))
    head, bias = int(rng.choice([64, 96, 128, 256])), bool(rng.integers(2))
    shape = Attention(
        batch=2,
        hidden=8 * group * kv_heads * int(rng.integers(1, 5)),
        heads=group * kv_heads,
        kv_heads=kv_heads,
        head=head,
        dtype=str(rng.choice(["f16", "bf16"])),
        page=int(rng.choice([1, 16, 64])),
        epsilon=1e-5,
        scale=head**-0.5,
        bias=bias,
        out_bias=bias,
    )
    case = decode_reference.make_case(shape, [int(n) for n in rng.integers(0, 90, 2)])
    agree([grouped(case, b) for b in range(shape.batch)], case, decode_reference, monkeypatch)


def grouped(case, b):
    """Residual and output of a ``LlamaAttention`` for request ``b``."""
    s, length = case.shape, int(case.cached[b])
    config = transformers.LlamaConfig(
        hidden_size=s.hidden,
        num_attention_heads=s.heads,
        num_key_value_heads=s.kv_heads,
        head_dim=s.head,
        attention_bias=s.bias,
        rms_norm_eps=s.epsilon,
        attn_implementation="eager",
    )
    family = transformers.models.llama.modeling_llama
    module = family.LlamaAttention(config, 0).double().eval()
    # There, lanes that turn together lie half a head apart; here, side by side.
    apart = np.concatenate([np.arange(0, s.head, 2), np.arange(1, s.head, 2)])
    biases = case.bias or (None, None, None)
    weights = (case.wq, case.wk, case.wv)
    layers = (module.q_proj, module.k_proj, module.v_proj)
    for layer, w, bias, turned in zip(layers, weights, biases, (True, True, False), strict=True):
        lanes = apart if turned else slice(None)
        given = None if bias is None else tensor(bias[..., lanes], s.dtype)
        fill(layer, tensor(w[..., lanes], s.dtype).reshape(s.hidden, -1), given)
    out_bias = tensor(case.out_bias, s.dtype) if s.out_bias else None
    fill(module.o_proj, tensor(case.wo, s.dtype).reshape(-1, s.hidden), out_bias)
    past = transformers.DynamicCache()
    keys, values = (
        tensor(cached_rows(pool, case.pages[b], length, s.page), s.dtype).permute(1, 0, 2)[None]
        for pool in (case.keys, case.values)
    )
    past.update(keys[..., apart], values, 0)
    x = case.residual[b].astype(np.float64)
    norm = family.LlamaRMSNorm(s.hidden, s.epsilon)
    h = normed(norm, tensor(case.norm, s.dtype), x)
    turns = [np.tile(t[length], 2).astype(np.float64) for t in (case.cosines, case.sines)]
    angles = tuple(torch.from_numpy(t).reshape(1, 1, -1) for t in turns)
    with torch.no_grad():
        out, _ = module(h, position_embeddings=angles, attention_mask=None, past_key_values=past)
    return x + out.numpy().reshape(-1)


def test_latent_attention_is_that_of_transformers(rng, monkeypatch):
    query, rope = 16 * int(rng.integers(1, 9)), 16 * int(rng.integers(1, 5))
    sizes = LatentAttention(
        hidden=16 * int(rng.integers(4, 24)),
        heads=int(rng.choice([1, 2, 4, 16])),
        latent=64 * int(rng.integers(1, 9)),
        rope=rope,
        query=query,
        value=16 * int(rng.integers(1, 9)),
        batch=2,
        group=1,
    )
    page, dtype = int(rng.choice([1, 16, 64])), str(rng.choice(["f16", "bf16"]))
    # The norm of the latent has this epsilon there, whatever the configuration says.
    shape = Latent(sizes, dtype, page, 1e-5, 1e-6, (query + rope) ** -0.5)
    case = latent_reference.make_case(shape, [int(n) for n in rng.integers(0, 90, 2)])
    agree([latent(case, b) for b in range(2)], case, latent_reference, monkeypatch)


def latent(case, b):
    """Residual and output of a ``DeepseekV2Attention`` for request ``b``."""
    s, length, page = case.shape.sizes, int(case.cached[b]), case.shape.page
    config = transformers.DeepseekV2Config(
        hidden_size=s.hidden,
        num_attention_heads=s.heads,
        kv_lora_rank=s.latent,
        q_lora_rank=None,
        qk_nope_head_dim=s.query,
        qk_rope_head_dim=s.rope,
        v_head_dim=s.value,
        rms_norm_eps=case.shape.epsilon,
        attn_implementation="eager",
    )
    family = transformers.models.deepseek_v2.modeling_deepseek_v2
    module = family.DeepseekV2Attention(config, 0).double().eval()
    w = {name: tensor(words, case.shape.dtype) for name, words in case.weights.items()}
    fill(module.q_proj, torch.cat([w["wq"], w["wq_rope"]], 2).reshape(s.hidden, -1))
    fill(module.kv_a_proj_with_mqa, torch.cat([w["w_latent"], w["w_rope"]], 1))
    expand = torch.cat([w["w_uk"].permute(2, 1, 0), w["w_uv"]], 2)
    fill(module.kv_b_proj, expand.reshape(s.latent, -1))
    fill(module.o_proj, w["wo"].reshape(-1, s.hidden))
    module.kv_a_layernorm.weight.data = w["latent_norm"]
    past = transformers.DynamicCache()
    rows = cached_rows(case.latents, case.pages[b], length, page)
    latents, turned = tensor(rows, case.shape.dtype)[None, None].split([s.latent, s.rope], -1)
    past.update(latents, turned, 0)
    x = case.residual[b].astype(np.float64)
    norm = family.DeepseekV2RMSNorm(s.hidden, case.shape.epsilon)
    h = normed(norm, w["norm"], x)
    turns = torch.complex(
        *(torch.from_numpy(t[length].astype(np.float64)) for t in (case.cosines, case.sines))
    )
    with torch.no_grad():
        out, _ = module(
            h,
            attention_mask=None,
            past_key_values=past,
            position_embeddings=turns.reshape(1, 1, -1),
        )
    return x + out.numpy().reshape(-1)
