"""The axes that a device gives to meshes of its cores.

A mesh of a wafer has rows (``y``) of cores beside each other (``x``), in several rectangles
(regions, ``r``) if one does not hold the layers; another device says what its axes are called.
Whatever is compiled takes the names from the device or from the module that was given, and spells
none itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from keyword import iskeyword
from typing import NoReturn

from meshc.support.diagnostics import fail

MAX_CORES = 4096 * 4096
"""More than any device has."""
_NAME = re.compile(r"[a-z][a-z0-9]{0,15}")
_LEVEL = re.compile(r"[a-z][a-z0-9_]{0,15}")
_LETTERS = frozenset("oruvwxyz")
"""Names of one letter that are free: loop variables and lanes of tile programs have the others."""
_HEADER = frozenset(
    {"rows", "columns", "regions", "segments", "interleaved", "origins", "rank", "all"}
)
_PROGRAM = frozenset({"pos", "len", "request", "layer", "lane", "home"})
_FORMULAS = frozenset({"floor", "mod", "true", "false"})


def is_axis_name(name: str) -> bool:
    """Whether an axis may be called ``name``: small letters and digits that are a word neither of
    the text form, nor of the languages that are emitted, nor a name that tile programs use for
    something else."""
    free = name not in _HEADER | _PROGRAM | _FORMULAS and (len(name) > 1 or name in _LETTERS)
    return bool(_NAME.fullmatch(name)) and free and not iskeyword(name)


def factors_of(axis: str) -> tuple[str, str]:
    """Names of the two factors of the columns, counted by ``axis``: segments, which take groups of
    heads (hence the letter), and cores of one segment."""
    return f"{axis}h", f"{axis}d"


def are_axis_names(text: str) -> bool:
    """Whether ``text`` names three axes that differ, also from the factors of the columns."""
    names = text.split(" ")
    every = [*names, *factors_of(names[-1])]
    return len(names) == 3 and len(set(every)) == 5 and all(map(is_axis_name, every))


def are_levels(text: str) -> bool:
    """Whether ``text`` says a level for each of three axes, equal ones beside each other."""
    names = text.split(" ")
    beside = [name for name, before in zip(names, ["", *names], strict=False) if name != before]
    right = all(_LEVEL.fullmatch(name) for name in names)
    return len(names) == 3 and right and len(set(beside)) == len(beside)


@dataclass(frozen=True)
class AxisNames:
    """Names of an axis that counts regions and of those that count rows and columns of a plane."""

    outer: str
    down: str
    across: str

    def __str__(self) -> str:
        return f"{self.outer} {self.down} {self.across}"

    @property
    def plane(self) -> tuple[str, str]:
        """What counts rows, what counts columns."""
        return self.down, self.across

    def size_of(self, text: str) -> tuple[int, int]:
        """Columns and rows of the plane that ``text`` asks for: ``WxH``, or each axis by its name
        with commas between them, such as ``y=6,x=10``; an axis that is not named has one part.

        Fails with ``bad-mesh`` on anything else, on regions and on more cores than any device has.
        """
        columns, rows, regions = self.sizes_of(text)
        if regions:
            fail("bad-mesh", f"'{text}' has regions, where one plane of cores is asked for")
        return columns, rows

    def sizes_of(self, text: str) -> tuple[int, int, int]:
        """Columns and rows as ``size_of`` reads them, and the number of regions where their axis is
        named, else 0.

        Fails with ``bad-mesh`` on anything else and on more cores than any device has.
        """
        match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
        sizes = {self.across: match[1], self.down: match[2]} if match else self._named(text)
        columns, rows, regions = (
            int(sizes.get(name, 1)) for name in (self.across, self.down, self.outer)
        )
        if not columns or not rows or not regions:
            self._refuse(text)
        cores = columns * rows * regions
        if cores > MAX_CORES:
            fail("bad-mesh", f"a mesh of {cores} cores is more than any device has")
        return columns, rows, regions if self.outer in sizes else 0

    def _named(self, text: str) -> dict[str, str]:
        parts = [re.fullmatch(r" *(\w{1,16}) *= *(\d{1,5}) *", part) for part in text.split(",")]
        sizes = {part[1]: part[2] for part in parts if part}
        unknown = [name for name in sizes if name not in (self.outer, self.down, self.across)]
        if len(sizes) != len(parts):
            self._refuse(text)
        if unknown:
            names = f"{self.outer} (regions), {self.down} (rows) and {self.across} (columns)"
            fail(
                "bad-mesh",
                f"no axis '{unknown[0]}' in a mesh of this device",
                help=f"its axes are {names}",
            )
        return sizes

    def _refuse(self, text: str) -> NoReturn:
        named = f"{self.down}=24,{self.across}=24"
        fail(
            "bad-mesh",
            f"'{text}' is no mesh",
            help=f"write columns x rows, such as 24x24, or the axes by name, such as {named}",
        )


WAFER = AxisNames(outer="r", down="y", across="x")
"""Those of a device that does not name its own."""
