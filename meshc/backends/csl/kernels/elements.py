"""Kernels of elements that are one vector operation each, or a few behind each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshc.analysis.csl.windows import Dim, Window
from meshc.backends.csl.kernels.shared_code import SharedCode, literal
from meshc.backends.csl.spelling.descriptors import builtin
from meshc.ir.ops.tile import Compute
from meshc.support.diagnostics import fail

_POINTWISE = {"add": "fadd", "mul": "fmul", "larger": "fmax"}
_WITH_NUMBER = {"scale": ("mul", "factor"), "at_least": ("larger", "value")}
"""The operation of a kernel that takes a number, and the parameter that is this number."""


class Elements:
    """Writers of kernels of elements, with the loops of ``code``."""

    def __init__(self, code: SharedCode) -> None:
        self.code = code
        self.writers: dict[str, Callable[[Compute, list[Window]], list[str]]] = {
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

    def _fill(self, op: Compute, windows: list[Window]) -> list[str]:
        (to,) = windows
        return self.code.set(to, float(op.params["value"]))  # type: ignore[arg-type]

    def _copy(self, op: Compute, windows: list[Window]) -> list[str]:
        to, source = windows
        return self.code.copied(to, source)

    def _pointwise(self, op: Compute, windows: list[Window]) -> list[str]:
        _same_type(op, *windows)
        operation = builtin(_POINTWISE[op.kernel], windows[0].dtype)
        memory = self.code.descriptors.memory
        return self.code.parts(
            alike(windows), lambda part: [f"{operation}({', '.join(map(memory, part))});"]
        )

    def _with_number(self, op: Compute, windows: list[Window]) -> list[str]:
        to, source = windows
        _same_type(op, to, source)
        operation, name = _WITH_NUMBER[op.kernel]
        number = literal(float(op.params[name]), to.dtype)  # type: ignore[arg-type]
        by, memory = builtin(_POINTWISE[operation], to.dtype), self.code.descriptors.memory
        return self.code.parts(
            (to, source), lambda part: [f"{by}({', '.join(map(memory, part))}, {number});"]
        )

    def _relu2(self, op: Compute, windows: list[Window]) -> list[str]:
        """The larger of the element and zero, then its square."""
        to, source = windows
        _same_type(op, to, source)
        memory = self.code.descriptors.memory

        def squared(part: Sequence[Window]) -> list[str]:
            out, given = map(memory, part)
            return [
                f"{builtin('fmax', to.dtype)}({out}, {given}, 0.0);",
                f"{builtin('fmul', to.dtype)}({out}, {out}, {out});",
            ]

        return self.code.parts((to, source), squared)

    def _clamp(self, op: Compute, windows: list[Window]) -> list[str]:
        """The larger of the element and the least; then, as there is no smaller of two, the larger
        of the negative and of that of the most, the other way round."""
        to, source = windows
        _same_type(op, to, source)
        least, most = (float(op.params[name]) for name in ("least", "most"))  # type: ignore[arg-type]
        memory = self.code.descriptors.memory
        larger, negative = builtin("fmax", to.dtype), builtin("fneg", to.dtype)

        def clamped(part: Sequence[Window]) -> list[str]:
            out, given = map(memory, part)
            return [
                f"{larger}({out}, {given}, {literal(least, to.dtype)});",
                f"{negative}({out}, {out});",
                f"{larger}({out}, {out}, {literal(-most, to.dtype)});",
                f"{negative}({out}, {out});",
            ]

        return self.code.parts((to, source), clamped)


def operations(op: Compute) -> int:
    """Operations on all elements that a kernel of them is."""
    return {"relu2": 2, "clamp": 4}.get(op.kernel, 1)


def _repeated(operand: Window, to: Window) -> Window:
    """A smaller operand repeated over the leading dims that it lacks."""
    lacking = to.dims[: len(to.dims) - len(operand.dims)]
    return operand.inner([*(Dim(d.extent, 0, d.count) for d in lacking), *operand.dims])


def alike(windows: list[Window]) -> list[Window]:
    """The windows as an operation on elements takes them, all of one shape."""
    to, *others = windows
    return [to, *(_repeated(other, to) for other in others)]


def _same_type(op: Compute, *windows: Window) -> None:
    if len({w.dtype for w in windows}) > 1:
        kinds = ", ".join(str(w.dtype) for w in windows)
        fail("csl-dtype", f"'{op.kernel}' of {kinds} mixes element types", op.span)
