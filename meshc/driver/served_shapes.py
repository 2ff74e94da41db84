"""The shape of a model for serving, read off the graph of its decode step, as what is compiled."""

from __future__ import annotations

from dataclasses import replace

from meshc.backends.request import CompileRequest
from meshc.cost.served_graphs import served_of
from meshc.cost.served_models import ServedModel
from meshc.driver.compiling import given_module
from meshc.driver.models import load_any
from meshc.support.diagnostics import Diagnostics

_OF_GPUS = CompileRequest(target="cuda", device="h100", dtype="bf16")
"""Weights, activations, keys and values of 16 bits, which costs of serving are of."""


def served_model(text: str) -> ServedModel:
    """The model that ``text`` names, as of ``meshc compile``: a built-in one, a Hugging Face
    directory or ``config.json``, a ``.gguf`` or ``.mesh`` file. No weights are needed.

    Errors: those of reading it, and ``unsupported-architecture`` for what has no costs of serving.
    """
    loaded = load_any(text, Diagnostics())
    graph = given_module(loaded, "decode", _OF_GPUS, Diagnostics())
    found = replace(served_of(graph), name=loaded.name)
    if found.learned or loaded.config is None:
        return found
    return replace(found, positions=loaded.config.max_positions)
