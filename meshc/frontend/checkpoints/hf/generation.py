"""What files of a checkpoint say of its answers: which tokens end a text, and how its authors would
have tokens drawn."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from meshc.frontend.checkpoints.fields import Fields
from meshc.frontend.checkpoints.gguf.file_header import GgufHeader
from meshc.frontend.checkpoints.gguf.parts import read_gguf_header
from meshc.frontend.checkpoints.json_text import read_json_object
from meshc.frontend.checkpoints.model_config import SIZE_LIMITS
from meshc.support.diagnostics import Diagnostics, fail

FILE = "generation_config.json"
_LIMIT_BYTES = 1 << 20
_MOST = 1e6
_TINY = -1e-300  # getters take numbers above a bound, and 0 is one
_USUAL_TOP_K = 50
READ = {
    "eos_token_id": "tokens that end an answer",
    "temperature": "with `--sample`",
    "top_k": "with `--sample`",
    "top_p": "with `--sample`",
    "min_p": "with `--sample`",
}
"""Settings that are computed, and when."""
NEUTRAL: dict[str, tuple[object, ...]] = {
    "repetition_penalty": (1,),
    "encoder_repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "min_new_tokens": (0,),
    "min_length": (0,),
    "max_time": (),
    "stop_strings": ([],),
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "num_return_sequences": (1,),
    "diversity_penalty": (0,),
    "constraints": ([],),
    "force_words_ids": ([],),
    "top_h": (),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "bad_words_ids": ([],),
    "sequence_bias": ({}, []),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1,),
    "penalty_alpha": (0,),
    "dola_layers": (),
    "watermarking_config": ({},),
    "token_healing": (False,),
}
"""Settings that would change which tokens come, with the values beside null under which they do
not."""
INERT = frozenset(
    (
        # What flags say here, or what a drawn token does not depend on.
        *("do_sample", "max_length", "max_new_tokens", "bos_token_id", "pad_token_id"),
        *("decoder_start_token_id", "renormalize_logits", "remove_invalid_values"),
        *("early_stopping", "length_penalty"),  # of searches with beams
        # How it is computed, cached and returned.
        *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "low_memory"),
        *("prefill_chunk_size", "compile_config", "disable_compile", "continuous_batching_config"),
        *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
        *("return_dict_in_generate", "_from_model_config", "transformers_version"),
        # Models that guess tokens ahead, which leave the distribution as it is.
        *("use_mtp", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule"),
        *("assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size"),
        *("assistant_early_exit", "assistant_lookbehind", "target_lookbehind"),
        *("assistant_ensemble_weight", "speculation_type"),
    )
)
"""Settings that change nothing of which tokens come. ``GenerationConfig`` of transformers 5.24 has
no others than these, those above and those that are read."""
_GGUF_PREFIX = "general.sampling."
_GGUF_NEUTRAL = {"min_p": 0, "xtc_probability": 0, "penalty_repeat": 1, "mirostat": 0}
_GGUF_DETAILS = ("xtc_threshold", "penalty_last_n", "mirostat_tau", "mirostat_eta")


@dataclass(frozen=True)
class Generation:
    """Tokens that end a text, empty where the file names none, and the settings of its authors;
    those of ``GenerationConfig`` in transformers where it is silent. ``unread`` are settings that
    change which tokens are drawn and are not computed here, and ``file`` is where they stand."""

    eos_ids: tuple[int, ...] = ()
    temperature: float = 1.0
    top_k: int = _USUAL_TOP_K
    top_p: float = 1.0
    min_p: float = 0.0
    unread: tuple[str, ...] = ()
    file: str = FILE

    def check_drawing(self) -> None:
        """Raise ``config-unsupported`` where tokens cannot be drawn as the file says."""
        if self.unread:
            fail(
                "config-unsupported",
                f"{self.file} asks for {', '.join(self.unread)}, which meshc does not compute",
                help="leave out --sample and say --temperature, --top-k, --top-p, --min-p and "
                "--stop",
            )


def read_generation(path: Path) -> Generation:
    """What is said of the checkpoint in the directory ``path`` or of the file ``path``: in a
    ``generation_config.json`` there, else in ``config.json``, as in transformers; or in the GGUF
    file ``path`` itself.

    Errors: ``checkpoint-unreadable``, ``json-invalid``, ``gguf-invalid``, ``config-bad-value``.
    """
    if path.suffix.lower() == ".gguf":
        return Generation(unread=_unread_of_gguf(read_gguf_header(path)), file=path.name)
    folder = path if os.path.isdir(path) else path.parent
    files = (folder / name for name in (FILE, "config.json"))
    file = next((file for file in files if os.path.isfile(file)), None)
    return Generation() if file is None else _read(file)


def ending_tokens(path: Path) -> tuple[int, ...]:
    """Tokens that end a text by the ``generation_config.json`` in the directory ``path`` or beside
    the file ``path``; none where there is no such file. Errors are those of
    :func:`read_generation`."""
    file = (path if os.path.isdir(path) else path.parent) / FILE
    return _read(file).eos_ids if os.path.isfile(file) else ()


def _read(file: Path) -> Generation:
    text = read_json_object(file, _LIMIT_BYTES, "generation config")
    found = Diagnostics()
    fields = Fields(text.value, text.source.name, found, lambda key: text.span(key))
    generation = Generation(
        fields.token_ids("eos_token_id", SIZE_LIMITS["vocab"]),
        fields.number("temperature", _TINY, _MOST, 1.0),
        fields.integer("top_k", 0, SIZE_LIMITS["vocab"], _USUAL_TOP_K),
        fields.number("top_p", _TINY, 1.0, 1.0),
        fields.number("min_p", _TINY, 1.0, 0.0),
        tuple(
            name
            for name, neutral in NEUTRAL.items()
            if fields.has(name) and text.value[name] not in neutral
        ),
        file.name,
    )
    found.raise_errors()
    return generation


def _unread_of_gguf(header: GgufHeader) -> tuple[str, ...]:
    """Settings of drawing in a GGUF file. None of them is computed: llama.cpp, which reads them,
    draws by other definitions than transformers."""
    given = {
        key.removeprefix(_GGUF_PREFIX): value
        for key, value in header.metadata.items()
        if key.startswith(_GGUF_PREFIX)
    }
    return tuple(
        _GGUF_PREFIX + name
        for name, value in given.items()
        if name not in _GGUF_DETAILS and value != _GGUF_NEUTRAL.get(name)
    )
