"""What to do with the keys of a ``config.json`` that meshc does not read.

Most are inert at inference (dropout, initialisation, bookkeeping) and are passed over. A key
that changes the maths is an error unless its value switches the feature off. An unknown key is
an error when its name speaks of such a feature, and a remark otherwise. ``keys.toml`` has the
lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial

from meshc.frontend.checkpoints.fields import MESSAGE_LIMIT, Fields, brief
from meshc.frontend.families import family_named
from meshc.support.declared_values import toml_of

_USUAL = "llama"
_table = partial(toml_of, "meshc.frontend.checkpoints.hf", "keys.toml")


@dataclass(frozen=True)
class _KeyLists:
    passed_over: frozenset[str]
    maths: frozenset[str]
    maths_words: tuple[str, ...]
    neutral: dict[str, object]

    def changes_maths(self, key: str) -> bool:
        return key in self.maths or any(word in key for word in self.maths_words)

    def is_neutral(self, key: str, value: object) -> bool:
        """Whether ``value`` switches a feature ``key`` off. 0 and 1 are not false and true."""
        neutral = self.neutral.get(key, False)
        if value is None or value == [] or value == {}:
            return True
        if value is False and neutral is not True:
            return True
        return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def inert_keys() -> dict[str, str]:
    """Keys that are passed over whatever the family, and why."""
    return {key: reason for reason, keys in _table()["inert"].items() for key in keys}


@cache
def _key_lists() -> _KeyLists:
    table = _table()
    return _KeyLists(
        frozenset(table["read"]) | inert_keys().keys(),
        frozenset(table["maths"]),
        tuple(table["maths_words"]),
        table["neutral"],
    )


def keys_of_maths(config: Mapping[str, object]) -> list[str]:
    """Keys of a ``config.json`` that change the maths and that llama has not, in its order."""
    lists = _key_lists()
    common = family_named(_USUAL).tables[_USUAL].keys()
    return [
        key
        for key, value in config.items()
        if key not in lists.passed_over
        and key not in common
        and lists.changes_maths(key)
        and not lists.is_neutral(key, value)
    ]


def judge_unread_keys(fields: Fields, read: frozenset[str]) -> None:
    """Error or remark for every key that no reader took, neither for all families nor, in ``read``,
    for this one; in the order of the file."""
    lists = _key_lists()
    remarks = 0
    for key, value in fields.values.items():
        if key in lists.passed_over or key in read or lists.is_neutral(key, value):
            continue
        if not lists.changes_maths(key):
            remarks += 1
            if remarks <= MESSAGE_LIMIT:
                message = f"'{key}' is not used by meshc"
                fields.diagnostics.remark("config-unused-key", message, fields.span(key))
        else:
            fields.reject(
                "config-unsupported",
                key,
                f"'{key}' = {brief(value)} changes the maths and is not supported",
                "meshc will not compile a model that it would compute differently; "
                "remove the key only if the model does not depend on it",
            )
