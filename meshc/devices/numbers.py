"""The facts and numbers of a device by key; whoever asks for one that is not there is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshc.devices.keys import CLUSTERS, KEYS, NUMBERS, SERVING, STEPS, Kind
from meshc.support.diagnostics import fail


@dataclass(frozen=True)
class Number:
    """One number of a device, in the unit of its key: ``None`` where the device has none (memory
    that is not limited), and text for a list of numbers.

    ``kind`` says how much to trust it and ``source`` where it is from; a dump of a module keeps the
    kind and leaves the source to the device's file.
    """

    value: int | float | str | None
    kind: Kind
    source: str = field(default="", compare=False)


@dataclass(frozen=True)
class Numbers:
    """``facts`` such as name and topology, and ``numbers`` by key. ``sources`` spells out the short
    names that the sources of numbers start with. Lookups raise ``device-number``."""

    facts: Mapping[str, str | bool]
    numbers: Mapping[str, Number]
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def fact(self, name: str) -> str | bool:
        """The fact ``name``."""
        if name not in self.facts:
            self._lacks(name)
        return self.facts[name]

    def number(self, name: str) -> Number:
        """The number ``name`` with its kind and source."""
        if name not in self.numbers:
            self._lacks(name)
        return self.numbers[name]

    def limit(self, name: str) -> int | None:
        """A whole number, or None where the device says that it has none."""
        value = self.number(name).value
        return None if value is None else int(value)

    def whole(self, name: str) -> int:
        """A whole number."""
        return int(self.value(name))

    def real(self, name: str) -> float:
        """A number."""
        return float(self.value(name))

    def value(self, name: str) -> int | float | str:
        """A number, or a list of numbers as text."""
        value = self.number(name).value
        if value is None:
            called, said = self.facts.get("name", ""), KEYS[name].without
            fail(
                "device-number",
                f"device '{called}' says '{said}' for '{name}' where a number is needed",
                help=_line_of(name),
            )
        return value

    def _lacks(self, name: str) -> None:
        called = self.facts.get("name", "")
        kind = self.facts.get("kind")
        of_blocks = () if kind == "cluster" else (*CLUSTERS, *STEPS)
        foreign = {*of_blocks, *(SERVING if kind != "node" else ())}
        others = [
            key.name
            for key in NUMBERS
            if key.name not in {*self.numbers, name, "cores"} and key not in foreign
        ]
        fail(
            "device-number",
            f"device '{called}' does not give '{name}' ({KEYS[name].doc}), which is needed here",
            notes=[f"nor does it give {', '.join(others)}"] if others else [],
            help=_line_of(name),
        )


def _line_of(name: str) -> str:
    """How a file of a device gives ``name``."""
    key = KEYS[name]
    if not key.unit:
        return f"write {name} = {'true' if key.shape == 'bool' else '..'} in the device's file"
    or_word = f' (or "{key.without}")' if key.without else ""
    return (
        f'write {name} = {{value = ..{or_word}, unit = "{key.unit}", kind = "assumed", '
        'source = ".."} in the device\'s file'
    )
