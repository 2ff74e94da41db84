"""Words with tags that a thread asks for together, so that it waits for them once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshc.backends.cuda.tasks.statements import Text
from meshc.backends.cuda.tasks.values import Values
from meshc.ir.affine import Expr
from meshc.ir.ops import task
from meshc.ir.values import Value


@dataclass
class Asking:
    """The words that a thread of a task with ``values`` asks for; ``came[n]`` is then the n-th."""

    values: Values
    places: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    there: list[str] = field(default_factory=list)
    words: dict[str, None] = field(default_factory=dict)

    def add(self, value: Value, index: Sequence[Expr], there: str = "") -> str:
        """Ask for an element of what the task needs, where ``there`` says that a thread has one;
        what it is then called."""
        storage, ranges = self.values.storage, self.values.ranges
        buffer, at = self.values.source(value, index)
        number = len(self.places)
        self.places.append(
            f"{storage.scratch(buffer)} + {self.values.spelled(storage.place(buffer, at))}"
        )
        self.tags.append(storage.tag(buffer, at, ranges))
        self.there.append(f"({there} ? {1 << number}u : 0u)" if there else f"{1 << number}u")
        self.words[storage.words_of(buffer)] = None
        return f"came[{number}]"

    def write(self, text: Text) -> None:
        """Ask for them, and wait until all are there."""
        count = len(self.places)
        words = max(self.words, key=len)  # those of all GPUs are read as any may be
        text.add(
            f"const float* const from[{count}] = {{{', '.join(self.places)}}};",
            f"const mc::u32 tags[{count}] = {{{', '.join(self.tags)}}};",
            f"float came[{count}];",
            f"mc::need<{words}>(from, tags, {' | '.join(self.there)}, came);",
        )


def waited_for(values: Values, value: Value) -> bool:
    """Whether the task needs ``value`` and waits for its words."""
    read = values.reads.get(value)
    if not values.waits or not isinstance(read, task.Need):
        return False
    return values.storage.roles[read.view.buffer].tags is not None
