"""Configurations of small models of every family, drawn with dice, by the names of the config
classes of transformers; ``wide`` ones have the sizes that kernels for CUDA take."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from drawn_parts import (
    Settings,
    divided,
    layer_normed,
    long_rope,
    rope,
    scaled_rope,
    sizes,
    stretched_rope,
    tied,
    whole_heads,
)

Draw = Callable[[Random, bool], Settings]
"""What draws one, ``wide`` or not."""
CONTEXT = 19
"""Tokens of a sequence; windows that are to matter are shorter."""


def _window(dice: Random) -> Settings:
    return {"sliding_window": dice.randint(2, 9)}


def _gated(dice: Random) -> Settings:
    return {"hidden_act": dice.choice(["silu", "silu", "gelu", "gelu_pytorch_tanh"])}


def _llama(dice: Random, wide: bool) -> Settings:
    biases = {f"{part}_bias": dice.choice([False, True]) for part in ("attention", "mlp")}
    whole = not wide and dice.choice([False, True])
    found = sizes(dice, wide, whole) | tied(dice) | _gated(dice) | biases
    found = divided(found, wide)
    return found | stretched_rope(dice, found)


def _mistral(dice: Random, wide: bool) -> Settings:
    found = sizes(dice, wide) | tied(dice)
    found |= stretched_rope(dice, found)
    return found | {"sliding_window": dice.choice([None, 64])}


def _qwen(dice: Random, wide: bool) -> Settings:
    found = sizes(dice, wide) | tied(dice)
    return found | stretched_rope(dice, found)


def _switched_window(dice: Random) -> Settings:
    """In layers from a number on, or in those of a list."""
    layers = dice.choice([3, 4])
    found: Settings = {"use_sliding_window": True, "num_hidden_layers": layers} | _window(dice)
    if dice.choice([False, True]):
        return found | {"max_window_layers": dice.choice([1, layers - 1])}
    slides, full = "sliding_attention", "full_attention"
    pattern = dice.choice([[slides, full], [slides, slides, full], [full, full, *[slides] * 9]])
    return found | {"layer_types": (pattern * layers)[:layers]}


def _switched_alternate(dice: Random) -> Settings:
    return {"use_sliding_window": True, "num_hidden_layers": dice.choice([2, 3])} | _window(dice)


def _gemma(dice: Random, wide: bool) -> Settings:
    found = sizes(dice, wide) | tied(dice)
    return found | stretched_rope(dice, found)


def _gemma2(dice: Random, wide: bool) -> Settings:
    found = sizes(dice, wide) | tied(dice) | scaled_rope(dice)
    return divided(found, wide) | {
        "sliding_window": 64,
        "query_pre_attn_scalar": dice.choice([6, 12, 30]),
        "attn_logit_softcapping": dice.choice([None, 1.5, 20.0]),
        "final_logit_softcapping": dice.choice([None, 2.5]),
    }


def _gemma3(dice: Random, wide: bool) -> Settings:
    ropes = [scaled_rope(dice)["rope_parameters"], rope(dice)["rope_parameters"]]
    return (
        divided(sizes(dice, wide), wide)
        | tied(dice)
        | {
            "sliding_window": 64,
            "sliding_window_pattern": dice.choice([1, 2, 3]),
            "query_pre_attn_scalar": dice.choice([6, 12, 30]),
            "final_logit_softcapping": dice.choice([None, 2.5]),
            "rope_parameters": dict(
                zip(("full_attention", "sliding_attention"), ropes, strict=True)
            ),
        }
    )


def _granite(dice: Random, wide: bool) -> Settings:
    numbers = ("embedding", "attention", "residual")
    found = _llama(dice, wide) | {f"{n}_multiplier": dice.choice([0.4, 1.5, 3.0]) for n in numbers}
    if wide:  # scores of heads of more lanes are larger
        found["attention_multiplier"] = dice.choice([0.025, 0.1, 0.2])
    return found | {"logits_scaling": dice.choice([0.5, 1.7])}


def _olmo2(dice: Random, wide: bool) -> Settings:
    found = sizes(dice, wide, whole=True) | tied(dice)
    found |= stretched_rope(dice, found)
    return found | {"attention_bias": dice.choice([False, True])}


def _phi3(dice: Random, wide: bool) -> Settings:
    found = sizes(dice, wide) | tied(dice) | {"pad_token_id": 0}
    found |= {"sliding_window": dice.choice([None, 64])}
    if dice.choice([False, True]):
        return found | rope(dice)
    # LongRoPE whose sequences are all short ones.
    found, lanes = whole_heads(found)
    half = not wide and dice.choice([False, True]) and lanes % 4 == 0
    return found | long_rope(lanes // (2 if half else 1), 64, 0.5 if half else 1.0)


def _phi3_long(dice: Random, wide: bool) -> Settings:
    found, lanes = whole_heads(sizes(dice, wide) | tied(dice) | {"pad_token_id": 0})
    return found | long_rope(lanes, 5)


def _phi3_parts(dice: Random, wide: bool) -> Settings:
    """Three lanes of four turn, and those are larger."""
    found = sizes(dice, wide) | tied(dice) | {"pad_token_id": 0}
    found |= {"head_dim": 64 if wide else 8, "sliding_window": dice.choice([None, 64])}
    found, lanes = whole_heads(found)
    found |= long_rope(lanes * 3 // 4, 64, 0.75)
    rope = found["rope_parameters"]
    assert isinstance(rope, dict)
    return found | {"rope_parameters": rope | {"attention_factor": dice.choice([0.5, 0.75])}}


def _turning(dice: Random, found: Settings, name: str) -> Settings:
    """The share of the lanes of a head that turn, which are pairs, at ``name`` and for RoPE."""
    lanes = int(str(found["hidden_size"])) // int(str(found["num_attention_heads"]))
    share = dice.choice([0.5, 1.0]) if lanes % 4 == 0 else 1.0
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": share}
    return {name: share, "rope_parameters": rope}


def _gpt_neox(dice: Random, wide: bool) -> Settings:
    found = layer_normed(dice, wide, "layer_norm_eps", shared=False) | tied(dice)
    return (
        found
        | _turning(dice, found, "rotary_pct")
        | {
            "use_parallel_residual": dice.choice([False, True]),
            "attention_bias": dice.choice([False, True]),
            "hidden_act": dice.choice(["gelu", "gelu_pytorch_tanh"]),
        }
    )


def _gpt2(dice: Random, wide: bool) -> Settings:
    heads = 2 if wide else dice.choice([1, 3, 5])
    lanes = 64 if wide else dice.randint(3, 9)
    return tied(dice) | {
        "n_embd": heads * lanes,
        "n_head": heads,
        "n_inner": dice.choice([None, 40]),
        "vocab_size": dice.randint(41, 71),
        "n_layer": dice.randint(1, 3),
        "n_positions": 64,
        "layer_norm_epsilon": dice.choice([1e-5, 1e-3]),
        "activation_function": dice.choice(["gelu_new", "gelu"]),
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _stablelm(dice: Random, wide: bool) -> Settings:
    found = layer_normed(dice, wide, "layer_norm_eps") | tied(dice)
    switches = ("use_qkv_bias", "use_parallel_residual")
    drawn_switches = {name: dice.choice([False, True]) for name in switches}
    return found | _turning(dice, found, "partial_rotary_factor") | drawn_switches


def _starcoder2(dice: Random, wide: bool) -> Settings:
    found = layer_normed(dice, wide, "norm_epsilon") | tied(dice) | rope(dice, "linear")
    return found | {"use_bias": dice.choice([False, True]), "sliding_window": None}


def _internlm2(dice: Random, wide: bool) -> Settings:
    """A llama, which whoever writes the checkpoint stores as an internlm2."""
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": dice.choice([1.5, 3.0])}
    return sizes(dice, wide, whole=True) | {"rope_parameters": rope}


def _experts(dice: Random, **names: str) -> Settings:
    """How many experts there are and how many a token is sent to, and the features of one, by what
    a config calls them."""
    count = dice.randint(2, 7)
    numbers = {"count": count, "chosen": dice.randint(1, min(count, 3))}
    numbers["features"] = dice.randint(5, 12)
    return {name: numbers[key] for key, name in names.items()}


def _mixtral(dice: Random, wide: bool) -> Settings:
    found = sizes(dice, wide) | tied(dice)
    found |= stretched_rope(dice, found)
    return found | _experts(dice, count="num_local_experts", chosen="num_experts_per_tok")


def _moe(dice: Random, wide: bool, shared_heads: bool = False) -> Settings:
    found = sizes(dice, wide) | tied(dice)
    if not wide and shared_heads:  # the heads of this family are together as wide as a row
        found["hidden_size"] = int(str(found["num_attention_heads"])) * int(str(found["head_dim"]))
    found |= stretched_rope(dice, found)
    found |= {"norm_topk_prob": dice.choice([False, True])}
    names = {"count": "num_experts", "chosen": "num_experts_per_tok"}
    return found | _experts(dice, **names, features="moe_intermediate_size")


def _qwen2_moe(dice: Random, wide: bool) -> Settings:
    found = _moe(dice, wide, True)
    return found | {"shared_expert_intermediate_size": dice.randint(5, 14)}


def _behind_dense(draw: Draw) -> Draw:
    """Three layers, of which the first one or two have no experts, or two, of which one has."""

    def behind(dice: Random, wide: bool) -> Settings:
        found = draw(dice, wide)
        while not wide and int(str(found["hidden_size"])) > 50:  # what four cores of a wafer have
            found = draw(dice, wide)
        listed = {"mlp_only_layers": dice.choice([[0], [0, 1], [1, 0, 7]]), "num_hidden_layers": 3}
        every = {"decoder_sparse_step": 2, "num_hidden_layers": 2}
        return found | dice.choice([listed, every]) | {"intermediate_size": dice.randint(7, 21)}

    return behind


def _gpt_oss(dice: Random, wide: bool) -> Settings:
    yarn = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "beta_fast": 4.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 32,
    }
    plain = {"rope_type": "default", "rope_theta": 150000.0}
    found = sizes(dice, wide) | tied(dice)
    found |= _experts(dice, count="num_local_experts", chosen="num_experts_per_tok")
    return found | {
        "sliding_window": dice.randint(2, 9),
        "swiglu_limit": dice.choice([1.25, 7.0]),
        "rope_parameters": dice.choice([yarn, plain]),
    }


def _latent(dice: Random, wide: bool) -> Settings:
    """Latent attention, dense layers alone. What transformers rotates is viewed as complex numbers,
    so that what lies in front of it has an even number of lanes."""
    heads = dice.choice([1, 2, 4] if wide else [1, 2, 3, 5])
    found = sizes(dice, wide) | {"num_attention_heads": heads, "num_key_value_heads": heads}
    del found["head_dim"]
    unit = 16 if wide else 1
    if wide:
        found["hidden_size"] = 64
    return divided(found, wide) | {
        "kv_lora_rank": dice.choice([32, 64]) if wide else 2 * dice.randint(3, 7),
        "q_lora_rank": dice.choice([None, 40 if wide else dice.randint(6, 15)]),
        "qk_nope_head_dim": 2 * unit if wide else 2 * dice.randint(2, 4),
        "qk_rope_head_dim": unit if wide else 2 * dice.randint(1, 3),
        "v_head_dim": 2 * unit if wide else dice.randint(3, 7),
        "first_k_dense_replace": found["num_hidden_layers"],
        "rope_parameters": rope(dice)["rope_parameters"],
    }


def _latent_experts(dice: Random, wide: bool) -> Settings:
    found = _latent(dice, wide) | {"first_k_dense_replace": dice.choice([0, 1])}
    found["num_hidden_layers"] = max(2, int(str(found["num_hidden_layers"])))
    names = {"count": "n_routed_experts", "chosen": "num_experts_per_tok"}
    found |= _experts(dice, **names, features="moe_intermediate_size")
    return found | {"n_shared_experts": dice.choice([1, 2])}


def _deepseek_v3(dice: Random, wide: bool) -> Settings:
    """Here transformers turns pairs without complex numbers, behind any number of lanes."""
    found = _latent_experts(dice, wide) | {
        "q_lora_rank": dice.choice([8, 14]),
        "n_routed_experts": 8,
        "num_experts_per_tok": dice.choice([2, 3]),
        "n_group": 4,
        "topk_group": dice.choice([2, 3]),
        "routed_scaling_factor": dice.choice([1.0, 1.5]),
    }
    return found if wide else found | {"qk_nope_head_dim": dice.randint(3, 8)}


def _with(draw: Draw, more: Callable[[Random], Settings]) -> Draw:
    return lambda dice, wide: draw(dice, wide) | more(dice)


def _smollm3(dice: Random, wide: bool) -> Settings:
    """With RoPE in all layers but every so many-th, by a number or a list; small ones also with it
    in all of them."""
    choices = [False] if wide else [False, True]
    biases = {f"{part}_bias": dice.choice(choices) for part in ("attention", "mlp")}
    whole = not wide and dice.choice([False, True])
    found = divided(sizes(dice, wide, whole), wide) | tied(dice) | biases
    found |= {"num_hidden_layers": dice.choice([2, 3, 4]), "pad_token_id": 0}
    skip, layers = dice.choice([1, 2] if wide else [1, 2, 3]), int(str(found["num_hidden_layers"]))
    listed = [int((n + 1) % skip != 0) for n in range(layers)]
    settings: list[Settings] = [{"no_rope_layer_interval": skip}, {"no_rope_layers": listed}]
    if not wide:
        settings.append({"no_rope_layers": [1] * layers})
    return found | stretched_rope(dice, found) | dice.choice(settings)


def _cohere(dice: Random, wide: bool) -> Settings:
    found = layer_normed(dice, wide, "layer_norm_eps")
    while not wide and int(str(found["hidden_size"])) > 60:  # what four cores of a wafer have
        found = layer_normed(dice, wide, "layer_norm_eps")
    found |= tied(dice) | scaled_rope(dice)
    found |= {"logit_scale": dice.choice([0.0625, 0.8]), "pad_token_id": 0}
    return found | {"attention_bias": dice.choice([False, True])}


def _cohere2(dice: Random, wide: bool) -> Settings:
    layers, pattern = dice.choice([2, 3, 4]), dice.choice([1, 2, 3])
    kinds = ["sliding_attention"] * (pattern - 1) + ["full_attention"]
    listed = {"layer_types": (kinds * layers)[:layers]}
    found = _cohere(dice, wide) | {"num_hidden_layers": layers, **_window(dice)}
    return found | dice.choice([{"sliding_window_pattern": pattern}, listed])


def _olmo(dice: Random, wide: bool) -> Settings:
    found = sizes(dice, wide, whole=True) | tied(dice) | scaled_rope(dice)
    del found["rms_norm_eps"]
    biased, clip = dice.choice([False, True]), dice.choice([None, 0.5, 2.0])
    return found | {"attention_bias": biased, "clip_qkv": clip}


def _nemotron(dice: Random, wide: bool) -> Settings:
    found = sizes(dice, wide) | tied(dice)
    found |= {"norm_eps": found.pop("rms_norm_eps")}
    lanes = int(str(found["head_dim"]))
    share = dice.choice([0.5, 1.0]) if lanes % 4 == 0 else 1.0
    biases = {f"{part}_bias": dice.choice([False, True]) for part in ("attention", "mlp")}
    return found | biases | scaled_rope(dice, partial_rotary_factor=share)


def _glm4(dice: Random, wide: bool) -> Settings:
    found = sizes(dice, wide) | tied(dice) | {"pad_token_id": 0}
    lanes = int(str(found["head_dim"]))
    share = dice.choice([0.5, 1.0]) if lanes % 4 == 0 else 1.0
    found |= rope(dice, partial_rotary_factor=share)
    return found | {"attention_bias": dice.choice([False, True])}


def _exaone4(dice: Random, wide: bool) -> Settings:
    found = sizes(dice, wide) | tied(dice) | scaled_rope(dice)
    layers = int(str(found["num_hidden_layers"]))
    full = {"sliding_window_pattern": None, "layer_types": ["full_attention"] * layers}
    return found | {"sliding_window": None} | full


def _exaone4_window(dice: Random) -> Settings:
    layers, pattern = dice.choice([2, 3, 4]), dice.choice([2, 3])
    kinds = ["sliding_attention"] * (pattern - 1) + ["full_attention"]
    named = dice.choice([pattern, "L" * (pattern - 1) + "G"])
    listed = {"layer_types": (kinds * layers)[:layers], "sliding_window_pattern": named}
    return _window(dice) | {"num_hidden_layers": layers} | listed


def _granitemoe(dice: Random, wide: bool) -> Settings:
    found = _granite(dice, wide)
    found.pop("mlp_bias")
    if "head_dim" in found:  # the heads of this family are together as wide as a row
        lanes = int(str(found.pop("head_dim")))
        found["hidden_size"] = lanes * int(str(found["num_attention_heads"]))
    found |= scaled_rope(dice)
    return found | _experts(dice, count="num_local_experts", chosen="num_experts_per_tok")


DRAWN: dict[tuple[str, str], Draw] = {
    ("llama", ""): _llama,
    ("mistral", ""): _mistral,
    ("mistral", "window"): _with(_mistral, _window),
    ("qwen2", ""): _qwen,
    ("qwen2", "window"): _with(_qwen, _switched_window),
    ("qwen3", ""): _qwen,
    ("qwen3", "window"): _with(_qwen, _switched_window),
    ("gemma", ""): _gemma,
    ("gemma2", ""): _gemma2,
    ("gemma2", "window"): _with(_gemma2, _window),
    ("gemma3_text", ""): _gemma3,
    ("gemma3_text", "window"): _with(_gemma3, _window),
    ("granite", ""): _granite,
    ("olmo2", ""): _olmo2,
    ("smollm3", ""): _smollm3,
    ("cohere", ""): _cohere,
    ("cohere", "head norms"): _with(_cohere, lambda _: {"use_qk_norm": True}),
    ("cohere2", "window"): _cohere2,
    ("olmo", ""): _olmo,
    ("nemotron", ""): _nemotron,
    ("glm4", ""): _glm4,
    ("exaone4", ""): _exaone4,
    ("exaone4", "window"): _with(_exaone4, _exaone4_window),
    ("granitemoe", ""): _granitemoe,
    ("phi3", ""): _phi3,
    ("phi3", "window"): _with(_phi3, _window),
    ("phi3", "parts of heads"): _phi3_parts,
    ("phi3", "long context"): _phi3_long,
    ("gpt_neox", ""): _gpt_neox,
    ("gpt2", ""): _gpt2,
    ("stablelm", ""): _stablelm,
    ("starcoder2", ""): _starcoder2,
    ("starcoder2", "window"): _with(_starcoder2, _window),
    ("internlm2", ""): _internlm2,
    ("mixtral", ""): _mixtral,
    ("mixtral", "window"): _with(_mixtral, _window),
    ("qwen2_moe", ""): _qwen2_moe,
    ("qwen2_moe", "experts"): _behind_dense(_qwen2_moe),
    ("qwen2_moe", "window"): _with(_qwen2_moe, _switched_alternate),
    ("qwen3_moe", ""): _moe,
    ("qwen3_moe", "experts"): _behind_dense(_moe),
    ("qwen3_moe", "window"): _with(_moe, _switched_alternate),
    ("gpt_oss", "window"): _gpt_oss,
    ("deepseek_v2", ""): _latent,
    ("deepseek_v2", "experts"): _latent_experts,
    ("deepseek_v3", "experts"): _deepseek_v3,
}
"""By the type of a model and what of its config changes what targets make of it."""


def drawn(family: str, case: str, number: int, wide: bool) -> Settings:
    """The ``number``-th configuration of a row of the table, always the same."""
    return DRAWN[family, case](Random(f"{family} {case} {number}"), wide)


def odd(family: str, case: str, number: int) -> Settings:
    """The ``number``-th small configuration of a row whose sizes are nothing that kernels would
    choose: heads of a few lanes, up to 20, odd widths, vocabularies up to 131."""
    dice, found = Random(f"{family} {case} odd {number}"), drawn(family, case, number, False)
    words, heads = dice.choice([17, 63, 64, 131]), found.get("num_attention_heads", 0)
    whole = found.get("head_dim", 0) * heads == found.get("hidden_size")  # type: ignore[operator]
    if "head_dim" in found and not whole and "long_factor" not in str(found):
        found |= {"head_dim": dice.choice([8, 12, 20])}
    return found | {"vocab_size": words}
