"""What a Hugging Face ``generation_config.json`` says: which tokens end a text, and how its authors
would have tokens drawn."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from meshc.frontend.checkpoints.config import SIZE_LIMITS
from meshc.frontend.checkpoints.fields import Fields
from meshc.frontend.checkpoints.json_text import read_json_object
from meshc.support.diagnostics import Diagnostics

FILE = "generation_config.json"
_LIMIT_BYTES = 1 << 20
_MOST = 1e6
_TINY = -1e-300  # getters take numbers above a bound, and 0 is one


@dataclass(frozen=True)
class Generation:
    """Tokens that end a text, empty where the file names none, and the settings of its authors;
    transformers' own where it is silent."""

    eos_ids: tuple[int, ...] = ()
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


def read_generation(path: Path) -> Generation:
    """The ``generation_config.json`` in the directory ``path`` or beside the file ``path``.

    Other keys, such as penalties and beams, are not read. Errors:
    ``checkpoint-unreadable``, ``json-invalid``, ``config-bad-value``.
    """
    folder = path if os.path.isdir(path) else path.parent
    if path.suffix.lower() == ".gguf" or not os.path.isfile(folder / FILE):
        return Generation()
    text = read_json_object(folder / FILE, _LIMIT_BYTES, "generation config")
    found = Diagnostics()
    fields = Fields(text.value, text.source.name, found, lambda key: text.span(key))
    generation = Generation(
        fields.token_ids("eos_token_id", SIZE_LIMITS["vocab"]),
        fields.number("temperature", _TINY, _MOST, 1.0),
        fields.integer("top_k", 0, SIZE_LIMITS["vocab"], 0),
        fields.number("top_p", _TINY, 1.0, 1.0),
    )
    found.raise_errors()
    return generation
