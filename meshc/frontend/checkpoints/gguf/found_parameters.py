"""Parameters of a model that no single key of its GGUF file gives: windows, what tensors show, and
what all models of an architecture have in common."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from meshc.frontend.checkpoints.fields import Fields
from meshc.frontend.checkpoints.gguf.file_header import GgufHeader
from meshc.frontend.checkpoints.hf.config_numbers import computed
from meshc.frontend.checkpoints.hf.rope import THETA_LIMIT
from meshc.frontend.checkpoints.model_config import SIZE_LIMITS, Parameter
from meshc.frontend.families import Family, GgufTables

# The param of layer 0 that shows whether a model has biases.
_BIASES = {"attention_bias": "bq", "o_bias": "bo", "mlp_bias": "b_up"}
_HEAD = "lm_head"


def shortest(number: float) -> float:
    """The shortest decimal that the file's float32 rounds from: 1e-05, not 9.99999974e-06."""
    return float(str(np.float32(number)))


def known_of_tensors(family: Family, header: GgufHeader) -> dict[str, bool]:
    """Truth values of a config that the tensors of the file show; False for one that the family
    does not have."""
    flags = family.tables[family.name].flags
    found = {
        name: name in flags and holds(family, header, param) for name, param in _BIASES.items()
    }
    tied = bool(family.params[_HEAD].tied) and not holds(family, header, _HEAD)
    return {**found, "tied_embeddings": tied}


def holds(family: Family, header: GgufHeader, param: str) -> bool:
    """Whether the file has a tensor for ``param``, that of layer 0 where there is one a layer."""
    stored = family.params.get(param)
    return stored is not None and stored.gguf.replace("{n}", "0") in header.tensors


def own_parameters(
    fields: Fields, header: GgufHeader, family: Family, gguf: GgufTables, sizes: Mapping[str, int]
) -> dict[str, Parameter]:
    """The parameters of ``family`` alone, by the names in its ``model.mesh``; faults go to the
    diagnostics of ``fields``."""
    return {
        **_windows(fields, gguf),
        **_local_rope(fields, gguf),
        **_by_layers(fields, gguf, sizes),
        **{name: holds(family, header, param) for name, param in gguf.present.items()},
        **{name: not holds(family, header, param) for name, param in gguf.absent.items()},
        **gguf.fixed,
    }


def _windows(fields: Fields, gguf: GgufTables) -> dict[str, Parameter]:
    """The tokens of a window, where 0 may be none, and which layers have none."""
    windows = gguf.tables.windows
    if windows is None:
        return {}
    key = f"{gguf.prefix}attention.sliding_window"
    least = 0 if windows.optional else 1
    most = SIZE_LIMITS["max_positions"]
    window = fields.integer(key, least, most, windows.default or None)
    if not window:
        return {}
    found: dict[str, Parameter] = {windows.parameter: window}
    if windows.but:
        most = SIZE_LIMITS["layers"]
        found[windows.but] = fields.integer(windows.pattern, 1, most, windows.every)
    return found


def _local_rope(fields: Fields, gguf: GgufTables) -> dict[str, Parameter]:
    """The base of RoPE in layers with windows."""
    local = gguf.tables.local_rope
    if local is None:
        return {}
    return {local.parameter: shortest(fields.number(local.key, 0.0, THETA_LIMIT, local.default))}


def _by_layers(fields: Fields, gguf: GgufTables, sizes: Mapping[str, int]) -> dict[str, Parameter]:
    """Numbers that files leave to how many layers a published model has."""
    key, layers = gguf.tables.sizes["layers"].key, sizes["layers"]
    found: dict[str, Parameter] = {}
    for name, rules in gguf.by_layers.items():
        rule = rules.get(str(layers))
        if rule is not None:
            found[name] = float(sizes[rule] if rule in sizes else computed(rule, sizes))
        elif key not in fields.bad:
            fields.reject(
                "config-unsupported",
                key,
                f"the file does not give '{name}', which is known of published models with "
                f"{', '.join(rules)} layers, and this one has {layers}",
                "use the Hugging Face form of the checkpoint, whose config.json gives it",
            )
    return found
