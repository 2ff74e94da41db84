"""Descriptor registers (DSRs) of products and functions as CSL."""

from __future__ import annotations

from typing import NamedTuple

from meshc.analysis.csl.held import CHANGED
from meshc.analysis.csl.sum_registers import AT_CALL
from meshc.backends.csl.spelling.names import Names
from meshc.backends.csl.tree import syntax_tree as csl


class Sums(NamedTuple):
    """Names of the two registers of a sum: where it is written and where it is read."""

    to: str
    source: str


class Registers:
    """Declares registers in ``constants``; ``loads`` fills those that never change, ``kept`` has
    what these hold."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.constants: list[csl.Declare] = []
        self.loads: list[csl.Do] = []
        self.kept: dict[str, csl.Expression] = {}
        self._rows: str | None = None
        self._moving: Sums | None = None
        self._loaded: dict[csl.Name, Sums] = {}
        self._held: dict[tuple[str, int], str] = {}

    def rows(self) -> str:
        """The register that moves over rows, loaded where it is used."""
        if self._rows is None:
            self._rows = self._declare("rows", "dsr_src1", AT_CALL)
        return self._rows

    def moving(self) -> Sums:
        """The registers of a sum that a function loads itself."""
        if self._moving is None:
            self._moving = self._sums("sum", AT_CALL)
        return self._moving

    def loaded(self, descriptor: csl.Name, number: int) -> Sums:
        """The registers with this number, which hold ``descriptor`` from before the start."""
        if descriptor not in self._loaded:
            self._loaded[descriptor] = sums = self._sums(descriptor.text, number)
            self.loads += [loaded(register, descriptor) for register in sums]
            self.kept |= dict.fromkeys(sums, descriptor)
        return self._loaded[descriptor]

    def held(self, file: str, number: int) -> str:
        """The register of a file with this number, which functions load where they begin."""
        if (file, number) not in self._held:
            hint = f"{'changed' if file == CHANGED else 'read'}_{number}"
            self._held[file, number] = self._declare(hint, file, number)
        return self._held[file, number]

    def _sums(self, hint: str, number: int) -> Sums:
        to = self._declare(f"{hint}_to", "dsr_dest", number)
        return Sums(to, self._declare(f"{hint}_from", "dsr_src0", number))

    def _declare(self, hint: str, bank: str, number: int) -> str:
        name = self.names.fresh(hint)
        self.constants.append(csl.const(name, csl.call("@get_dsr", bank, number)))
        return name


def loaded(register: str, descriptor: csl.Operand, *options: csl.Operand) -> csl.Do:
    """The statement that loads a register."""
    return csl.do("@load_to_dsr", register, descriptor, *options)
