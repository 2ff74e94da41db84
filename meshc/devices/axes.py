"""The axes that a device gives to meshes of its cores.

A mesh of a wafer has rows (``y``) of cores beside each other (``x``), in several rectangles
(regions, ``r``) if one does not hold the layers; another device says what its axes are called.
Whatever is compiled takes the names from the device or from the module that was given, and spells
none itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from meshc.support.diagnostics import fail

_MAX_CORES = 16_000_000


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
        """Columns and rows that ``text`` asks for: ``WxH``, or each axis by its name with commas
        between them, such as ``y=6,x=10``; an axis that is not named has one part.

        Fails with ``bad-mesh`` on anything else and on more cores than any device has.
        """
        match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
        sizes = {self.across: match[1], self.down: match[2]} if match else self._named(text)
        columns, rows = (int(sizes.get(name, 1)) for name in (self.across, self.down))
        if not columns or not rows:
            self._refuse(text)
        if columns * rows > _MAX_CORES:
            fail("bad-mesh", f"a mesh of {columns * rows} cores is more than any device has")
        return columns, rows

    def _named(self, text: str) -> dict[str, str]:
        parts = [re.fullmatch(r" *(\w{1,16}) *= *(\d{1,5}) *", part) for part in text.split(",")]
        sizes = {part[1]: part[2] for part in parts if part}
        unknown = [name for name in sizes if name not in (self.down, self.across)]
        if len(sizes) != len(parts):
            self._refuse(text)
        if unknown:
            fail(
                "bad-mesh",
                f"no axis '{unknown[0]}' in a mesh of this device",
                help=f"its axes are {self.down} (rows) and {self.across} (columns)",
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
