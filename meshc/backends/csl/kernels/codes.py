"""The kernel that makes numbers of the codes of weights that stay quantised."""

from __future__ import annotations

from dataclasses import replace

from meshc.analysis.csl.codes import WORD_BITS, Decoding, Operand, Step, decoding
from meshc.analysis.csl.costs import LOOP, OFFSET, Costs
from meshc.analysis.csl.windows import Window, own
from meshc.backends.csl.kernels.scalar import CALL
from meshc.backends.csl.kernels.shared_code import PAD, SharedCode
from meshc.ir.ops.tile import Compute

_PART = 4
"""Cycles of the scalar code that finds how far the codes of a part lie up in words."""


class Codes:
    """Writer of ``dequantise``, with the functions of ``code``. Calls that differ in where they
    read alone share a function."""

    def __init__(self, code: SharedCode, costs: Costs) -> None:
        self.code = code
        self.costs = costs

    def cycles(self, op: Compute) -> int:
        """Predicted cycles; those of moving descriptors to where a call reads are the caller's."""
        found = decoding(op)
        scalars = LOOP + OFFSET + _PART
        return CALL + found.cycles(self.costs) + found.parts * scalars

    def steps(self, op: Compute) -> int:
        """The cycles in vector steps, during which the core's transfers stand still."""
        return decoding(op).vector_steps(self.costs)

    def lines(self, op: Compute) -> list[str]:
        """A call of the function that decodes."""
        found = decoding(op)
        self.code.reserve(found.scratch)
        starts: dict[str, str] = {}
        inside = replace(
            found,
            words=self._from_param("words", found.words, starts),
            scales=self._from_param("scales", found.scales, starts),
            least=found.least and self._from_param("least", found.least, starts),
            numbers=self._from_param("numbers", found.numbers, starts),
        )
        params = [f"{name}: i16" for name in starts]
        name = self.code.function("decode", found.words, params, self._body(inside))
        return [f"{name}({', '.join(starts.values())});"]

    def _from_param(self, what: str, one: Window, starts: dict[str, str]) -> Window:
        """``one`` as the function has it: where it begins is a parameter if that varies."""
        first = one.start.constant
        moving = one.start - first
        if moving.is_const:
            return one
        name = f"{what}_at"
        starts[name] = self.code.descriptors.at(one.buffer.name, moving)
        return Window(one.buffer, one.dtype, own(name) + first, one.dims)

    def _body(self, found: Decoding) -> list[str]:
        memory = self.code.descriptors.memory
        moved = {"words": found.words, "scales": found.scales, "least": found.least}
        here = {
            name: one
            for name, one in moved.items()
            if one is not None and not one.start.is_const and (name != "scales" or not found.wide)
        }

        def spelled(operand: Operand) -> str:
            if isinstance(operand, str):
                return operand
            if operand is numbers:
                return "numbers"
            return next((n for n, one in here.items() if one is operand), "") or memory(operand)

        def written(step: Step) -> str:
            return f"{step.builtin}({', '.join(map(spelled, step.operands))});"

        numbers = found.numbers.moved(own("part") * found.step)
        shift = f"@as(u16, {WORD_BITS // found.parts} * part)"
        return [
            *(f"const {name} = {memory(one)};" for name, one in here.items()),
            *map(written, found.before()),
            f"for (@range(i16, {found.parts})) |part| {{",
            f"{PAD}const numbers = {memory(numbers)};",
            *(PAD + written(step) for step in found.of_part(numbers, shift)),
            "}",
        ]
