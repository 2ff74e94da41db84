"""The kernel that makes numbers of the codes of weights that stay quantised."""

from __future__ import annotations

from dataclasses import replace

from meshc.analysis.csl.codes import WORD_BITS, Decoding, Operand, Step, decoding
from meshc.analysis.csl.strided_windows import Window, own
from meshc.backends.csl.kernels.shared_code import SharedCode
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.ir.ops.tile import Compute

_SHIFT = "shift"


class Codes:
    """Writer of ``dequantise``, with the functions of ``code``. Calls that differ in where they
    read alone share a function."""

    def __init__(self, code: SharedCode) -> None:
        self.code = code

    def statements(self, op: Compute) -> list[csl.Statement]:
        """A call of the function that decodes."""
        found = decoding(op)
        self.code.reserve(found.scratch)
        starts: dict[str, csl.Expression] = {}
        inside = replace(
            found,
            words=self._from_param("words", found.words, starts),
            scales=self._from_param("scales", found.scales, starts),
            least=found.least and self._from_param("least", found.least, starts),
            numbers=self._from_param("numbers", found.numbers, starts),
        )
        params = [f"{name}: i16" for name in starts]
        name = self.code.function("decode", found.words, params, self._body(inside))
        return [csl.do(name, *starts.values())]

    def _from_param(self, what: str, one: Window, starts: dict[str, csl.Expression]) -> Window:
        """``one`` as the function has it: where it begins is a parameter if that varies."""
        first = one.start.constant
        moving = one.start - first
        if moving.is_const:
            return one
        name = f"{what}_at"
        starts[name] = self.code.descriptors.at(one.buffer.name, moving)
        return Window(one.buffer, one.dtype, own(name) + first, one.dims)

    def _body(self, found: Decoding) -> list[csl.Statement]:
        memory = self.code.descriptors.memory
        moved = {"words": found.words, "scales": found.scales, "least": found.least}
        here = {
            name: one
            for name, one in moved.items()
            if one is not None and not one.start.is_const and (name != "scales" or not found.wide)
        }
        numbers = found.numbers.moved(own("part") * found.step)
        shift = csl.cast("u16", WORD_BITS // found.parts * csl.Name("part"))

        def operand(given: Operand) -> csl.Expression:
            if isinstance(given, str):
                return shift if given == _SHIFT else csl.Literal(given)
            if given is numbers:
                return csl.Name("numbers")
            name = next((n for n, one in here.items() if one is given), "")
            return csl.Name(name) if name else memory(given)

        def written(step: Step) -> csl.Statement:
            return csl.do(step.builtin, *map(operand, step.operands))

        of_part = found.of_part(numbers, _SHIFT)
        return [
            *(csl.const(name, memory(one)) for name, one in here.items()),
            *map(written, found.before()),
            csl.loop(
                "part", found.parts, [csl.const("numbers", memory(numbers)), *map(written, of_part)]
            ),
        ]
