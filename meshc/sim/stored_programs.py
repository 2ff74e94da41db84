"""Compiled programs as files: JSON text, values by class name and fields, checked when read.

A file may come from anywhere. Reading builds nothing but the classes below, checks the type of each
field against its annotation, and takes no name that could be anything but a name in the code
generated from it. Descriptors, types, routes and functions are written once where they are equal,
and referred to by number: classes of PEs have most functions in common. The local variables of a
function, each of which is one object wherever it appears, are listed in front of it.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import json
import os
import re
import types
import typing
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from meshc.sim import control_flow, descriptors, grids, ir, program, route_configs
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema import unit
from meshc.support.diagnostics import fail
from meshc.support.files import replace_file

FILE_NAME = "program.sim"
_MAX_EDGE, _MAX_BYTES = 4096, 1 << 16
FORMAT, VERSION = "meshc simulator program", 3

_NAME = re.compile(r"(?!__)\w*|[-+*/%&|^~<>=!]{1,3}", re.ASCII)
_TEXT_FIELDS = ("place", "source")


class Damaged(Exception):
    """The text is no program: ``args[0]`` says what is wrong."""


def _classes() -> dict[str, type[Any]]:
    found: dict[str, type[Any]] = {}
    for module in (descriptors, grids, ir, program, route_configs, ty):
        for name, kind in vars(module).items():
            if isinstance(kind, type) and kind.__module__ == module.__name__:
                found[name] = kind
    for name in ("TaskId", "Expr", "Stmt", "Type"):  # task ids are resolved; the others are bases
        del found[name]
    found["Export"] = unit.Export
    return found


CLASSES = _classes()


def _shared(kind: type[Any]) -> bool:
    """Whether values of a class are written once and referred to."""
    return issubclass(kind, ty.Type | tuple | route_configs.ColorConfig)


def _field_names(kind: type[Any]) -> tuple[str, ...]:
    if issubclass(kind, tuple):
        return tuple(typing.cast(Any, kind)._fields)
    return tuple(f.name for f in dataclasses.fields(kind) if f.name not in ("order", "starts"))


def _hints(kind: type[Any]) -> tuple[Any, ...]:
    hints = typing.get_type_hints(kind)
    return tuple(hints[name] for name in _field_names(kind))


FIELDS = {name: _field_names(kind) for name, kind in sorted(CLASSES.items())}
SHARED = frozenset(kind for kind in CLASSES.values() if _shared(kind))


_PLAIN = frozenset({type(None), bool, int, str})
"""Types of values that JSON has itself."""


# --- writing ---


class _Writer:
    """Turns values into JSON values; ``table`` holds those that are shared."""

    def __init__(self) -> None:
        self.table: list[Any] = []
        self.numbers: dict[Any, int] = {}
        self.variables: dict[ir.Var, int] = {}

    def value(self, value: Any) -> Any:
        """``value`` as a JSON value: scalars as they are, all else as a list with a tag."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is ir.Var:
            return ["var", self.variables.setdefault(value, len(self.variables))]
        if kind is ir.Function:
            return self._function(value)
        if CLASSES.get(kind.__name__) is kind:
            return self._reference(value) if kind in SHARED else self._record(value)
        if isinstance(value, float):
            return ["float", value.hex()]
        if isinstance(value, bytes):
            return ["bytes", base64.b64encode(value).decode("ascii")]
        if isinstance(value, np.ndarray):
            packed = zlib.compress(value.astype("<i4").tobytes(), 1)
            return ["grid", *value.shape, base64.b64encode(packed).decode("ascii")]
        if isinstance(value, list):
            return ["list", *map(self.value, value)]
        if isinstance(value, tuple):
            return ["tuple", *map(self.value, value)]
        if isinstance(value, dict):
            return ["dict", *([self.value(k), self.value(v)] for k, v in value.items())]
        raise TypeError(f"no way to write {value!r}")

    def _record(self, value: Any) -> Any:
        name = type(value).__name__
        return [name, *(self.value(getattr(value, field)) for field in FIELDS[name])]

    def _reference(self, value: Any) -> Any:
        key = type(value), value
        number = self.numbers.get(key)
        if number is None:
            number = self._entered(key, self._record(value))
        return ["ref", number]

    def _function(self, function: ir.Function) -> Any:
        self.variables = {}
        record = self._record(function)
        listed = ["function", [self._record(var) for var in self.variables], record]
        key = json.dumps(listed)
        number = self.numbers.get(key)
        return ["ref", self._entered(key, listed) if number is None else number]

    def _entered(self, key: Any, record: Any) -> int:
        number = self.numbers[key] = len(self.table)
        self.table.append(record)
        return number


def dumps(value: program.Program) -> str:
    """A program as text; equal programs give equal texts."""
    writer = _Writer()
    root = writer.value(value)
    document = {
        "format": FORMAT, "version": VERSION, "fields": FIELDS, "table": writer.table,
        "program": root,
    }  # fmt: skip
    return json.dumps(document, separators=(",", ":"))


