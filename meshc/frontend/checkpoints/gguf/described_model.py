"""The model that the metadata of a GGUF file describes, as the table [gguf] of its family says.

Source: the key tables of the GGUF specification, the writers of llama.cpp's converter and, for keys
that a file lacks, its readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, get_args

import numpy as np

from meshc.frontend.checkpoints.fields import Fields, brief
from meshc.frontend.checkpoints.gguf.file_header import GgufHeader
from meshc.frontend.checkpoints.gguf.found_parameters import (
    known_of_tensors,
    own_parameters,
    shortest,
)
from meshc.frontend.checkpoints.gguf.known_tokens import (
    PREFIX,
    TYPE_NORMAL,
    known_tokens,
    token_id,
)
from meshc.frontend.checkpoints.gguf.parts import read_gguf_header
from meshc.frontend.checkpoints.gguf.rope import ROPE_KEYS, read_gguf_rope
from meshc.frontend.checkpoints.hf.config import EPS_LIMIT, model_name
from meshc.frontend.checkpoints.hf.config_numbers import read_numbers
from meshc.frontend.checkpoints.hf.near import nearest
from meshc.frontend.checkpoints.model_config import (
    SIZE_LIMITS,
    Activation,
    ModelConfig,
    Parameter,
)
from meshc.frontend.families import (
    Family,
    GgufTables,
    Tables,
    brought_families,
    family_named,
    family_names,
)
from meshc.support.diagnostics import Diagnostics, fail

_VALUE_LENGTH = "attention.value_length"
_WINDOW = "attention.sliding_window"
_LAYOUT = "tensor_data_layout"
_EXPERTS = "expert_count"
_ACTIVATIONS: dict[str, Activation] = {name: name for name in get_args(Activation)}


def config_from_gguf(path: str | Path, diagnostics: Diagnostics | None = None) -> ModelConfig:
    """The model in the GGUF file ``path``; remarks go to ``diagnostics``.

    Errors: ``checkpoint-unreadable``, ``gguf-invalid``, ``unsupported-architecture``,
    ``config-missing-key``, ``config-bad-value``, ``config-unsupported``.
    """
    return config_from_header(read_gguf_header(path), diagnostics)


def config_from_header(header: GgufHeader, diagnostics: Diagnostics | None = None) -> ModelConfig:
    """As `config_from_gguf`, from a header that was read before."""
    family, gguf = _read_family(header)
    tables = _with_rows(gguf.tables, header)
    found = Diagnostics()
    fields = Fields(header.metadata, str(header.path), found)
    _refuse_unknown(fields, gguf)
    config = _read_fields(fields, header, family, replace(gguf, tables=tables))
    found.raise_errors()
    if diagnostics is not None:
        for message in found.messages:
            diagnostics.add(message)
    return config


def _families(names: Sequence[str] | None = None) -> dict[str, list[tuple[Family, GgufTables]]]:
    """The families of each architecture that is known to those ``names``, by default to those that
    are shipped."""
    found: dict[str, list[tuple[Family, GgufTables]]] = {}
    for family in map(family_named, family_names() if names is None else names):
        if family.gguf is not None:
            found.setdefault(family.gguf.architecture, []).append((family, family.gguf))
    return found


def _read_family(header: GgufHeader) -> tuple[Family, GgufTables]:
    given = header.metadata.get("general.architecture")
    known = []
    if isinstance(given, str):
        known = _families().get(given) or _families(brought_families()).get(given, [])
    if not known:
        _unsupported(header, given, [_near(given)] if isinstance(given, str) else [])
    count = header.metadata.get(f"{given}.{_EXPERTS}", 0)
    routed = isinstance(count, int) and count > 0
    family, gguf = next((one for one in known if one[1].routed == routed), known[0])
    if gguf.refused_because:
        _unsupported(header, given, [gguf.refused_because])
    return family, gguf


def _unsupported(header: GgufHeader, given: object, notes: list[str]) -> NoReturn:
    fail(
        "unsupported-architecture",
        f"'{header.path}' has the architecture {brief(given)}, which is not supported",
        notes=notes,
        help=f"supported: {', '.join(_supported())}",
    )


def _near(name: str) -> str:
    """A note on an architecture that is not known."""
    known = [one for all_of in _families().values() for one in all_of]
    return nearest(name, [family.name for family, gguf in known if not gguf.refused_because], {})


def _supported() -> list[str]:
    """The architectures whose files are read."""
    known = _families().items()
    return sorted(name for name, all_of in known if not all_of[0][1].refused_because)


def _refuse_unknown(fields: Fields, gguf: GgufTables) -> None:
    """Keys under the architecture's name define the maths, so each must be understood."""
    own = [_VALUE_LENGTH, _LAYOUT, *([_WINDOW] if gguf.tables.windows else [])]
    own += ROPE_KEYS if gguf.tables.rope_types else ()
    known = gguf.tables.keys() | {gguf.prefix + key for key in own}
    for key, value in fields.values.items():
        if key.startswith(gguf.prefix) and key not in known and not _is_neutral(key, value):
            fields.reject(
                "config-unsupported",
                key,
                f"'{key}' = {brief(value)} changes the maths and is not supported",
                f"meshc reads plain {', '.join(_supported())} models",
            )
    # The old name of the interleaved row order that every llama-type file has.
    layout = "Meta AI original pth"
    fields.string(gguf.prefix + _LAYOUT, (layout,), layout)


