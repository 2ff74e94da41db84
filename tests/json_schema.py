"""What a JSON schema says of a value, for the words of draft 2020-12 that ours are written in."""

import re

_TYPES = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
    "integer": int, "number": (int, float),
}  # fmt: skip
_SAID_ELSEWHERE = {"$schema", "$id", "title", "description", "$defs", "required"}


def faults(value, schema, root=None, where="$"):
    """Each place of ``value`` that is not as ``schema`` says, in words. Raises KeyError for a word
    that is not known here."""
    root = schema if root is None else root
    found = []
    for word, said in schema.items():
        if word not in _SAID_ELSEWHERE:
            found += [f"{where}: {text}" for text in _JUDGES[word](value, said, root)]
    if isinstance(value, dict):
        missing = [name for name in schema.get("required", ()) if name not in value]
        found += [f"{where}: '{name}' is missing" for name in missing]
        named, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
        for name, each in value.items():
            if name in named or isinstance(rest, dict):
                found += faults(each, named.get(name, rest), root, f"{where}.{name}")
            elif not rest:
                found.append(f"{where}: '{name}' is unknown")
    if isinstance(value, list) and "items" in schema:
        for number, each in enumerate(value):
            found += faults(each, schema["items"], root, f"{where}[{number}]")
    return found


def _is(value, kind):
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _judge(holds, kind=object):
    """A judge that has one fault where ``holds`` does not; of what is not of its ``kind`` none."""

    def judge(value, said, _):
        sound = not isinstance(value, kind) or holds(value, said)
        return [] if sound else [f"{value!r} is not {said!r}"]

    return judge


def _reference(value, said, root):
    return faults(value, root["$defs"][said.removeprefix("#/$defs/")], root)


def _any_of(value, said, root):
    every = [faults(value, one, root) for one in said]
    return [] if [] in every else min(every, key=len)


_NOTHING = _judge(lambda value, said: True)
_JUDGES = {
    "type": _judge(lambda v, s: any(_is(v, kind) for kind in ([s] if isinstance(s, str) else s))),
    "const": _judge(lambda v, s: v == s),
    "enum": _judge(lambda v, s: v in s),
    "minimum": _judge(lambda v, s: v >= s, int),
    "maximum": _judge(lambda v, s: v <= s, int),
    "minItems": _judge(lambda v, s: len(v) >= s, list),
    "maxItems": _judge(lambda v, s: len(v) <= s, list),
    "pattern": _judge(lambda v, s: re.search(s, v) is not None, str),
    "properties": _NOTHING,
    "additionalProperties": _NOTHING,
    "items": _NOTHING,
    "$ref": _reference,
    "anyOf": _any_of,
}