# --- reading ---


class _Reader:
    """Builds values from JSON values."""

    def __init__(self) -> None:
        self.table: list[Any] = []
        self.variables: list[ir.Var] = []

    def value(self, data: Any) -> Any:
        """The value that ``data`` describes. Raises :class:`Damaged`."""
        if type(data) is not list:
            if type(data) in _PLAIN:
                return data
            raise Damaged(f"a bare {type(data).__name__}")
        if not data or not isinstance(data[0], str):
            raise Damaged("a list without a tag")
        tag = data[0]
        if tag in CHECKED:
            return self._record(tag, data)
        parts = data[1:]
        match tag:
            case "ref":
                return _referred(parts, self.table)
            case "var":
                return _referred(parts, self.variables)
            case "function":
                return self._function(*parts)
            case "list":
                return [self.value(p) for p in parts]
            case "tuple":
                return tuple(self.value(p) for p in parts)
            case "dict":
                return {self.value(k): self.value(v) for k, v in parts}
            case "float":
                return float.fromhex(parts[0])
            case "bytes":
                return base64.b64decode(parts[0], validate=True)
            case "grid":
                return _grid(*parts)
        raise Damaged(f"the unknown tag {tag!r}")

    def _function(self, variables: list[Any], record: Any) -> Any:
        self.variables = [self.value(variable) for variable in variables]
        return self.value(record)

    def _record(self, name: str, data: list[Any]) -> Any:
        kind, fields = CHECKED[name]
        if len(data) != len(fields) + 1:
            raise Damaged(f"a {name} of {len(data) - 1} fields instead of {len(fields)}")
        values, read = [], self.value
        for position, (field, conforms, code) in enumerate(fields, 1):
            value = data[position]
            if type(value) not in _PLAIN:
                value = read(value)
            if not conforms(value):
                raise Damaged(f"a {name} whose {field} is {value!r}"[:200])
            if code and type(value) is str:
                _check_name(value)
            values.append(value)
        return kind(*values)


def _referred(parts: list[Any], entries: list[Any]) -> Any:
    if len(parts) != 1 or type(parts[0]) is not int or not 0 <= parts[0] < len(entries):
        raise Damaged("a reference to nothing")
    return entries[parts[0]]


def _grid(rows: int, columns: int, packed: str) -> Any:
    """An array of numbers for PEs; no more is unpacked than it holds."""
    if not (type(rows) is int and type(columns) is int and rows >= 0 and columns >= 0):
        raise Damaged(f"a grid of {rows!r} by {columns!r}"[:200])
    if rows * columns > grids.MOST_PES:
        raise Damaged(f"a grid of {rows} by {columns}")
    size = 4 * rows * columns
    data = zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), size + 1)
    if len(data) != size:
        raise Damaged(f"a grid of {rows} by {columns} in {len(data)} bytes")
    return np.frombuffer(data, "<i4").astype(np.int32).reshape(rows, columns)


def _check_name(value: str) -> None:
    if _NAME.fullmatch(value) is None:
        raise Damaged(f"the name {value[:40]!r}")


@functools.cache
def conforming(hint: Any) -> Callable[[Any], bool]:
    """What says whether a value has the type of an annotation."""
    if hint is Any:
        return lambda value: True
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if int not in args and not any(map(typing.get_origin, args)):
            return lambda value: isinstance(value, args)
        options = [conforming(option) for option in args]
        return lambda value: any(option(value) for option in options)
    if origin is list:
        element = conforming(args[0])
        return lambda value: type(value) is list and all(map(element, value))
    if origin is dict:
        key, element = map(conforming, args)
        return lambda value: (
            type(value) is dict and all(key(k) and element(v) for k, v in value.items())
        )
    if origin is tuple:
        return _conforming_tuple(args)
    if hint is int:
        return lambda value: type(value) is int
    return lambda value: isinstance(value, hint)


def _conforming_tuple(args: tuple[Any, ...]) -> Callable[[Any], bool]:
    if len(args) == 2 and args[1] is Ellipsis:
        element = conforming(args[0])
        return lambda value: type(value) is tuple and all(map(element, value))
    parts = [conforming(arg) for arg in args]
    return lambda value: (
        type(value) is tuple
        and len(value) == len(parts)
        and all(part(v) for part, v in zip(parts, value, strict=True))
    )


def _checked(kind: type[Any]) -> tuple[tuple[str, Callable[[Any], bool], bool], ...]:
    """The fields of a class: the name, what says whether a value has its type, and whether a text
    becomes a name in generated code."""
    code = kind.__module__ == ir.__name__
    return tuple(
        (name, conforming(hint), code and name not in _TEXT_FIELDS)
        for name, hint in zip(_field_names(kind), _hints(kind), strict=True)
    )


CHECKED = {name: (kind, _checked(kind)) for name, kind in CLASSES.items()}
"""Each class with its fields."""


