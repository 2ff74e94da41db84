"""What files beside a ``tokenizer.json`` say of its tokens.

Sources: how ``PreTrainedTokenizerBase.from_pretrained`` of Hugging Face transformers reads
``tokenizer_config.json`` and the older ``special_tokens_map.json`` and ``added_tokens.json``, and
what ``TokenizersBackend`` makes of them (release 5.24).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NoReturn

from meshc.frontend.checkpoints.fields import brief
from meshc.frontend.checkpoints.json_text import read_json_object
from meshc.support.diagnostics import fail

CONFIG = "tokenizer_config.json"
_MAP, _ADDED = "special_tokens_map.json", "added_tokens.json"
_LIMIT_BYTES = 64 << 20
_TOKENS = "added_tokens_decoder"
_EXTRA, _ADDITIONAL = "extra_special_tokens", "additional_special_tokens"
OF_MODEL = "model_specific_special_tokens"
"""The names of tokens as release 5 of transformers writes them."""
_ID = re.compile("[0-9]{1,9}")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
SPECIAL = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
# Tokenizers of these classes have no special tokens but those of the file; others have usual ones.
_WITHOUT_USUAL = ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")

Facts = Mapping[str, object]
"""A token: its ``content``, and flags as far as the files say them."""


@dataclass(frozen=True)
class DeclaredTokens:
    """Tokens that files declare.

    ``by_id`` has them by id; those of the ``tokenizer.json`` come first if ``own_first``. ``named``
    are special tokens by their names, ``unknown`` names of such tokens that the class of the
    tokenizer may have without the files saying so, ``further`` special tokens without a name. What
    stands around a text the ``tokenizer.json`` says; ``add_bos_token`` and ``add_eos_token`` are
    passed over, as there.
    """

    by_id: Mapping[int, Facts]
    own_first: bool
    named: Mapping[str, Facts]
    unknown: frozenset[str]
    further: Sequence[Facts]

    @property
    def texts(self) -> dict[str, str]:
        """The texts of special tokens by their names."""
        return {name: str(facts["content"]) for name, facts in self.named.items()}


def read_tokenizer_config(folder: Path) -> Mapping[str, object]:
    """The ``tokenizer_config.json`` in ``folder``, empty where there is none. Errors:
    ``checkpoint-unreadable``, ``json-invalid``."""
    return _read(folder / CONFIG)


def read_declared(folder: Path) -> DeclaredTokens:
    """What the files in ``folder`` declare. Errors: ``checkpoint-unreadable``, ``json-invalid``,
    ``tokenizer-invalid``, ``tokenizer-unsupported``."""
    config = read_tokenizer_config(folder)
    own_first = _TOKENS not in config
    # The older files count where the newer one does not declare tokens.
    older = _read(folder / _MAP) if own_first else {}
    values = {**config, **older}
    if not isinstance(config.get(OF_MODEL), dict | None):
        _invalid(folder / CONFIG, f"'{OF_MODEL}' is {brief(config[OF_MODEL])}, no object")
    named, further = _named(config, older), _further(config, older)
    if own_first:
        usual_names = (facts for name, facts in named.items() if name in SPECIAL)
        # Tokens with flags of their own are special as those say.
        plain = (facts for facts in further if facts.keys() == {"content", "special"})
        special = {facts["content"] for facts in (*usual_names, *plain)}
        by_id = _older(folder / _ADDED, special)
    else:
        by_id = _newer(folder / CONFIG, config[_TOKENS])
    if config.get("split_special_tokens"):
        fail(
            "tokenizer-unsupported",
            f"'{folder / CONFIG}' asks for 'split_special_tokens': control tokens are words",
            help="give the prompt as token ids",
        )
    usual = values.get("tokenizer_class") not in _WITHOUT_USUAL
    unknown = frozenset(name for name in SPECIAL if usual and name not in {**values, **named})
    return DeclaredTokens(by_id, own_first, named, unknown, further)


def _read(path: Path) -> Mapping[str, object]:
    if not os.path.isfile(path):
        return {}
    return read_json_object(path, _LIMIT_BYTES, "file").value


def _newer(path: Path, given: object) -> dict[int, Facts]:
    """Tokens of ``added_tokens_decoder``, an object of tokens by their ids."""
    if not isinstance(given, dict):
        _invalid(path, f"'{_TOKENS}' is {brief(given)}, no object")
    found = {}
    for key, value in given.items():
        facts = _facts(value)
        if facts is None or isinstance(value, str) or not _ID.fullmatch(key):
            _invalid(path, f"'{_TOKENS}' has {brief(key)}: {brief(value)}, no token by its id")
        found[int(key)] = facts
    return found


def _older(path: Path, special: set[object]) -> dict[int, Facts]:
    """Tokens of ``added_tokens.json``, an object of ids by their tokens."""
    found: dict[int, Facts] = {}
    for text, number in _read(path).items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 10**9:
            _invalid(path, f"{brief(text)} has {brief(number)}, no id")
        own = text in special
        found[number] = {"content": text, "normalized": not own, "special": own}
    return found


def _named(config: Mapping[str, object], older: Mapping[str, object]) -> dict[str, Facts]:
    """Special tokens by their names, those that every tokenizer may have first. Others have names
    that end in ``_token``, or any in an object of such tokens: in that of release 5 unless others
    are spelled as texts."""
    further = _further_names(config)
    texts = {name: value for name, value in further.items() if isinstance(value, str)}
    own = {**texts, **_object(config, _EXTRA)} or _object(config, OF_MODEL)
    tokens = {
        name: value
        for name, value in further.items()
        if isinstance(value, dict) and "__type" in value
    }
    usual = {name: older.get(name, config.get(name)) for name in SPECIAL}
    given = {**usual, **tokens, **_further_names(older), **own, **_object(older, _EXTRA)}
    facts = {name: _facts(value, special=True) for name, value in given.items()}
    return {name: one for name, one in facts.items() if one is not None}


def _further_names(values: Mapping[str, object]) -> Mapping[str, object]:
    """What ``values`` has at names of tokens that only some models have."""
    return {k: value for k, value in values.items() if k.endswith("_token") and k not in SPECIAL}


def _object(values: Mapping[str, object], key: str) -> Mapping[str, object]:
    """The object at ``key``, empty where there is none."""
    found = values.get(key)
    return found if isinstance(found, dict) else {}


def _further(config: Mapping[str, object], older: Mapping[str, object]) -> list[Facts]:
    """Special tokens without a name of their own, of the ``config`` and of an ``older`` file, whose
    additional ones count where the other says nothing of any."""
    first, additional = config.get(_EXTRA), config.get(_ADDITIONAL)
    if isinstance(first, dict) or not first:
        first = additional if additional is not None else first
    given = older.get(_EXTRA)
    if first is None or isinstance(first, dict):
        first = older.get(_ADDITIONAL) if given is None else []
    found = [one for one in (first, given) if isinstance(one, list)]
    return [facts for facts in map(_facts, chain(*found)) if facts is not None]


def _facts(value: object, special: bool = False) -> Facts | None:
    """A token that is spelled as its text or as an object; ``special`` says that it is so whatever
    the object says."""
    if isinstance(value, str):
        return {"content": value, "special": True}
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        return None
    flags = {flag: value[flag] for flag in _FLAGS if isinstance(value.get(flag), bool)}
    return {"content": value["content"], **flags, **({"special": True} if special else {})}


def _invalid(path: Path, reason: str) -> NoReturn:
    fail(
        "tokenizer-invalid",
        f"'{path}' is not valid: {reason}",
        help="get the file again",
    )
