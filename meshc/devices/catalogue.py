"""Devices by name, and a user's own from a TOML file."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from meshc.devices.checks import as_on, device_of_file
from meshc.devices.device import Device
from meshc.support.diagnostics import MeshcError, fail
from meshc.support.plugins import Kind
from meshc.support.spans import Source, Span

MAX_FILE_BYTES = 65_536


def device_names() -> tuple[str, ...]:
    """The names of the catalogue, sorted."""
    entries = (resources.files("meshc.devices") / "data").iterdir()
    return tuple(sorted(e.name[:-5] for e in entries if e.name.endswith(".toml")))


def brought_devices() -> tuple[str, ...]:
    """Other devices, of installed packages. Raises ``bad-plugin``."""
    own = device_names()
    return tuple(name for name in KIND.names() if name not in own)


def device(name: str) -> Device:
    """The device called ``name``, or the one of the file ``name`` if it ends with ``.toml``.

    Raises ``unknown-device``, ``bad-plugin`` for one of an installed package, and what
    :func:`load_device` raises.
    """
    if name.endswith(".toml"):
        return load_device(Path(name))
    if name in device_names():
        return _catalogued(name)
    if (file := KIND.named(name)) is not None:
        return _of_entry(name, file)
    known = ", ".join((*device_names(), *brought_devices()))
    fail(
        "unknown-device",
        f"there is no device '{name}'",
        help=f"use one of {known}, or a file my.toml",
    )


def usual_values(numbers: Iterable[str]) -> dict[str, int | float | str]:
    """Each of ``numbers`` as the first device of the catalogue has it that has, or 1: to find out
    what else is asked for."""
    devices = [device(known) for known in device_names()]
    found: dict[str, int | float | str] = {}
    for number in numbers:
        given = (one.numbers[number].value for one in devices if number in one.numbers)
        found[number] = next((value for value in given if value is not None), 1)
    return found


@cache
def _catalogued(name: str) -> Device:
    return _of_entry(name, _file_of(name))


def _file_of(name: str) -> Traversable:
    return resources.files("meshc.devices") / "data" / f"{name}.toml"


def _of_entry(name: str, file: Traversable) -> Device:
    return _parsed(Source(f"{name}.toml", file.read_text(encoding="utf-8")))


def _fault(name: str, found: object) -> str:
    """What is wrong with what is offered as the file of the device ``name``, or an empty text."""
    if not isinstance(found, Traversable) or not found.is_file():
        return "is no file, such as one below importlib.resources.files"
    try:
        return "" if _of_entry(name, found).name == name else "calls itself otherwise"
    except MeshcError as error:
        first = error.diagnostics[0]
        return f"is no device: {first.message}" + (f" (at {first.span})" if first.span else "")


KIND = Kind("meshc.devices", "device", "docs/mesh-level.md", _fault)
"""Devices of installed packages: their files."""


def load_device(path: Path) -> Device:
    """A device from a TOML file of at most 64 KiB.

    Raises ``unreadable-device`` (missing, not a regular file, too large, not UTF-8 TOML) or
    ``bad-device`` (its keys).
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            fail("unreadable-device", f"'{path}' is not a regular file")
        with open(path, "rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        fail("unreadable-device", f"cannot read device file '{path}': {reason}")
    if len(data) > MAX_FILE_BYTES:
        fail("unreadable-device", f"device file '{path}' is larger than {MAX_FILE_BYTES} bytes")
    try:
        return _parsed(Source(str(path), data.decode("utf-8")))
    except UnicodeDecodeError as error:
        fail("unreadable-device", f"device file '{path}' is not UTF-8: {error.reason}")


def _parsed(source: Source) -> Device:
    try:
        values = tomllib.loads(source.text)
    except ValueError as error:  # not TOML, or a number of thousands of digits
        fail("unreadable-device", f"not TOML: {error}", _place(source, str(error)))
    except RecursionError:
        fail("unreadable-device", "device file nests too deeply", Span(source, 1, 1))
    like = values.pop("like", None)
    if like is None:
        return device_of_file(values, source)
    if like not in device_names():
        place = Span(source, source.text.partition("like")[0].count("\n") + 1, 1)
        known = f"use one of {', '.join(device_names())}"
        words = f"'like' names no device of the catalogue: '{str(like)[:80]}'"
        fail("bad-device", words, place, help=known)
    return device_of_file(as_on(like, _values(like), values), source)


@cache
def _values(name: str) -> dict[str, Any]:
    """The keys of the file of a device of the catalogue, as they would stand in it if it were
    ``like`` none."""
    values = tomllib.loads(_file_of(name).read_text(encoding="utf-8"))
    like = values.pop("like", None)
    return as_on(like, _values(like), values) if like is not None else values


def _place(source: Source, message: str) -> Span:
    """The place a TOML error speaks of: its text ends with ``(at line 3, column 5)``."""
    words = message.rstrip(")").replace(",", "").split()
    if len(words) > 4 and words[-4] == "line" and words[-3].isdigit() and words[-1].isdigit():
        return Span(source, int(words[-3]), int(words[-1]))
    return Span(source, max(1, source.text.count("\n")), 1)
