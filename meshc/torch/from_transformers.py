"""From a model of transformers, or the directory of one, to a module of torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transformers import AutoConfig, GenerationConfig, PreTrainedModel
from transformers.utils import GENERATION_CONFIG_NAME

from meshc import api
from meshc.support.diagnostics import Diagnostics, fail
from meshc.torch.caches import ProgramCache
from meshc.torch.language_model import CompiledModel
from meshc.torch.operator import step
from meshc.torch.weights import model_in_memory

__all__ = ["CompiledModel", "ProgramCache", "compile", "step"]

_FIXED = {"target": "cuda", "phase": "both", "compile_to": "", "gpus": 1, "standalone": False}


def compile(
    model: str | Path | PreTrainedModel,
    *,
    backend: str = "",
    report: Diagnostics | None = None,
    **flags: Any,
) -> CompiledModel:
    """``model`` compiled for one GPU, with its weights: a causal language model of transformers in
    memory, from which they are copied, or the directory of one, which meshc reads itself.

    ``flags`` are those of :func:`meshc.compile` for CUDA: ``seq`` is the tokens that each request
    has room for, ``batch`` the rows of tokens. ``backend`` is ``cuda``, or ``cuda-cpu`` for the
    same kernels on this CPU; by default a GPU where there is one. Remarks go to ``report``.

    Raises MeshcError: what :func:`meshc.compile` and loading its program do, and ``bad-argument``
    for flags that have one value here.
    """
    for name, value in _FIXED.items():
        if flags.pop(name, value) != value:
            fail("bad-argument", f"meshc.torch.compile makes no programs with another {name}")
    found = Diagnostics() if report is None else report
    if isinstance(model, PreTrainedModel):
        loaded, tensors = model_in_memory(model, flags.get("layers"), found)
        compiled = api.compile(loaded, target="cuda", report=found, **flags)
        executable = compiled.load(tensors, backend)
        config, generation = model.config, getattr(model, "generation_config", None)
        return CompiledModel(executable, loaded.name, flags.get("layers"), config, generation)
    folder = Path(model)
    if not os.path.isdir(folder):
        fail(
            "unknown-model",
            f"'{model}' is no directory of a Hugging Face model",
            help="meshc.torch.compile takes one, or a model of transformers in memory",
        )
    config, generation = _configs(folder)
    compiled = api.compile(folder, target="cuda", report=found, **flags)
    executable = compiled.load(backend=backend)
    name = compiled.loaded.name
    return CompiledModel(executable, name, flags.get("layers"), config, generation)


def _configs(folder: Path) -> tuple[Any, Any]:
    """The configs in ``folder`` as transformers reads them: of the model, and of how it generates,
    None where there is none. Errors: ``unknown-model`` where it reads none."""
    try:
        config = AutoConfig.from_pretrained(folder)
        told = os.path.isfile(folder / GENERATION_CONFIG_NAME)
        return config, GenerationConfig.from_pretrained(folder) if told else None
    except (OSError, ValueError, KeyError) as problem:
        fail(
            "unknown-model",
            f"transformers reads no model in '{folder}': {str(problem).splitlines()[0]}",
            help="meshc.compile reads more; its programs generate by themselves",
        )
