"""From what a person types as MODEL to a model of the language, with its config if it has one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from meshc.frontend.checkpoints import (
    ModelConfig,
    catalogue_config,
    catalogue_names,
    checkpoint_config,
    config_from_gguf,
    model_of,
)
from meshc.frontend.language import Model, elaborate, load_model, phases
from meshc.ir.module import Module
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.files import read_text
from meshc.verify.given import read_module

_IR_LIMIT_BYTES = 64 << 20


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
    ``unknown-model``, and ``not-tile-level`` for tasks.
    """
    path = Path(text)
    if path.suffix == ".mesh":
        return LoadedModel(path.stem, load_model(path, report), None)
    if path.suffix == ".meshir":
        module = read_module(read_text(path, _IR_LIMIT_BYTES))
        if module.level == "task":
            fail(
                "not-tile-level",
                f"'{module.name}' is at the task level, of which no target makes a program",
                help="compile its graph; meshc opt runs passes on tasks",
            )
        return LoadedModel(path.stem, None, None, module=module)
    if path.suffix == ".gguf":
        return of_config(config_from_gguf(path, report), path)
    if path.suffix == ".json" or (os.path.isdir(path) and text not in catalogue_names()):
        folder = path.parent if path.suffix == ".json" else path
        return of_config(checkpoint_config(path, report), folder)
    if os.path.isfile(path):
        fail(
            "unknown-model",
            f"'{text}' is no model",
            help="a model is a .mesh, .meshir or .gguf file, a Hugging Face directory or "
            "config.json, or the name of a built-in model",
        )
    return of_config(catalogue_config(text), None)


def of_config(config: ModelConfig, weights: Path | None) -> LoadedModel:
    """The model of ``config``'s family with its numbers."""
    return LoadedModel(config.name, model_of(config), config, weights)
