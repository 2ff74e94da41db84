"""Settings that configurations of many families share, drawn with dice: sizes, RoPE, tied heads."""

from __future__ import annotations

from random import Random

Settings = dict[str, object]


def sizes(dice: Random, wide: bool, whole: bool = False, shared: bool = True) -> Settings:
    """Those that most decoders have. Heads that are ``whole`` are together as wide as a row, and
    those that are not ``shared`` have keys of their own."""
    groups = dice.randint(1, 3) if shared else dice.choice([1, 2, 3, 5])
    heads = groups * (dice.randint(1, 3) if shared else 1)
    lanes = dice.choice([64, 64, 96, 128]) if wide else 2 * dice.randint(2, 5)
    if wide and whole:
        heads, groups = (4, 2) if shared else (2, 2)
        lanes = 64
    hidden = heads * lanes if whole else 8 * dice.randint(4, 10) if wide else dice.randint(14, 40)
    found: Settings = {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": lanes,
        "intermediate_size": 8 * dice.randint(3, 9) if wide else dice.randint(11, 41),
        "vocab_size": dice.randint(41, 71),
        "num_hidden_layers": dice.randint(1, 3),
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "rms_norm_eps": dice.choice([1e-6, 1e-3]),
    }
    if whole:
        del found["head_dim"]
    if not shared:
        del found["num_key_value_heads"]
    return found


def divided(found: Settings, wide: bool) -> Settings:
    """With rows that heads divide, as some config classes want them."""
    unit = int(str(found["num_attention_heads"])) * (8 if wide else 1)
    return found | {"hidden_size": max(1, int(str(found["hidden_size"])) // unit) * unit}


def layer_normed(dice: Random, wide: bool, name: str, shared: bool = True) -> Settings:
    """Sizes of a decoder with layer norms, whose epsilon has this ``name``."""
    found = sizes(dice, wide, whole=True, shared=shared)
    return found | {name: found.pop("rms_norm_eps")}


def tied(dice: Random) -> Settings:
    return {"tie_word_embeddings": dice.choice([False, True])}


def rope(dice: Random, *kinds: str, **more: object) -> Settings:
    """RoPE that is not scaled, or as one of ``kinds`` of those that every family has."""
    kind = dice.choice(["default", *kinds])
    found: Settings = {"rope_type": kind, "rope_theta": dice.choice([50.0, 10000.0]), **more}
    if kind != "default":
        found["factor"] = dice.choice([1.5, 4.0])
    if kind == "llama3":
        found |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        found |= {"original_max_position_embeddings": 32}
    return {"rope_parameters": found}


def scaled_rope(dice: Random, **more: object) -> Settings:
    return rope(dice, "linear", "llama3", **more)


def stretched_rope(dice: Random, found: Settings) -> Settings:
    """Of whole heads, whose scores are multiplied where rotated lanes are."""
    settings = rope(dice, "linear", "dynamic", "llama3", "yarn", "longrope")
    own = settings["rope_parameters"]
    assert isinstance(own, dict)
    if own["rope_type"] == "yarn":
        own |= {"original_max_position_embeddings": dice.choice([8, 32])}
        own |= dice.choice(
            [
                {},
                {"beta_fast": 4.0, "beta_slow": 0.5, "truncate": False},
                {"mscale": 1.5, "mscale_all_dim": 0.5},
                {"attention_factor": 0.75},
            ]
        )
    if own["rope_type"] == "longrope":
        head = int(str(found.get("head_dim") or lanes(found)))
        long = long_rope(head, 64)["rope_parameters"]
        assert isinstance(long, dict)
        own |= long | {"original_max_position_embeddings": 64}
    return settings


def lanes(found: Settings) -> int:
    return int(str(found["hidden_size"])) // int(str(found["num_attention_heads"]))


def long_rope(lanes: int, original: int, share: float = 1.0) -> Settings:
    """LongRoPE of ``lanes`` that turn, with other factors behind ``original`` tokens."""
    pairs = lanes // 2
    return {
        "original_max_position_embeddings": original,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": share,
            "short_factor": [1.0 + 0.125 * i for i in range(pairs)],
            "long_factor": [1.5 + 0.75 * i for i in range(pairs)],
        },
    }


def whole_heads(found: Settings) -> tuple[Settings, int]:
    """With rows as wide as all heads together, by which config classes count factors of LongRoPE;
    and the lanes of a head."""
    lanes = int(str(found["head_dim"]))
    return found | {"hidden_size": lanes * int(str(found["num_attention_heads"]))}, lanes