def _is_neutral(key: str, value: object) -> bool:
    """Whether ``value`` switches a feature off: zero or false, or causal attention."""
    if isinstance(value, bool):
        return value == key.endswith("attention.causal")
    return isinstance(value, int | float) and value == 0


def _with_rows(tables: Tables, header: GgufHeader) -> Tables:
    """``tables`` with the rows of the embedding as the vocabulary where a file does not say it."""
    tensor = header.tensors.get("token_embd.weight")
    if tensor is None or tensor.shape[0] > SIZE_LIMITS["vocab"]:
        return tables
    vocab = replace(tables.sizes["vocab"], default=tensor.shape[0])
    return replace(tables, sizes={**tables.sizes, "vocab": vocab})


def _read_fields(
    fields: Fields, header: GgufHeader, family: Family, gguf: GgufTables
) -> ModelConfig:
    bos, eos = (
        fields.token_ids(f"tokenizer.ggml.{kind}_token_id", SIZE_LIMITS["vocab"])
        for kind in ("bos", "eos")
    )
    numbers = read_numbers(fields, gguf.tables, bos + eos)
    size = numbers.sizes
    _refuse_suppressed(fields)
    _check_value_length(fields, gguf, size["head_dim"])
    rotated, turning = _read_rotated(fields, family, gguf.prefix, size["head_dim"])
    theta, scaling = read_gguf_rope(fields, header, gguf, turning)
    flags = known_of_tensors(family, header)
    return ModelConfig(
        name=model_name(header.path),
        family=family.name,
        hidden=size["hidden"],
        heads=size["heads"],
        kv_heads=size["kv_heads"],
        head_dim=size["head_dim"],
        ffn=size["ffn"],
        vocab=size["vocab"],
        layers=size["layers"],
        max_positions=size["max_positions"],
        eps=shortest(fields.number(gguf.tables.named.eps, 0.0, EPS_LIMIT)),
        rope_theta=shortest(theta),
        rope_scaling=scaling,
        activation=_ACTIVATIONS[gguf.activation],
        attention_bias=flags["attention_bias"],
        o_bias=flags["o_bias"],
        mlp_bias=flags["mlp_bias"],
        tied_embeddings=flags["tied_embeddings"],
        bos_id=bos[0] if bos else token_id(header.metadata, "bos"),
        eos_ids=_ends(header, eos, size["vocab"]),
        dtype=_dtype(family, header),
        own={
            **{name: _plain(value) for name, value in numbers.own.items()},
            **own_parameters(fields, header, family, gguf, size),
            **rotated,
        },
    )


def _ends(header: GgufHeader, eos: tuple[int, ...], vocab: int) -> tuple[int, ...]:
    """The tokens that end an answer, those of the file's key for it first."""
    tokens = header.metadata.get(f"{PREFIX}tokens")
    if not isinstance(tokens, list):
        return eos
    ends = known_tokens(header.metadata, tokens, [TYPE_NORMAL] * len(tokens)).ends
    return tuple(sorted((t for t in ends if t < vocab), key=lambda token: token not in eos))


def _refuse_suppressed(fields: Fields) -> None:
    """Tokens that llama.cpp never chooses are none for meshc."""
    key = f"{PREFIX}suppress_tokens"
    given = fields.values.get(key)
    if isinstance(given, list | np.ndarray) and len(given):
        fields.reject(
            "config-unsupported",
            key,
            f"'{key}' names {len(given)} tokens that are never to be chosen, which meshc does not "
            "compute",
            "use another file of this model",
        )


def _plain(value: Parameter) -> Parameter:
    return shortest(value) if isinstance(value, float) else value


def _check_value_length(fields: Fields, gguf: GgufTables, head_dim: int) -> None:
    key = gguf.prefix + _VALUE_LENGTH
    if fields.integer(key, 1, SIZE_LIMITS["head_dim"], head_dim) != head_dim:
        fields.reject_value(key, f"the head size, {head_dim}, is wanted")


def _read_rotated(
    fields: Fields, family: Family, prefix: str, head_dim: int
) -> tuple[dict[str, Parameter], int]:
    """The parameter for the lanes of a head that turn, 0 for all, where the family has one; and
    how many turn."""
    tables = family.tables[family.name]
    key = f"{prefix}rope.dimension_count"
    if not tables.rope_types:
        return {}, head_dim
    turning = fields.integer(key, 1, SIZE_LIMITS["head_dim"], head_dim)
    if tables.rotary is None:
        if turning != head_dim:
            fields.reject_value(key, f"the head size, {head_dim}, is wanted")
        return {}, head_dim
    if turning % 2 or turning > head_dim:
        fields.reject_value(key, f"an even number up to the head size, {head_dim}, is wanted")
        return {}, head_dim
    return {tables.rotary.parameter: 0 if turning == head_dim else turning}, turning


def _dtype(family: Family, header: GgufHeader) -> str | None:
    """The type of what holds the queries' weight in layer 0."""
    tensor = header.tensors.get(family.params["wq"].gguf.replace("{n}", "0"))
    encoding = tensor.encoding if tensor else None
    return encoding.name.lower() if encoding else None
