"""The chat template of a model, as it lies with the weights.

Where it is looked for, and the variables it gets beside the messages, are those of Hugging Face
transformers; the keys of GGUF files are those of llama.cpp.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from meshc.frontend.checkpoints.bounded_files import list_directory, read_bounded
from meshc.frontend.checkpoints.fields import brief
from meshc.frontend.checkpoints.gguf.file_header import GgufHeader
from meshc.frontend.checkpoints.gguf.known_tokens import token_id
from meshc.frontend.checkpoints.gguf.parts import read_gguf_header
from meshc.frontend.checkpoints.json_text import JsonText, read_json_object
from meshc.frontend.checkpoints.tokenizer import tokenizer_file
from meshc.frontend.checkpoints.tokenizing.declared_tokens import CONFIG, SPECIAL, read_declared
from meshc.support.diagnostics import fail
from meshc.support.spans import Source

TEMPLATE_LIMIT_BYTES = 1 << 20
"""Published templates have up to some 30 KB."""
_CONFIG_LIMIT_BYTES = 64 << 20
_KEY = "chat_template"
_FOLDER = "additional_chat_templates"
_GGUF_KEY = "tokenizer.chat_template"
_GGUF_NAMES = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding"}
"""How the keys of GGUF files spell special tokens; one of them is spelled so in all files."""


@dataclass(frozen=True)
class ChatTemplate:
    """A template, its variables beside messages (texts of special tokens by name), and
    ``unknown``, special tokens that the model may have and that nothing names."""

    source: Source
    variables: Mapping[str, str] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()


def find_chat_template(path: Path, model: str) -> ChatTemplate:
    """The template of ``model``, whose weights are at ``path``: that of a GGUF file, else of the
    folder of the tokenizer, in ``chat_template.jinja`` or in ``default.jinja`` of the folder
    ``additional_chat_templates``, which comes first, at the key ``chat_template`` of
    ``tokenizer_config.json`` or in ``chat_template.json``.

    Errors: ``chat-template-missing``, ``chat-template-invalid``, ``tokenizer-not-found``,
    ``gguf-invalid`` and what :func:`read_declared` raises.
    """
    file = tokenizer_file(path)
    if file.suffix.lower() == ".gguf":
        return _of_gguf(read_gguf_header(file), model)
    folder = file.parent
    present = os.path.isfile(folder / CONFIG)
    config = read_json_object(folder / CONFIG, _CONFIG_LIMIT_BYTES, "file") if present else None
    source = _source(folder, config)
    if source is None:
        _missing(model, f"'{folder}' has no chat_template.jinja, and no {_KEY} in {CONFIG}")
    declared = read_declared(folder)
    return ChatTemplate(source, declared.texts, declared.unknown)


def _source(folder: Path, config: JsonText | None) -> Source | None:
    """The text of the template in ``folder``, named for messages."""
    own = folder / "chat_template.json"
    files = _files(folder)
    if files:
        if "default" not in files:
            _no_default(str(folder / _FOLDER), files)
        raw = read_bounded(files["default"], TEMPLATE_LIMIT_BYTES, "chat template")
        try:
            return Source(str(files["default"]), raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            _invalid(str(files["default"]), f"byte {error.start} is not UTF-8")
    found = None if config is None else _of_json(config)
    if found is None and os.path.isfile(own):
        found = _of_json(read_json_object(own, 4 * TEMPLATE_LIMIT_BYTES, "chat template"))
    return found


def _files(folder: Path) -> dict[str, Path]:
    """Files of templates by their names: those of a folder of them before the one beside it."""
    plain, several = folder / "chat_template.jinja", folder / _FOLDER
    found = {"default": plain} if os.path.isfile(plain) else {}
    entries = list_directory(several) if os.path.isdir(several) else []
    return found | {file.stem: file for file in entries if file.suffix == ".jinja"}


def _of_json(text: JsonText) -> Source | None:
    """The template at the key ``chat_template``: a text, or the one named ``default`` in a list."""
    name, given = f"{text.source.name}, {_KEY}", text.value.get(_KEY)
    if given is None:
        return None
    if isinstance(given, list):
        named = {
            one["name"]: one.get("template")
            for one in given
            if isinstance(one, dict) and isinstance(one.get("name"), str)
        }
        if "default" not in named:
            _no_default(name, named)
        given = named["default"]
    return _bounded(name, given)


def _bounded(name: str, given: object) -> Source:
    if not isinstance(given, str):
        _invalid(name, f"it is {brief(given)}, no text")
    if len(given) > TEMPLATE_LIMIT_BYTES:
        _invalid(name, f"it has {len(given)} characters, more than {TEMPLATE_LIMIT_BYTES}")
    return Source(name, given)


def _of_gguf(header: GgufHeader, model: str) -> ChatTemplate:
    given = header.metadata.get(_GGUF_KEY)
    if given is None:
        _missing(model, f"'{header.path}' has no key {_GGUF_KEY}")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    texts: dict[str, str] = {}
    for name, spelled in _GGUF_NAMES.items():
        token = token_id(header.metadata, spelled)
        if isinstance(tokens, list) and token is not None and 0 <= token < len(tokens):
            texts[f"{name}_token"] = tokens[token]
    source = _bounded(f"{header.path}, {_GGUF_KEY}", given)
    return ChatTemplate(source, texts, frozenset(SPECIAL) - texts.keys())


def _missing(model: str, reason: str) -> NoReturn:
    fail(
        "chat-template-missing",
        f"'{model}' has no chat template: {reason}",
        help="a base model has none; leave out --chat, or write the whole prompt as the model "
        "was trained on it",
    )


def _no_default(name: str, named: Iterable[str]) -> NoReturn:
    known = ", ".join(sorted(named))[:200] or "none"
    _invalid(name, f"none of its templates is the default one (there are: {known})")


def _invalid(name: str, reason: str) -> NoReturn:
    fail(
        "chat-template-invalid",
        f"the chat template in '{name}' is not valid: {reason}",
        help="get the file again, or write the whole prompt yourself, without --chat",
    )