def loads(text: str) -> program.Program:
    """The program that :func:`dumps` wrote. Raises :class:`Damaged` for any other text."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise Damaged("another format")
        fields = {name: tuple(of) for name, of in document["fields"].items()}
        if document["version"] != VERSION or fields != FIELDS:
            raise Damaged("a program of another version of the simulator")
        reader = _Reader()
        for record in document["table"]:
            reader.table.append(reader.value(record))
        found = reader.value(document["program"])
    except (
        ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, OverflowError,
        zlib.error,
    ) as problem:  # fmt: skip
        raise Damaged(f"text that does not decode ({type(problem).__name__})") from problem
    if not isinstance(found, program.Program):
        raise Damaged("something else than a program")
    _check_extents(found)
    return found


def _check_extents(found: program.Program) -> None:
    """Fail where a number, or an architecture, could not have come from the compiler."""
    if found.arch not in ("wse2", "wse3"):
        raise Damaged("an architecture that is not known")
    if not (0 < found.width <= _MAX_EDGE and 0 < found.height <= _MAX_EDGE):
        raise Damaged(f"a rectangle of {found.width} by {found.height} PEs")
    _check_grids(found)
    named: dict[int, set[str]] = {}
    for pe in found.classes:
        stretches = [(s.addr, s.size) for s in pe.symbols]
        stretches += [(addr, len(data)) for addr, data in pe.image] + [(0, pe.end)]
        if not all(
            addr >= 0 and size >= 0 and addr + size <= _MAX_BYTES for addr, size in stretches
        ):
            raise Damaged(f"memory of '{pe.name}' outside of a PE")
        if not 0 <= pe.fifos <= _MAX_BYTES:
            raise Damaged(f"{pe.fifos} FIFOs of '{pe.name}'")
        missing = sorted(named_functions(pe, named) - {f.name for f in pe.functions})
        if missing:
            raise Damaged(f"a function '{missing[0][:40]}' that '{pe.name}' lacks")


def _check_grids(found: program.Program) -> None:
    classes, routed = found.tiles.classes, found.routes.numbers
    if not all(isinstance(grid, np.ndarray) for grid in (classes, *routed.values())):
        raise Damaged("something else than a grid")
    wrong = (classes < -1) | (classes >= len(found.classes))
    wrong[found.height :], wrong[:, found.width :] = True, True
    for y, x in np.argwhere(wrong & (classes != -1)).tolist():
        raise Damaged(f"the program {classes[y, x]} of PE ({x}, {y})")
    for color, grid in routed.items():
        if ((grid < -1) | (grid >= len(found.routes.configs))).any():
            raise Damaged(f"a route of color {color} that is not there")


def named_functions(pe: program.PeProgram, known: dict[int, set[str]]) -> set[str]:
    """Functions that tasks, exports and code name; ``known`` has those of functions by identity,
    since classes share functions."""
    tables = (pe.data_tasks, pe.local_tasks, pe.control_tasks, pe.teardown, pe.empty_handlers)
    found = {name for table in tables for name in table.values()}
    found |= {export.fn for export in pe.exports.values() if export.kind == "fn"}
    for function in pe.functions:
        names = known.get(id(function))
        if names is None:
            names = known[id(function)] = _named_in(function)
        found |= names
    return found


def _named_in(function: ir.Function) -> set[str]:
    found = set()
    for stmt in control_flow.statements(function.body):
        if isinstance(stmt, ir.CallFn):
            found.add(stmt.name)
        for expr in control_flow.expressions(stmt):
            inner = control_flow.inside(expr)
            found |= {part.name for part in inner if isinstance(part, ir.FnAddr)}
    return found


# --- files ---


def save_program(compiled: program.Program, folder: Path) -> None:
    """Write a program below ``folder``, whole or not at all, with its hash in the last line."""
    data = dumps(compiled).encode()
    replace_file(folder / FILE_NAME, data + f"\n{hashlib.sha256(data).hexdigest()}\n".encode())


def _sound(data: bytes) -> str:
    """The text of a file whose last line is its hash. Raises :class:`Damaged`."""
    text, _, digest = data.removesuffix(b"\n").rpartition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != digest:
        raise Damaged("it is cut short, or was changed")
    return text.decode("utf-8")


def load_program(folder: Path) -> program.Program:
    """Read what :func:`save_program` wrote.

    Raises MeshcError ``csl-no-program`` when there is none, ``csl-damaged-program`` when the file
    is none or was written by another version.
    """
    path = folder / FILE_NAME
    if not os.path.isfile(path):
        fail(
            "csl-no-program",
            f"there is no compiled program in '{folder}'",
            help="compile it first: cslc LAYOUT.csl -o DIR",
        )
    try:
        return loads(_sound(path.read_bytes()))
    except (Damaged, UnicodeDecodeError) as problem:
        reason = problem.args[0] if isinstance(problem, Damaged) else "no text"
        fail(
            "csl-damaged-program",
            f"'{path}' cannot be read: {reason}",
            help="compile the program again with cslc",
        )
