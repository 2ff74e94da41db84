"""The models meshc knows by name: published architectures, without weights."""

from __future__ import annotations

import difflib
from importlib import resources

from meshc.frontend.checkpoints.hf.config import config_from_json
from meshc.frontend.checkpoints.json_text import parse_json_object
from meshc.frontend.checkpoints.model_config import ModelConfig
from meshc.support.diagnostics import fail

_FOLDER = resources.files("meshc.frontend") / "catalogue"


def catalogue_names() -> tuple[str, ...]:
    """The names of the built-in models, sorted."""
    files = [entry.name for entry in _FOLDER.iterdir() if entry.name.endswith(".json")]
    return tuple(sorted(name.removesuffix(".json") for name in files))


def catalogue_config(name: str) -> ModelConfig:
    """The built-in model ``name``. Errors: ``unknown-model``, with close matches."""
    names = catalogue_names()
    if name not in names:
        close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
        guess = f"did you mean {' or '.join(close)}? " if close else ""
        fail(
            "unknown-model",
            f"no built-in model is called '{name}'",
            help=f"{guess}built-in models: {', '.join(names)}",
        )
    raw = (_FOLDER / f"{name}.json").read_bytes()
    return config_from_json(parse_json_object(raw, f"{name}.json"), name)
