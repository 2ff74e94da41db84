"""From keys and values as they stand in a file or a header to a device: all faults at once.

In a device file a number is a table of value, unit, kind and source, or a bare value, which then is
assumed. ``[sources]`` may spell out the short names that sources start with. ``[level.NAME]`` has
the links of a level above the innermost.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from meshc.devices.axes import WAFER
from meshc.devices.device import Device
from meshc.devices.keys import (
    CLUSTERS,
    CSL,
    DTYPES,
    FACTS,
    KEYS,
    KINDS,
    LINK,
    NUMBERS,
    ROUTING,
    SHAPES,
    Key,
    ids,
    points,
)
from meshc.devices.numbers import Number, Numbers
from meshc.support.diagnostics import Diagnostics
from meshc.support.spans import Source, Span

MAX_UNKNOWN = 20
MAX_TEXT = 200

UNSOURCED = "stated without a source"
"""The source of a number that a device file gives as a bare value."""

_USUAL: dict[str, str | bool] = {"axes": str(WAFER), "push": False, "enforced": True}
_LINK_KEYS = f"write [level.NAME] with {', '.join(LINK)}"
_TABLE = ("value", "unit", "kind", "source")
_TABLES = ("sources", "level")
_OF_ONE = ("name", "description", *_TABLES)
"""Keys of a device that no other one is like in."""


def device_of_file(values: Mapping[str, object], source: Source) -> Device:
    """The device that the TOML file ``source`` with the keys ``values`` describes.

    Raises ``bad-device`` with every fault at once, each with its line: keys that are unknown, that
    every device must have, ill-typed, out of range or contradicting, and numbers whose unit is
    another or whose kind or source is missing.
    """
    check = _Check(source)
    titles = check.titles(values.get("sources", {}))
    given = {name: value for name, value in values.items() if name not in ("sources", "level")}
    links = check.tables(values.get("level", {}))
    found = device_of(
        *check.split(given),
        titles,
        {name: Numbers(*check.split(own)) for name, own in links.items()},
    )
    check.known(given)
    check.given(found)
    check.required(found)
    check.levels(found)
    check.together(found)
    check.found.raise_errors()
    return found


def as_on(like: str, base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The keys ``own`` of a device's file, and those of the device ``like``, ``base``, which are
    not among them: what was published or calibrated there is assumed here."""
    taken = {key: _as_on(like, value) for key, value in base.items() if key not in _OF_ONE}
    merged = {**taken, **{key: value for key, value in own.items() if key not in _TABLES}}
    levels = {
        name: {key: _as_on(like, value) for key, value in links.items()}
        for name, links in base.get("level", {}).items()
    }
    said = own.get("level", {})
    for name, links in said.items() if isinstance(said, dict) else ():
        levels[name] = {**levels.get(name, {}), **links} if isinstance(links, dict) else links
    if levels:
        merged["level"] = levels if isinstance(said, dict) else said
    texts = [str(one.get("source")) for one in merged.values() if isinstance(one, dict)]
    titles = {
        name: title
        for name, title in base.get("sources", {}).items()
        if any(re.search(rf"\b{re.escape(name)}\b", text) for text in texts)
    }
    told = own.get("sources", {})
    merged["sources"] = {**titles, **told} if isinstance(told, dict) else told
    return merged


def _as_on(like: str, value: Any) -> Any:
    if isinstance(value, dict) and value.get("kind") in ("published", "calibrated"):
        return {**value, "kind": "assumed", "source": f"as on {like}"}
    return value


def device_of(
    facts: Mapping[str, str | bool],
    numbers: Mapping[str, Number],
    sources: Mapping[str, str] | None = None,
    level_links: Mapping[str, Numbers] | None = None,
) -> Device:
    """A device in the order of the keys; a word such as ``unlimited`` stands for no number. What is
    not said is that axes are those of a wafer, data waits in queues and limits are enforced."""
    links = {
        name: Numbers(_facts({"push": False, **own.facts}), _spoken(own.numbers))
        for name, own in (level_links or {}).items()
    }
    return Device(_facts({**_USUAL, **facts}), _spoken(numbers), sources or {}, links)


