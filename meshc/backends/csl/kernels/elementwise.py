"""Kernels of elements that are one vector operation each, or a few behind each other."""

from __future__ import annotations

from collections.abc import Sequence

from meshc.analysis.csl.strided_windows import Dim, Window
from meshc.backends.csl.kernels.shared_code import SharedCode, Writer, literal
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.ir.ops.tile import Compute
from meshc.support.diagnostics import fail

_POINTWISE = {"add": "fadd", "mul": "fmul", "larger": "fmax"}
_WITH_NUMBER = {"scale": ("mul", "factor"), "at_least": ("larger", "value")}
"""The operation of a kernel that takes a number, and the parameter that is this number."""


class Elements:
    """Writers of kernels of elements, with the loops of ``code``."""

    def __init__(self, code: SharedCode) -> None:
        self.code = code
        self.writers: dict[str, Writer] = {
            "fill": self._fill,
            "copy": self._copy,
            "add": self._pointwise,
            "mul": self._pointwise,
            "larger": self._pointwise,
            "scale": self._with_number,
            "at_least": self._with_number,
            "relu2": self._relu2,
            "clamp": self._clamp,
        }

    def _fill(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        (to,) = windows
        return self.code.set(to, float(op.params["value"]))  # type: ignore[arg-type]

    def _copy(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        to, source = windows
        return self.code.copied(to, source)

    def _pointwise(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        same_type(op, *windows)
        return self.code.operations(_POINTWISE[op.kernel], alike(windows))

    def _with_number(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        same_type(op, *windows)
        operation, name = _WITH_NUMBER[op.kernel]
        number = literal(float(op.params[name]), windows[0].dtype)  # type: ignore[arg-type]
        return self.code.operations(_POINTWISE[operation], windows, number)

    def _relu2(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        """The larger of the element and zero, then its square."""
        same_type(op, *windows)
        do = self.code.operation

        def squared(part: Sequence[Window]) -> csl.Statements:
            to, _ = part
            return [do("fmax", part, 0.0), do("fmul", (to, to, to))]

        return self.code.parts(windows, squared)

    def _clamp(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        """The larger of the element and the least; then, as there is no smaller of two, the larger
        of the negative and of that of the most, the other way round."""
        same_type(op, *windows)
        least, most = (float(op.params[name]) for name in ("least", "most"))  # type: ignore[arg-type]
        do, kind = self.code.operation, windows[0].dtype

        def clamped(part: Sequence[Window]) -> csl.Statements:
            here = (part[0], part[0])
            return [
                do("fmax", part, literal(least, kind)),
                do("fneg", here),
                do("fmax", here, literal(-most, kind)),
                do("fneg", here),
            ]

        return self.code.parts(windows, clamped)


def _repeated(operand: Window, to: Window) -> Window:
    """A smaller operand repeated over the leading dims that it lacks."""
    lacking = to.dims[: len(to.dims) - len(operand.dims)]
    return operand.inner([*(Dim(d.extent, 0, d.count) for d in lacking), *operand.dims])


def alike(windows: list[Window]) -> list[Window]:
    """The windows as an operation on elements takes them, all of one shape."""
    to, *others = windows
    return [to, *(_repeated(other, to) for other in others)]


def same_type(op: Compute, *windows: Window) -> None:
    """Raise ``csl-dtype`` where windows have several element types."""
    if len({w.dtype for w in windows}) > 1:
        kinds = ", ".join(str(w.dtype) for w in windows)
        fail("csl-dtype", f"'{op.kernel}' of {kinds} mixes element types", op.span)
