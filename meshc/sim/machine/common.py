"""What machines of both back ends have in common: faults, remarks, arguments of tasks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NoReturn

from meshc.sim.exact_numbers import from_bits
from meshc.sim.machine.hangs import explain_hang
from meshc.sim.machine.parts import AnyPe
from meshc.sim.machine.run_options import Options
from meshc.sim.program import PeProgram
from meshc.sim.pygen.expressions import machine_type
from meshc.sim.route_configs import DIRECTION_NAMES
from meshc.support.diagnostics import MeshcError, fail


class Common:
    """``types`` keeps the parameter types of functions, ``remarks`` what was odd in a run.

    ``watch`` is called with the cycles so far every now and then.
    """

    now: int
    last_time: int
    options: Options
    types: dict[tuple[int, str], list[Any]]
    remarks: dict[tuple[str, str], str]
    watch: Callable[[int], None] | None = None

    def fault(self, pe: AnyPe | None, place: str, message: str) -> NoReturn:
        """Stop with a message about a PE. Raises MeshcError ``csl-run``."""
        notes = []
        if pe is not None:
            notes.append(f"PE ({pe.x}, {pe.y}) of '{pe.program.name}', cycle {max(pe.t, self.now)}")
            if pe.current_name:
                notes.append(f"in '{pe.current_name.rsplit('_', 1)[0]}'")
        if place:
            notes.append(f"at {place}")
        fail("csl-run", message, notes=notes)

    def check_bounds(self, pe: AnyPe, low: int, high: int) -> None:
        """Remark once per variable when an operand reaches past the variable it starts in."""
        program = pe.program
        position = bisect_right(program.starts, low) - 1
        if position < 0:
            return
        symbol = program.symbols[program.order[position]]
        end = symbol.addr + symbol.size
        if symbol.addr <= low < end < high:
            self.remark(
                "csl-bounds", f"{program.name} {symbol.name}",
                f"an operand in '{pe.current_name.rsplit('_', 1)[0]}' of '{program.name}' reaches "
                f"{high - end} bytes past the end of '{symbol.name}' (PE ({pe.x}, {pe.y}))",
            )  # fmt: skip

    def remark(self, code: str, subject: str, words: str) -> None:
        """Something odd that does not stop the run, reported once per subject.

        Raises MeshcError with ``code`` when the run is strict.
        """
        if self.options.strict:
            fail(code, words, notes=[f"cycle {self.now}"])
        self.remarks.setdefault((code, subject), words)

    def remark_wrap(self, pe: AnyPe, address: int, place: str) -> None:
        """An access at a byte address that 16 bits do not hold."""
        self.remark(
            "csl-wrap", place,
            f"an index at {place} reaches the address {address}, which wraps to "
            f"{address & 0xFFFF}: addresses have 16 bits (PE ({pe.x}, {pe.y}))",
        )  # fmt: skip

    def remark_edge(self, x: int, y: int, color: int, out: int) -> None:
        """Wavelets of a color leave the rectangle at PE (x, y), where nobody reads them."""
        self.remark(
            "csl-edge", f"{x} {y} {color} {out}",
            f"color {color} leaves the rectangle to the {DIRECTION_NAMES[out]} of PE ({x}, {y}): "
            "its wavelets are lost there",
        )  # fmt: skip

    def hang(self, goal: str) -> MeshcError:
        """The explanation of why nothing moves any more."""
        return explain_hang(self, goal)  # type: ignore[arg-type]

    # --- arguments of tasks ---

    def parameters(self, program: PeProgram, name: str) -> list[Any]:
        """The parameter types of a function."""
        key = (id(program), name)
        if key not in self.types:
            function = next(f for f in program.functions if f.name == name)
            self.types[key] = [machine_type(p.type) for p in function.params]
        return self.types[key]

    def split(self, program: PeProgram, name: str, word: int) -> tuple[Any, ...]:
        """A 32-bit payload as the arguments of a data task, low half first."""
        kinds = self.parameters(program, name)
        if len(kinds) == 1:
            return (from_bits(kinds[0], word),)
        return (from_bits(kinds[0], word & 0xFFFF), from_bits(kinds[1], word >> 16))

    def arguments(self, program: PeProgram, name: str, values: list[int]) -> tuple[Any, ...]:
        """Raw words of a launch as arguments."""
        kinds = self.parameters(program, name)
        return tuple(from_bits(k, v) for k, v in zip(kinds, values, strict=False))

    @property
    def cycles(self) -> int:
        """Simulated cycles so far."""
        return max(self.last_time, self.now)
