"""Weights and configs of models of transformers in memory, by the names that their files have."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from meshc.driver.models import LoadedModel, of_config
from meshc.driver.weights import CheckpointTensors
from meshc.frontend.checkpoints import (
    TensorsInMemory,
    checkpoint_in_memory,
    config_in_memory,
    model_name,
)
from meshc.ir.stored import BF16
from meshc.support.diagnostics import Diagnostics

_WORDS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def model_in_memory(
    model: Any, layers: int | None, report: Diagnostics
) -> tuple[LoadedModel, CheckpointTensors]:
    """What meshc compiles of ``model``, a ``PreTrainedModel`` of transformers, and its weights,
    which are read from its ``state_dict`` when they are asked for; the first ``layers`` of them.
    Remarks go to ``report``.

    Raises what reading a ``config.json`` and opening a checkpoint of the same content would.
    """
    name = _name(model)
    state = _state(model)
    described = {key: (tuple(tensor.shape), _word(tensor)) for key, tensor in state.items()}
    source = TensorsInMemory(
        f"the {type(model).__name__} in memory", described, lambda key: _elements(state[key])
    )
    config = config_in_memory(model.config.to_json_string(), name, source, report)
    tensors = CheckpointTensors(checkpoint_in_memory(source, config, layers, report))
    return of_config(config, None), tensors


def _name(model: Any) -> str:
    """A name that tells nothing of where the model lies."""
    given = str(getattr(model, "name_or_path", "") or "")
    return model_name(Path(given) / "config.json") if given else str(model.config.model_type)


def _state(model: Any) -> Mapping[str, torch.Tensor]:
    """The ``state_dict`` of ``model`` as ``save_pretrained`` would write it: releases of
    transformers from 5 on hold some tensors of files together, experts among them."""
    state: Mapping[str, torch.Tensor] = model.state_dict()
    try:
        loading = import_module("transformers.core_model_loading")
    except ImportError:
        return state
    found: Mapping[str, torch.Tensor] = loading.revert_weight_conversion(model, dict(state))
    return found


def _word(tensor: torch.Tensor) -> str:
    if tensor.device.type == "meta":
        return "meta (nothing is in memory)"
    return _WORDS.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))


def _elements(tensor: torch.Tensor) -> np.ndarray:
    here = tensor.detach().cpu().contiguous()
    halves = here.dtype == torch.bfloat16
    found: np.ndarray = here.view(torch.int16).numpy().view(BF16) if halves else here.numpy()
    return found
