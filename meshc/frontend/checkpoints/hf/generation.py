"""What a Hugging Face ``generation_config.json`` says: which tokens end a text, and how its authors
would have tokens drawn."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from meshc.frontend.checkpoints.config import SIZE_LIMITS
from meshc.frontend.checkpoints.fields import Fields
from meshc.frontend.checkpoints.json_text import read_json_object
from meshc.support.diagnostics import Diagnostics, fail

FILE = "generation_config.json"
_LIMIT_BYTES = 1 << 20
_MOST = 1e6
_TINY = -1e-300  # getters take numbers above a bound, and 0 is one
_USUAL_TOP_K = 50
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "repetition_penalty": (1,),
    "encoder_repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "min_p": (0,),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "bad_words_ids": ([],),
    "sequence_bias": ({},),
    "guidance_scale": (1,),
    "penalty_alpha": (0,),
}
"""Settings that would change which tokens are drawn, with the values under which they do not."""


@dataclass(frozen=True)
class Generation:
    """Tokens that end a text, empty where the file names none, and the settings of its authors;
    those of ``GenerationConfig`` in transformers where it is silent. ``unread`` are settings that
    change which tokens are drawn and are not computed here."""

    eos_ids: tuple[int, ...] = ()
    temperature: float = 1.0
    top_k: int = _USUAL_TOP_K
    top_p: float = 1.0
    unread: tuple[str, ...] = ()

    def check_drawing(self) -> None:
        """Raise ``config-unsupported`` where tokens cannot be drawn as the file says."""
        if self.unread:
            fail(
                "config-unsupported",
                f"{FILE} asks for {', '.join(self.unread)}, which meshc does not compute",
                help="leave out --sample and say --temperature, --top-k and --top-p",
            )


def read_generation(path: Path) -> Generation:
    """The ``generation_config.json`` in the directory ``path`` or beside the file ``path``.

    Errors: ``checkpoint-unreadable``, ``json-invalid``, ``config-bad-value``.
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
        fields.integer("top_k", 0, SIZE_LIMITS["vocab"], _USUAL_TOP_K),
        fields.number("top_p", _TINY, 1.0, 1.0),
        tuple(
            name
            for name, neutral in _NEUTRAL.items()
            if fields.has(name) and text.value[name] not in neutral
        ),
    )
    found.raise_errors()
    return generation
