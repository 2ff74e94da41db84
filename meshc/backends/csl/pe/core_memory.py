"""The memory of a core: variables, counted to the byte, and code, estimated; both must fit."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.backends.csl.pe.code_size import CodeSize
from meshc.backends.csl.spelling.variables import Kind, Variable, bytes_of, padding
from meshc.support.diagnostics import fail
from meshc.support.plmr import violates


@dataclass(frozen=True)
class CoreMemory:
    """What a program takes of a core that has ``size`` bytes."""

    size: int
    variables: tuple[Variable, ...]
    code: CodeSize

    def of(self, *kinds: Kind) -> int:
        """Bytes of the variables of ``kinds``."""
        return bytes_of(self.variables, *kinds)

    @property
    def data(self) -> int:
        """Bytes of all variables."""
        return bytes_of(self.variables)

    @property
    def padding(self) -> int:
        """The most bytes that alignment adds to them."""
        return padding(self.variables)

    @property
    def arrays(self) -> int:
        """Bytes of buffers and scratch, each aligned."""
        mine = [each for each in self.variables if each.kind in ("buffer", "scratch")]
        return bytes_of(mine) + padding(mine)

    @property
    def left(self) -> int:
        """Bytes that nothing takes; negative where the program does not fit."""
        return self.size - self.data - self.padding - self.code.bytes

    def check(self) -> None:
        """Raise ``csl-memory-full`` where variables and code are more than a core has."""
        if self.left >= 0:
            return
        code = self.code
        fail(
            "csl-memory-full",
            f"data and code take {self.size - self.left} bytes of a core, which has {self.size}: "
            f"{-self.left} bytes short",
            notes=(
                f"{self.of('buffer')} bytes of buffers, {self.of('scratch')} of scratch, "
                f"{self.of('table')} of tables, {self.of('variable')} of variables: {self.data} of "
                f"data, and at most {self.padding} of padding",
                f"an estimate of {code.bytes} bytes of code: {code.runtime} of the host's copies "
                f"and launches, {code.own} of {code.statements} statements, {code.margin} of "
                "margin",
                violates("M"),
            ),
            help="use a larger mesh, or of a model fewer layers (--layers) or tokens (--seq)",
        )
