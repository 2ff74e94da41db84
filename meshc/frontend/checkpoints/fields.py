"""Typed, bounded access to the key-value pairs of a model file; every fault is a diagnostic.

A getter records a fault and returns a harmless stand-in, so that one run reports all of them;
the caller must call ``Diagnostics.raise_errors`` before it uses any value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from meshc.support.diagnostics import Diagnostics
from meshc.support.spans import Span

# A hostile file may hold a hundred thousand faults; nobody reads more than these.
MESSAGE_LIMIT = 32


@dataclass
class Fields:
    """The pairs of one object of the file ``name``; ``span`` finds a key in the text."""

    values: Mapping[str, object]
    name: str
    diagnostics: Diagnostics
    span: Callable[[str], Span | None] = lambda key: None
    bad: set[str] = field(default_factory=set)

    def has(self, key: str) -> bool:
        """Whether ``key`` is given and not null."""
        return self.values.get(key) is not None

    def reject(self, code: str, key: str, message: str, help: str) -> None:
        """Record the error ``code`` about ``key``."""
        self.bad.add(key)
        if len(self.diagnostics.errors) >= MESSAGE_LIMIT:
            return
        where = self.span(key)
        notes = () if where else (f"in '{self.name}'",)
        self.diagnostics.error(code, message, where, notes, help)

    def reject_value(self, key: str, wanted: str) -> None:
        """Record that the value of ``key`` is not what is ``wanted``."""
        message = f"'{key}' is {brief(self.values.get(key))}; {wanted}"
        self.reject("config-bad-value", key, message, f"set '{key}' to a value of this kind")

    def require(self, key: str) -> bool:
        """Record an error when ``key`` is missing or null."""
        if self.has(key):
            return True
        self.reject(
            "config-missing-key",
            key,
            f"'{self.name}' has no '{key}'",
            f"add '{key}'; the model is not defined without it",
        )
        return False

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """The integer at ``key`` in ``low..high``; ``default`` when absent, else it is required."""
        if default is not None and not self.has(key):
            return default
        if not self.require(key):
            return low
        value = self.values[key]
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        self.reject_value(key, f"an integer from {low} to {high} is wanted")
        return low

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """The finite number at ``key`` with low < number <= high; required without ``default``."""
        if default is not None and not self.has(key):
            return default
        if not self.require(key):
            return high
        value = self.values[key]
        # A huge int is compared, never converted; nan compares false.
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        if plain and low < cast(float, value) <= high:
            return float(cast(float, value))
        self.reject_value(key, f"a number above {low:g} and at most {high:g} is wanted")
        return high

    def boolean(self, key: str, default: bool) -> bool:
        """The truth value at ``key``, or ``default`` when absent."""
        if not self.has(key):
            return default
        value = self.values[key]
        if isinstance(value, bool):
            return value
        self.reject_value(key, "true or false is wanted")
        return default

    def string(self, key: str, choices: Iterable[str], default: str | None = None) -> str:
        """One of ``choices`` at ``key``; required without ``default``."""
        known = tuple(choices)
        if default is not None and not self.has(key):
            return default
        if not self.require(key):
            return known[0]
        value = self.values[key]
        if isinstance(value, str) and value in known:
            return value
        self.reject_value(key, f"meshc knows {', '.join(known)}")
        return known[0]

    def token_ids(self, key: str, high: int) -> tuple[int, ...]:
        """The token id or ids at ``key``, each in ``0..high``; empty when absent."""
        value = self.values.get(key)
        if value is None:
            return ()
        given = value if isinstance(value, list) else [value]
        ids = tuple(i for i in given[:64] if isinstance(i, int) and not isinstance(i, bool))
        if len(ids) == len(given) and all(0 <= i <= high for i in ids):
            return ids
        self.reject_value(key, "a token id or a short list of them is wanted")
        return ()


def brief(value: object) -> str:
    """``value`` as JSON-like text of at most about 60 characters, at any size or depth."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value[:50]}{"..." if len(value) > 50 else ""}"'
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 128 else "a very large integer"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return f"an object with {len(value)} keys" if isinstance(value, dict) else "not a plain value"
