"""From what a person types as MODEL to a model of the language, with its config if it has one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from meshc.frontend.language import Model, elaborate, library_model, load_model, phases
from meshc.frontend.models import (
    LatentSizes,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeScaling,
    YarnScaling,
    catalogue_config,
    catalogue_names,
    config_from_gguf,
    read_config,
)
from meshc.ir.module import Module
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.files import read_text
from meshc.verify.given import read_module

Parameter = int | float | bool | str

_IR_LIMIT_BYTES = 64 << 20
_CORE_DTYPES = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class LoadedModel:
    """A model and where it came from.

    ``config`` is None for a ``.mesh`` file. ``weights`` is the checkpoint that MODEL itself names
    (a GGUF file, a Hugging Face directory), or None. A ``.meshir`` file has a ``module`` of some
    level and no ``model``.
    """

    name: str
    model: Model | None
    config: ModelConfig | None
    weights: Path | None = None
    module: Module | None = None

    def phases(self) -> tuple[str, ...]:
        """Phases the model has: prefill and decode, or only main."""
        return phases(self.model) if self.model is not None else ("main",)

    def graph(self, phase: str, seq: int | None, layers: int | None) -> Module:
        """The graph-level module of ``phase``."""
        assert self.model is not None
        return elaborate(self.model, phase, seq=seq, layers=layers)


def load_any(text: str, report: Diagnostics) -> LoadedModel:
    """The model that ``text`` names: a ``.mesh``, ``.meshir`` or ``.gguf`` file, a Hugging Face
    directory or ``config.json``, or a built-in one. Raises what its frontend raises, and
    ``unknown-model``.
    """
    path = Path(text)
    if path.suffix == ".mesh":
        return LoadedModel(path.stem, load_model(path, report), None)
    if path.suffix == ".meshir":
        module = read_module(read_text(path, _IR_LIMIT_BYTES))
        return LoadedModel(path.stem, None, None, module=module)
    if path.suffix == ".gguf":
        return of_config(config_from_gguf(path, report), path)
    if path.suffix == ".json" or (os.path.isdir(path) and text not in catalogue_names()):
        folder = path.parent if path.suffix == ".json" else path
        return of_config(read_config(path, report), folder)
    if os.path.isfile(path):
        fail(
            "unknown-model",
            f"'{text}' is no model",
            help="a model is a .mesh, .meshir or .gguf file, a Hugging Face directory or "
            "config.json, or the name of a built-in model",
        )
    return of_config(catalogue_config(text), None)


def of_config(config: ModelConfig, weights: Path | None) -> LoadedModel:
    """The library model of ``config``'s family with its numbers."""
    return LoadedModel(
        config.name, library_model(config.family, library_parameters(config)), config, weights
    )


def _latent_parameters(config: ModelConfig, sizes: LatentSizes) -> dict[str, Parameter]:
    return {
        "E": config.hidden,
        "H": config.heads,
        "R": sizes.rank,
        "N": sizes.query,
        "P": sizes.rope,
        "D": sizes.value,
        "low_rank": sizes.query_rank > 0,
        "F": config.ffn,
        "V": config.vocab,
        "layers": config.layers,
        "eps": config.eps,
        "theta": config.rope_theta,
        "activation": config.activation,
        "dtype": config.dtype if config.dtype in _CORE_DTYPES else "f32",
        **_scaling_parameters(config.rope_scaling),
        **({"Q": sizes.query_rank} if sizes.query_rank else {}),
    }


def library_parameters(config: ModelConfig) -> dict[str, Parameter]:
    """Parameters of the library's model that spell ``config``."""
    if config.latent is not None:
        return _latent_parameters(config, config.latent)
    found: dict[str, Parameter] = {
        "E": config.hidden,
        "H": config.heads,
        "G": config.kv_heads,
        "D": config.head_dim,
        "F": config.ffn,
        "V": config.vocab,
        "layers": config.layers,
        "eps": config.eps,
        "theta": config.rope_theta,
        "tied": config.tied_embeddings,
        "activation": config.activation,
        "dtype": config.dtype if config.dtype in _CORE_DTYPES else "f32",
    }
    if config.family == "llama":
        found |= {
            "attention_bias": config.attention_bias,
            "o_bias": config.o_bias,
            "mlp_bias": config.mlp_bias,
        }
    return found | _scaling_parameters(config.rope_scaling)


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
    if isinstance(scaling, YarnScaling):
        return {
            "scaling": "yarn",
            "factor": scaling.factor,
            "low_freq_factor": scaling.beta_slow,
            "high_freq_factor": scaling.beta_fast,
            "original_max_position": scaling.original_max_position,
            "scale": scaling.attention_scale,
        }
    return {}