def _facts(said: Mapping[str, str | bool]) -> dict[str, str | bool]:
    return {k.name: said[k.name] for k in FACTS if k.name in said}


def _spoken(numbers: Mapping[str, Number]) -> dict[str, Number]:
    ordered = {k.name: numbers[k.name] for k in NUMBERS if k.name in numbers}
    return {
        name: Number(None, number.kind, number.source)
        if number.value == (KEYS[name].without or None)
        else number
        for name, number in ordered.items()
    }


def check_device(device: Device) -> None:
    """Check a device of which some numbers may be missing, as in the header of a module.

    Raises ``bad-device`` with every value that is ill-typed, out of range or contradicts another.
    """
    check = _Check(None)
    check.given(device)
    check.levels(device)
    check.memory(device)
    check.reserved(device)
    check.found.raise_errors()


class _Check:
    """Collects the faults of one device."""

    def __init__(self, source: Source | None) -> None:
        self.source, self.found = source, Diagnostics()
        self.lines = _lines_of_keys(source.text if source else "")

    def error(self, key: str, message: str, help: str | None = None) -> None:
        self.found.error("bad-device", message, self.place(key), help=help)

    def place(self, key: str) -> Span | None:
        if self.source is None:
            return None
        line, column = self.lines.get(key, (1, 1))
        return Span(self.source, line, column, len(key))

    # --- the form of a file

    def titles(self, value: object) -> dict[str, str]:
        """The ``[sources]`` of a file."""
        entries = value.items() if isinstance(value, dict) else [("", value)]
        found = {str(name): title for name, title in entries if isinstance(title, str) and title}
        if len(found) != len(entries) or not isinstance(value, dict):
            self.error("sources", "'sources' must be a table of texts", 'write SDK = "the title"')
        return found

    def tables(self, value: object) -> dict[str, dict[str, object]]:
        """The tables ``[level.NAME]`` of a file, by name."""
        entries = value.items() if isinstance(value, dict) else [("", value)]
        found = {str(name): dict(own) for name, own in entries if isinstance(own, dict)}
        if len(found) != len(entries):
            self.error("level", "'level' must be a table for each level", "write [level.NAME]")
        for name, own in found.items():
            self.known({key: value for key, value in own.items() if key not in LINK})
            for key in sorted(own.keys() & KEYS.keys() - set(LINK)):
                self.error(key, f"'{key}' is no key of the level '{name[:80]}'", _LINK_KEYS)
        return {
            name: {key: value for key, value in own.items() if key in LINK}
            for name, own in found.items()
        }

    def split(self, given: Mapping[str, object]) -> tuple[dict[str, str | bool], dict[str, Number]]:
        """The facts and the numbers among the keys of a table."""
        numbers = {name: self.stated(name, value) for name, value in given.items()}
        return (
            {k.name: given[k.name] for k in FACTS if k.name in given},  # type: ignore[misc]
            {k.name: numbers[k.name] for k in NUMBERS if k.name in numbers},
        )

    def stated(self, name: str, value: object) -> Number:
        """The number of a file's key: a table of value, unit, kind and source, or a bare value."""
        key = KEYS.get(name)
        if not isinstance(value, dict) or key is None or not key.unit:
            return Number(value, "assumed", UNSOURCED)  # type: ignore[arg-type]
        example = f'{{value = .., unit = "{key.unit}", kind = "assumed", source = ".."}}'
        for word in _TABLE:
            if word not in value:
                self.error(name, f"'{name}' has no {word}", f"write {name} = {example}")
        for word in sorted(value.keys() - set(_TABLE)):
            self.error(
                name, f"'{name}' has no place for '{word[:80]}'", f"write {name} = {example}"
            )
        unit, kind, source = (value.get(word) for word in _TABLE[1:])
        if unit not in (None, key.unit):
            self.error(name, f"'{name}' is in {key.unit}, not in {str(unit)[:80]}")
        if kind is not None and kind not in KINDS:
            self.error(name, f"the kind of '{name}' must be one of {', '.join(KINDS)}")
        if source is not None and not (isinstance(source, str) and 0 < len(source) <= MAX_TEXT):
            self.error(name, f"the source of '{name}' must have 1 to {MAX_TEXT} characters")
        trust = next((known for known in KINDS if known == kind), KINDS[-1])
        return Number(value.get("value", 0), trust, str(source))

    def known(self, given: Mapping[str, object]) -> None:
        """Every key is one of a device."""
        unknown = [str(name)[:80] for name in given if name not in KEYS]
        for name in unknown[:MAX_UNKNOWN]:
            self.error(name, f"unknown device key '{name}'", nearest(name))
        if len(unknown) > MAX_UNKNOWN:
            self.error("", f"and {len(unknown) - MAX_UNKNOWN} more unknown device keys")

    def required(self, device: Device) -> None:
        """What every device says."""
        for key in KEYS.values():
            if key.required and key.name not in device.facts and key.name not in device.numbers:
                self.error(key.name, f"device key '{key.name}' is missing", f"it is {key.doc}")

    # --- values

    def given(self, device: Device) -> None:
        """Values of the right shape, within their limits."""
        for table in (device, *device.level_links.values()):
            for name, fact in table.facts.items():
                self.value(KEYS[name], fact)
            for name, number in table.numbers.items():
                if number.value is not None:
                    self.value(KEYS[name], number.value)

    def value(self, key: Key, value: object) -> None:
        words, fits = SHAPES[key.shape]
        if key.without and isinstance(value, str):
            words = f'{words} or "{key.without}"'
        if not fits(value):
            self.error(key.name, f"'{key.name}' must be {words}", f"it is {key.doc}")
        elif key.choices and value not in key.choices:
            self.error(key.name, f"'{key.name}' must be one of {', '.join(key.choices)}")
        elif isinstance(value, (int, float)) and not key.low <= value <= key.high:
            limits = f"between {key.low:g} and {key.high:g}"
            self.error(key.name, f"'{key.name}' must be {limits}, not {value}")
        elif key.shape == "text" and not 0 < len(str(value)) <= MAX_TEXT:
            self.error(key.name, f"'{key.name}' must have 1 to {MAX_TEXT} characters")

    # --- what no single key can say

    def together(self, device: Device) -> None:
        """All that keys say of each other."""
        self.memory(device)
        self.computing(device)
        self.routing(device)
        self.clusters(device)
        self.csl(device)

    def levels(self, device: Device) -> None:
        """Every level but the innermost says how its cores are joined, and no other does."""
        *outer, inner = str(device.facts.get("levels", "device")).split(" ")
        for name in dict.fromkeys(outer):
            if name != inner and name not in device.level_links:
                self.error("levels", f"the links of level '{name}' are missing", _LINK_KEYS)
        for name, own in device.level_links.items():
            if name == inner or name not in outer:
                what = f"'{name[:80]}' is no level of the device above the innermost"
                self.error("level", what, f"'levels' says {device.facts.get('levels', 'nothing')}")
                continue
            for key in (KEYS[k] for k in LINK):
                given = key.name in own.facts or key.name in own.numbers
                if not given and key.name != "push":
                    self.error("level", f"'{key.name}' of level '{name}' is missing", _LINK_KEYS)

    def memory(self, device: Device) -> None:
        memory, reserved = (_value(device, n) for n in ("memory_bytes", "reserved_bytes"))
        if isinstance(memory, int) and isinstance(reserved, int) and reserved >= memory:
            self.error("reserved_bytes", "reserved_bytes leave nothing of memory_bytes")

    def computing(self, device: Device) -> None:
        dtype = device.facts.get("default_dtype")
        for suffix in ("macs_per_cycle", "lanes_per_cycle"):
            if dtype in DTYPES and f"{dtype}_{suffix}" not in device.numbers:
                self.error("default_dtype", f"'{dtype}_{suffix}' of the default dtype is missing")

    def all_or_none(self, device: Device, keys: tuple[Key, ...], what: str) -> None:
        """An error for each of ``keys`` that is not given beside one that is; what is said to be
        unlimited asks for nothing."""
        finite = [k for k in keys if _value(device, k.name) is not None]
        for key in keys:
            if finite and key.name not in device.numbers:
                message = f"device key '{key.name}' is missing beside '{finite[0].name}'"
                self.error(finite[0].name, message, f"give all {what} keys, or none")

    def clusters(self, device: Device) -> None:
        self.all_or_none(device, CLUSTERS, "cluster")
        kind = device.facts.get("kind")
        if kind == "cluster" and "cluster_sizes" not in device.numbers:
            self.error("kind", "a device of kind 'cluster' has no cluster keys")
        for name in ("global_memory_bytes", "global_bytes_per_second"):
            if kind == "cluster" and not _value(device, name):
                self.error(name, f"a device of kind 'cluster' needs a positive '{name}'")
        sizes, speeds = (_value(device, n) for n in ("cluster_sizes", "cluster_bytes_per_second"))
        if SHAPES["points"][1](speeds) and not all(v for _, v in points(str(speeds))):
            self.error("cluster_bytes_per_second", "a bandwidth between blocks is not positive")
        if SHAPES["ids"][1](sizes) and 0 in ids(str(sizes)):
            self.error("cluster_sizes", "a cluster has at least one block")

    def csl(self, device: Device) -> None:
        """What programs in CSL need to know."""
        needed = (*ROUTING, KEYS["memory_bytes"], KEYS["bound_output_queues"], *CSL)
        if "csl_arch" not in device.facts:
            return
        for key in needed:
            if key.name not in device.facts and _value(device, key.name) is None:
                self.error("csl_arch", f"'{key.name}' of a device for CSL is missing", key.doc)

    def routing(self, device: Device) -> None:
        self.all_or_none(device, ROUTING, "routing")
        self.reserved(device)
        free, total = _value(device, "free_task_ids"), _value(device, "task_ids")
        if SHAPES["ids"][1](free) and isinstance(total, int) and max(ids(str(free))) >= total:
            top = max(ids(str(free)))
            self.error("free_task_ids", f"'free_task_ids' names {top}; there are only {total}")

    def reserved(self, device: Device) -> None:
        """Programs need at least one of each resource."""
        for key in ROUTING:
            what = key.name.removeprefix("reserved_")
            kept, total = _value(device, key.name), _value(device, what)
            both = isinstance(kept, int) and isinstance(total, int)
            if what != key.name and both and kept >= total:  # type: ignore[operator]
                self.error(key.name, f"'{key.name}' leaves programs none of the {total} {what}")


def nearest(name: str) -> str:
    """Help for a key that is unknown."""
    near = difflib.get_close_matches(name, KEYS, n=1)
    meant = f"did you mean '{near[0]}'? " if near else ""
    return f"{meant}'meshc devices wse2' shows the keys of a device"


def _value(device: Device, name: str) -> object:
    number = device.numbers.get(name)
    return None if number is None else number.value


def _lines_of_keys(text: str) -> dict[str, tuple[int, int]]:
    """Line and column where each key of a TOML text stands (its first, if several)."""
    found: dict[str, tuple[int, int]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if match := re.match(r"[\s\[]*[\"']?([A-Za-z0-9_-]+)[\"']?\s*[=.\]]", line):
            found.setdefault(match[1], (number, match.start(1) + 1))
    return found
