"""What random programs are built with: fresh names, params, statements whose dims are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

from drawn_programs import Apply, Call, Statement, Tensor
from operations import Append, Dims, Operation, Product, Rope, Transpose

Choice = TypeVar("Choice")


class Drawing:
    """A source of choices."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def chance(self, percent: float) -> bool:
        """True in ``percent`` of all cases."""
        return self.random.random() * 100 < percent

    def number(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return self.random.randint(low, high)

    def of(self, choices: Sequence[Choice]) -> Choice:
        """One of ``choices``."""
        return self.random.choice(choices)

    def weighted(self, choices: dict[Choice, float]) -> Choice:
        """A key, as often as its value says."""
        return self.random.choices(list(choices), list(choices.values()))[0]


class Builder:
    """Statements of one body. ``parent`` is the body around it, whose values can be read."""

    def __init__(self, draw: Drawing, extents: dict[str, int], parent: Builder | None = None):
        self.draw, self.extents, self.parent = draw, extents, parent
        self.statements: list[Statement] = []
        self.params: list[Tensor] = []
        self.known: dict[str, Dims] = dict(parent.known) if parent else {}
        self._names: dict[str, int] = parent._names if parent else {}

    def fresh(self, stem: str) -> str:
        """A name that nothing has."""
        number = self._names.get(stem, 0)
        self._names[stem] = number + 1
        return f"{stem}{number}" if number else stem

    def param(self, stem: str, *dims: str) -> str:
        """A new param."""
        name = self.fresh(stem)
        self.params.append(Tensor(name, dims))
        self.known[name] = dims
        return name

    def dim(self, stem: str, extent: int) -> str:
        """A new dim."""
        name = stem
        while name in self.extents:
            name = self.fresh(f"{stem}x")
        self.extents[name] = extent
        return name

    def dims(self, name: str) -> Dims:
        """Dims of a value."""
        return self.known[name]

    def give(self, statement: Statement, *dims: Dims) -> None:
        """Append a statement whose results have ``dims``."""
        self.statements.append(statement)
        self.known |= dict(zip(statement.results, dims, strict=True))

    def apply(self, operation: Operation, *args: str, stem: str = "t", inline: int = 50) -> str:
        """The value of ``operation``; it is written inline in ``inline`` of a hundred cases."""
        dims = operation.dims([self.dims(a) for a in args])
        name = self.fresh(stem)
        loose = not isinstance(operation, Append) and self.draw.chance(inline)
        stated = dims if not loose and self.draw.chance(15) else ()
        chosen = not loose and not stated and self.draw.chance(4)
        self.give(Apply(name, operation, args, loose, stated, chosen), dims)
        return name

    def call(self, statement: Call, *dims: Dims) -> tuple[str, ...]:
        """The results of a block."""
        self.give(statement, *dims)
        return statement.results

    def weighted(self, left: str, run: Dims, new: Dims, stem: str = "w", form: str = "") -> str:
        """``left`` times a new param that contracts ``run``, the last dims of ``left``. The param
        is declared as it is needed, or in the ``form`` transposed."""
        whole = (*run, *new)
        if form != "transposed" or len(whole) < 2:
            return self.apply(Product(run), left, self.param(stem, *whole), stem="y")
        first, last = whole[0], whole[-1]
        swap = {first: last, last: first}
        stored = self.param(stem, *(swap.get(d, d) for d in whole))
        pair = None if self.draw.chance(70) else (first, last)
        if self.dims(stored)[0] == "B":
            pair = (first, last)
        turned = self.apply(Transpose(pair), stored, stem="wt", inline=90)
        return self.apply(Product(run), left, turned, stem="y")


def rope(draw: Drawing, lanes: int = 0) -> Rope:
    """A rotary embedding with random options; of ``lanes``, if they are given, perhaps a part."""
    found = _whole_rope(draw)
    if lanes > 2 and draw.chance(25):
        parts = [n for n in range(2, lanes, 2) if lanes % n == 0] or [2]
        turning = draw.of(parts) if draw.chance(85) else 2 * draw.number(1, lanes // 2 - 1)
        return replace(found, options=(*found.options, ("rotated", turning)))
    return found


def _whole_rope(draw: Drawing) -> Rope:
    style = draw.of(["half", "half", "interleaved"])
    scaling = draw.weighted({"none": 60, "linear": 12, "llama3": 14, "yarn": 14})
    theta = draw.of([10000.0, 10000.0, 500000.0, 100.0])
    if scaling == "linear":
        return Rope(theta, style, scaling, (("factor", 4.0),))
    if scaling == "llama3":
        options = (("factor", 8.0), ("original_max_position", draw.of([16, 64])))
        return Rope(theta, style, scaling, options)
    if scaling == "yarn":
        options = (
            ("factor", 4.0),
            ("low_freq_factor", 1.0),
            ("high_freq_factor", 32.0),
            ("original_max_position", draw.of([32, 256])),
        )
        return Rope(theta, style, scaling, options)
    return Rope(theta, style)
