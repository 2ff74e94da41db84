"""Values of TOML and JSON files as what dataclasses declare: one reader for tables of families,
manifests and results.

A field's annotation says what may stand there: a text, a whole number, a number, a truth value,
null, one of several, lists, tables by name, and other dataclasses. Nothing is converted but lists
to tuples and sets, so a number that is written without a point stays a whole one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from importlib import resources
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

_T = TypeVar("_T")
_Reader = Callable[[Any, str], Any]
_WORDS = {
    str: "a text", int: "a whole number", float: "a number", bool: "true or false",
    NoneType: "null",
}  # fmt: skip
_MOST_SHOWN = 60


@cache
def toml_of(package: str, path: str) -> Mapping[str, Any]:
    """The TOML file at ``path`` inside of ``package``, a part of meshc; all callers share it."""
    return tomllib.loads(resources.files(package).joinpath(path).read_text(encoding="utf-8"))


def declared(kind: type[_T], value: object, place: str = "") -> _T:
    """``value``, as a TOML or JSON file has it, as a ``kind``: a dataclass, or another annotation.

    Raises ValueError, which names the ``place`` in the file: for a field that is missing, unknown
    or of another type, and whatever a dataclass finds wrong when it is made.
    """
    annotation: Any = kind
    found: _T = _reader(annotation)(value, place)
    return found


@cache
def _reader(kind: Any) -> _Reader:
    """What reads values of an annotation."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in (Any, object):
        return lambda value, place: value
    if kind in _WORDS:
        return _plain(kind)
    if origin in (Union, UnionType):
        return _one_of([_reader(one) for one in args], args)
    if origin is Literal:
        return _word(args)
    if origin is tuple and args[1:] != (...,):
        return _row([_reader(one) for one in args])
    if origin in (tuple, list, frozenset, Sequence):
        return _list(tuple if origin is Sequence else origin, _reader(args[0]))
    if origin in (dict, Mapping):
        return _named(_reader(args[1]))
    if is_dataclass(kind):
        return _record(kind)
    raise TypeError(f"no file has a {kind}")


def _fail(place: str, value: object, wanted: str) -> Any:
    shown = repr(value)
    shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}.."
    raise ValueError(f"{place + ' is ' if place else ''}{shown}, not {wanted}")


def _inside(place: str, name: object) -> str:
    return f"{place}.{name}" if place else str(name)


def _plain(kind: type) -> _Reader:
    kinds = (int, float) if kind is float else (kind,)
    return lambda value, place: value if type(value) in kinds else _fail(place, value, _WORDS[kind])


def _word(words: Collection[object]) -> _Reader:
    wanted = " or ".join(map(repr, words))
    return lambda value, place: value if value in words else _fail(place, value, wanted)


def _one_of(readers: Sequence[_Reader], kinds: Sequence[Any]) -> _Reader:
    """The first of several annotations that reads a value; what the only table among them finds
    wrong is said of it."""

    def read(value: Any, place: str) -> Any:
        problems = []
        for reader, kind in zip(readers, kinds, strict=True):
            try:
                return reader(value, place)
            except ValueError as problem:
                if is_dataclass(kind) and isinstance(value, Mapping):
                    raise
                problems.append(str(problem).rpartition(", not ")[2])
        return _fail(place, value, " or ".join(problems))

    return read


def _row(readers: Sequence[_Reader]) -> _Reader:
    def read(value: Any, place: str) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(readers):
            _fail(place, value, f"a list of {len(readers)}")
        parts = zip(readers, value, strict=True)
        return tuple(one(part, f"{place}[{n}]") for n, (one, part) in enumerate(parts))

    return read


def _list(kind: Callable[[Any], Any], element: _Reader) -> _Reader:
    def read(value: Any, place: str) -> Any:
        if not isinstance(value, list | tuple):
            _fail(place, value, "a list")
        return kind(element(one, f"{place}[{n}]") for n, one in enumerate(value))

    return read


def _named(element: _Reader) -> _Reader:
    def read(value: Any, place: str) -> Any:
        if not isinstance(value, Mapping):
            _fail(place, value, "a table")
        return {name: element(one, _inside(place, name)) for name, one in value.items()}

    return read


def _record(kind: Any) -> _Reader:
    hints = get_type_hints(kind)
    readers = {one.name: _reader(hints[one.name]) for one in fields(kind)}
    needed = [
        one.name
        for one in fields(kind)
        if one.default is MISSING and one.default_factory is MISSING
    ]

    def read(value: Any, place: str) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, Mapping):
            _fail(place, value, "a table")
        missing = [name for name in needed if name not in value]
        unknown = [str(name) for name in value if name not in readers]
        for what, names in (("no", missing), ("an unknown", unknown)):
            if names:
                raise ValueError(f"{place or 'the file'} has {what} '{names[0][:_MOST_SHOWN]}'")
        made = {name: readers[name](one, _inside(place, name)) for name, one in value.items()}
        return kind(**made)

    return read
