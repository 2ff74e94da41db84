"""What ``--json`` prints and what files of programs hold, as records that give JSON schemas.

``NAME.toml`` has an ``id``, a ``title``, what the whole ``is``, and a table for each record: the
keys of an object of JSON, each with what stands there. A key with ``?`` behind it may be missing,
``"*"`` says what all other keys have, and ``"..."`` names records whose keys this one has too. What
stands somewhere is written so, with a description behind ``:`` where a name does not say enough:

* ``string``, ``integer``, ``number``, ``boolean``, ``null``, ``any``, ``'this text'``, ``16``;
* ``integer 1..16``, ``integer 0..``: bounds; ``/^sm_/``: a text that the regular expression finds;
* ``message``: a record, of the same file or of ``shared.toml``;
* ``[string]``, ``[string] 2..2``: a list, and how many it has; ``{string}``: an object of any keys;
* ``integer | null``: one of several.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from meshc.support.declared_values import toml_of

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_SHARED = "shared"
_PLAIN = ("string", "integer", "number", "boolean", "null")
_TOKEN = re.compile(r"\s*('[^']*'|/[^/]*/|\d+\.\.\d*|\w+|[\[\]{}|])")


def schema_names() -> list[str]:
    """What there are schemas of: commands with ``--json``, ``errors``, and files of programs."""
    files = [file.name for file in resources.files(__name__).iterdir()]
    return sorted({name[:-5] for name in files if name.endswith(".toml")} - {_SHARED})


def json_schema(name: str) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of what ``schema_names`` calls ``name``. Its ``$id`` ends in
    a version, which is another one when something changes its meaning or goes."""
    said = toml_of(__name__, f"{name}.toml")
    head = {"$schema": _DRAFT, "$id": said["id"], "title": said["title"]}
    return head | _Records(said, toml_of(__name__, f"{_SHARED}.toml")).whole(said["is"])


class _Records:
    """The records of a file by name, and which of them a schema needs."""

    def __init__(self, said: Mapping[str, Any], shared: Mapping[str, Any]) -> None:
        self._declared = {**shared, **said}
        self._defined: dict[str, Any] = {}
        self.named: set[str] = set()

    def whole(self, text: str) -> dict[str, Any]:
        """The schema of a file that is ``text``, with what its records are."""
        schema = self._described(text)
        if "$ref" in schema:
            schema |= self._defined.pop(schema.pop("$ref").rpartition("/")[2])
        return schema | ({"$defs": self._defined} if self._defined else {})

    def _described(self, text: str) -> dict[str, Any]:
        kind, _, description = text.partition(": ")
        schema = self._one_of(tokens := _tokens(kind))
        if tokens:
            raise ValueError(f"'{tokens[-1]}' is left of '{kind}'")
        return {"description": description} | schema if description else schema

    def _one_of(self, tokens: list[str]) -> dict[str, Any]:
        """What the next tokens say (the last of the list are the next ones)."""
        kinds = [self._kind(tokens)]
        while tokens and tokens[-1] == "|":
            tokens.pop()
            kinds.append(self._kind(tokens))
        if len(kinds) == 1:
            return kinds[0]
        if all(list(kind) == ["enum"] for kind in kinds):
            return {"enum": [kind["enum"][0] for kind in kinds]}
        if all(list(kind) == ["type"] for kind in kinds):
            return {"type": [kind["type"] for kind in kinds]}
        return {"anyOf": kinds}

    def _kind(self, tokens: list[str]) -> dict[str, Any]:
        word = tokens.pop()
        if word == "any":
            return {}
        if word == "[":
            items = self._one_of(tokens)
            tokens.pop()
            return {"type": "array", "items": items} | _bounds(tokens, "minItems", "maxItems")
        if word == "{":
            values = self._one_of(tokens)
            tokens.pop()
            return {"type": "object", "additionalProperties": values}
        if word.isdigit():
            return {"const": int(word)}
        if word[0] == "'":
            return {"enum": [word[1:-1]]}
        if word[0] == "/":
            return {"type": "string", "pattern": word[1:-1]}
        if word in _PLAIN:
            return {"type": word} | _bounds(tokens, "minimum", "maximum")
        if word not in self._defined:
            self._defined[word] = {}
            self._defined[word] = self._record(self._keys(word))
        return {"$ref": f"#/$defs/{word}"}

    def _keys(self, name: str) -> dict[str, str]:
        """The keys of the record ``name``, also those of other records, with what stands there."""
        own = dict(self._declared[name])
        others = own.pop("...", "").split()
        self.named |= {name, *others}
        return {key: text for one in others for key, text in self._keys(one).items()} | own

    def _record(self, keys: dict[str, str]) -> dict[str, Any]:
        others = keys.pop("*", None)
        return {
            "type": "object",
            "properties": {key.rstrip("?"): self._described(text) for key, text in keys.items()},
            "required": [key for key in keys if not key.endswith("?")],
            "additionalProperties": False if others is None else self._described(others),
        }


def _tokens(text: str) -> list[str]:
    """The tokens of ``text``, the first one last."""
    if _TOKEN.sub("", text).strip():
        raise ValueError(f"'{text}' is no kind of value")
    tokens: list[str] = _TOKEN.findall(text)
    return tokens[::-1]


def _bounds(tokens: list[str], least: str, most: str) -> dict[str, int]:
    """What a token such as ``1..16`` says, if it is the next one."""
    if not tokens or ".." not in tokens[-1]:
        return {}
    first, last = tokens.pop().split("..")
    return {least: int(first)} | ({most: int(last)} if last else {})
