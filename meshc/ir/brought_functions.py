"""Functions of elements of other packages: entry points of the group ``meshc.functions``.

A package is imported where a model or a module has a function of that name, unknown to meshc.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from meshc.ir.functions import FUNCTIONS, Function, function, type_name
from meshc.ir.kernels import KERNELS, kernel_of_function
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute
from meshc.support.diagnostics import fail
from meshc.support.plugins import Kind
from meshc.support.spans import Span


@dataclass(frozen=True)
class BroughtFunction:
    """A function of elements and what it means to each who computes it.

    ``op`` is its class, whose fields are its options, all with defaults, and ``doc`` what its
    microkernel computes. ``formula`` is its meaning to the interpreters: of an array, in float64 or
    at the tile level in float32, and of the options by name. ``python`` is the text of a function
    of its name in NumPy, which fills an array ``out`` from one ``a``, for emitted Python; ``cuda``
    that of one in CUDA C++ of a float and the options that are numbers, whose name ends with ``_``
    and the options that are words. ``csl`` gives the value in CSL, of an element ``x`` in f32 and
    the options by name: sums, differences, products and quotients of ``x`` and numbers, and calls
    ``math(name, value)`` of the functions of the library that :data:`CSL_MATH` lists. A target
    without its part refuses the function.
    """

    op: type[Function]
    doc: str
    formula: Callable[..., Any]
    python: str = ""
    cuda: str = ""
    csl: Callable[..., Any] | None = None


CSL_MATH = ("exp", "tanh", "sqrt", "sin", "cos", "abs")
"""Functions of one number that a function of elements may call in CSL."""
BROUGHT: dict[str, BroughtFunction] = {}
"""The functions that were asked for, by name."""


def is_function(name: str, span: Span | None = None) -> bool:
    """Whether ``name`` is a function of elements, perhaps of an installed package, which is then
    known like meshc's own. Raises ``bad-plugin``."""
    if name in FUNCTIONS:
        return True
    found: BroughtFunction | None = KIND.named(name, span)
    if found is None:
        return False
    function(name, found.doc)(found.op)
    KERNELS[name] = kernel_of_function(name)
    BROUGHT[name] = found
    return True


def texts_of(module: Module, language: str, code: str) -> dict[str, str]:
    """The texts in ``language``, ``python`` or ``cuda``, of the functions of other packages that
    ``module``, of the tile or the task level, calls, by name. Fails with ``code`` for one without.
    """
    found = {}
    for op in module.walk():
        if isinstance(op, Compute) and op.kernel in BROUGHT:
            text: str = getattr(BROUGHT[op.kernel], language)
            if not text:
                words = f"the package of '{op.kernel}' says nothing of {language}"
                fail(code, words, op.span, help="another --target may compute it")
            found[op.kernel] = text.strip() + "\n"
    return dict(sorted(found.items()))


def _fault(name: str, found: object) -> str:
    """What is wrong with what is offered as the function ``name``, or an empty text."""
    if not isinstance(found, BroughtFunction):
        return "is no meshc.BroughtFunction"
    if not name.isidentifier() or name != name.lower() or name in KERNELS:
        return "has no name of its own in small letters"
    if not issubclass(found.op, Function):
        return "has an op that is no meshc.ElementFunction"
    if "__dataclass_fields__" not in vars(found.op):
        return "has an op that is no dataclass(eq=False)"
    own = {field.name for field in fields(Function)}
    for field in fields(found.op):
        if field.name not in own and type_name(field) not in ("str", "float", "int", "bool"):
            return f"has an option '{field.name}' that is no text, number or truth value"
    op = found.op([])  # all options have defaults
    at_zero = float(found.formula(np.zeros(1), **op.attributes())[0])
    if op.keeps_zero and at_zero != 0:
        return f"gives {at_zero} at 0, but its op has KEEPS_ZERO: pads would be no zeros"
    return ""


KIND = Kind("meshc.functions", "function of elements", "docs/packages.md", _fault)
"""Functions of installed packages."""
