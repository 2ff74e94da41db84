"""What a target is asked for beside what all are: a record of its own, whose fields are flags.

Nothing heavy is imported here or beside the records, since the command line reads these for its
help. What values may be, the target says (:meth:`meshc.backends.request.Rules.check`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any


def option(default: Any, help: str, metavar: str = "") -> Any:
    """A field of a record: its default, what help says of its flag, and of a flag with a value what
    stands for that. A default of () is that of a flag that may be repeated."""
    return field(default=default, metadata={"help": help, "metavar": metavar})


@dataclass(frozen=True)
class TargetOptions:
    """The options of a target, none unless it declares fields by :func:`option`."""

    @classmethod
    def declared(cls) -> Iterator[Field[Any]]:
        """The fields that are options."""
        return (one for one in fields(cls) if one.default is not MISSING)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """What the options are called."""
        return tuple(one.name for one in cls.declared())
