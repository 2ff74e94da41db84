"""The model that a config describes: ``model.mesh`` of its family with the config's numbers."""

from __future__ import annotations

from meshc.frontend.checkpoints.model_config import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    ModelConfig,
    Parameter,
    RopeScaling,
    YarnScaling,
)
from meshc.frontend.families import family_named
from meshc.frontend.language import Model, library_model

_CORE_DTYPES = ("f32", "f16", "bf16")


def model_of(config: ModelConfig) -> Model:
    """The model of ``config``. Raises MeshcError (``bad-parameter``) if the family's model does not
    have a parameter that ``config`` needs."""
    return library_model(config.family, model_parameters(config))


def model_parameters(config: ModelConfig) -> dict[str, Parameter]:
    """Parameters of the family's model that spell ``config``."""
    tables = family_named(config.family).tables[config.family]
    named = {name: size.parameter for name, size in tables.sizes.items()}
    named |= {name: flag.parameter for name, flag in tables.flags.items()}
    given = {parameter: getattr(config, name) for name, parameter in named.items() if parameter}
    for kind in (tables.experts, tables.dense):
        if kind is not None:  # the others are layers of a loop of their own
            given[named["layers"]] = config.layers - int(config.own.get(kind.stage, 0))
    return {
        **given,
        "eps": config.eps,
        **({"theta": config.rope_theta} if tables.rope_types else {}),
        "activation": config.activation,
        "dtype": config.dtype if config.dtype in _CORE_DTYPES else "f32",
        **_scaling_parameters(config.rope_scaling),
        **({"scale": 1.0} if turning_lanes(config) else {}),
        **config.own,
    }


def turning_lanes(config: ModelConfig) -> tuple[int, float] | None:
    """How many lanes of a head turn, and what YaRN or LongRoPE multiplies their part of a score by;
    None where whole heads of all layers turn, whose scores are multiplied, or nothing is."""
    tables, scaling = family_named(config.family).tables[config.family], config.rope_scaling
    if not isinstance(scaling, YarnScaling | LongScaling):
        return None
    lanes = config.own.get(tables.rotary.parameter, 0) if tables.rotary else 0
    if layers_without_rope(config):
        lanes = lanes or config.head_dim
    elif isinstance(scaling, YarnScaling):
        return None
    return (int(lanes), scaling.attention_scale) if lanes else None


def layers_without_rope(config: ModelConfig) -> int:
    """Every how many-th layer turns nothing, 0 where all do."""
    skipped = family_named(config.family).tables[config.family].skipped_rope
    return int(config.own.get(skipped.parameter, 0)) if skipped else 0


def _scaling_parameters(scaling: RopeScaling | None) -> dict[str, Parameter]:
    if isinstance(scaling, LinearScaling):
        return {"scaling": "linear", "factor": scaling.factor}
    if isinstance(scaling, Llama3Scaling):
        return {
            "scaling": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position": scaling.original_max_position,
        }
    if isinstance(scaling, DynamicScaling):
        return {
            "scaling": "dynamic",
            "factor": scaling.factor,
            "original_max_position": scaling.original_max_position,
        }
    if isinstance(scaling, LongScaling):
        return {
            "scaling": "longrope",
            "short_factors": " ".join(map(repr, scaling.short)),
            "long_factors": " ".join(map(repr, scaling.long)),
            "original_max_position": scaling.original_max_position,
            "scale": scaling.attention_scale,
        }
    if isinstance(scaling, YarnScaling):
        return {
            "scaling": "yarn",
            "factor": scaling.factor,
            "low_freq_factor": scaling.beta_slow,
            "high_freq_factor": scaling.beta_fast,
            "original_max_position": scaling.original_max_position,
            "scale": scaling.attention_scale,
            "truncate": scaling.truncate,
        }
    return {}
