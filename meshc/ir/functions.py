"""Functions of one element: each class here is an op of the graph and the mesh level, a microkernel
and a word of the language, whose options are the fields.

What a function means is an entry in the table of each judge and target: ``interp/formulas.py``,
``backends/python/runtime/kernels.py``, a file of ``backends/csl/kernels``, and a function of that
name in ``backends/cuda/library/mc_functions.cuh``. A table that lacks it makes its owner refuse the
program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields
from typing import Any, ClassVar, TypeVar

from meshc.ir.core import Op, register, tensor_type
from meshc.ir.declared import Attribute, AttributeKind, attribute, rule_of
from meshc.ir.types import Type


@dataclass(eq=False)
class Function(Op):
    """A function of each element of its operand. ``KEEPS_ZERO`` is whether it gives 0 at 0 with any
    options."""

    KEEPS_ZERO: ClassVar[bool] = True

    @property
    def keeps_zero(self) -> bool:
        """Whether it gives 0 at 0, so that pads stay zero."""
        return self.KEEPS_ZERO

    def infer(self, extents: Mapping[str, int]) -> list[Type] | None:
        return [tensor_type(self.operands[0])]


@dataclass(eq=False)
class _OnMesh(Op):
    """At the mesh level the text states the result's type."""

    def infer(self, extents: Mapping[str, int]) -> list[Type] | None:
        return None


_KINDS: dict[str, AttributeKind] = {"str": "name", "float": "float", "int": "int", "bool": "bool"}
FunctionClass = TypeVar("FunctionClass", bound=type[Function])

FUNCTIONS: dict[str, type[Function]] = {}
"""The functions at the graph level, by name."""
ON_MESH: dict[type[Function], type[Function]] = {}
"""Their classes at the mesh level."""
DOCS: dict[str, str] = {}
"""What their microkernels compute."""


def function(name: str, doc: str) -> Callable[[FunctionClass], FunctionClass]:
    """Class decorator: declare a function of elements, whose microkernel computes ``doc``."""

    def add(cls: FunctionClass) -> FunctionClass:
        on_mesh: type[Function] = dataclass(eq=False)(
            type(cls.__name__, (_OnMesh, cls), {"__doc__": cls.__doc__})
        )
        FUNCTIONS[name], DOCS[name] = cls, doc
        ON_MESH[cls] = register(f"mesh.{name}", "x -> y: like x")(on_mesh)
        return register(f"graph.{name}", "x -> y: like x")(cls)

    return add


def attributes_of(cls: type[Function]) -> tuple[Attribute, ...]:
    """The options of a function: the fields of its class."""
    known = {f.name for f in fields(Function)}
    found = [f for f in fields(cls) if f.name not in known]
    return tuple(Attribute(f.name, _KINDS[type_name(f)], rule_of(f.metadata)) for f in found)


def type_name(option: Field[Any]) -> str:
    """What the type of a field is called, which may stand there as a text."""
    return str(getattr(option.type, "__name__", option.type))


@function("silu", "out = a / (1 + exp(-a))")
@dataclass(eq=False)
class Silu(Function):
    """``x / (1 + exp(-x))``."""


@function("gelu", "out = gelu(a), `form` erf or tanh")
@dataclass(eq=False)
class Gelu(Function):
    """GELU; ``form`` is ``erf`` (exact) or ``tanh`` (the usual approximation)."""

    form: str = attribute("erf", among=("erf", "tanh"))


@function("quick_gelu", "out = a / (1 + exp(-1.702 * a))")
@dataclass(eq=False)
class QuickGelu(Function):
    """``x / (1 + exp(-1.702 x))``, GELU by a sigmoid (Hendrycks and Gimpel 2016, section 2)."""


@function("relu2", "out = max(a, 0)^2")
@dataclass(eq=False)
class Relu2(Function):
    """``max(x, 0)^2``, the squared ReLU (Primer, So et al. 2021, section 4.2)."""


@function("sigmoid", "out = 1 / (1 + exp(-a))")
@dataclass(eq=False)
class Sigmoid(Function):
    """``1 / (1 + exp(-x))``."""

    KEEPS_ZERO: ClassVar[bool] = False


@function("exp", "out = exp(a)")
@dataclass(eq=False)
class Exp(Function):
    """``exp(x)``."""

    KEEPS_ZERO: ClassVar[bool] = False


@function("tanh", "out = tanh(a)")
@dataclass(eq=False)
class Tanh(Function):
    """The hyperbolic tangent, which caps scores and logits softly (Gemma 2, section 2)."""


LARGEST = 3.4028234663852886e38
"""The largest number of f32: a bound of `Clamp` that bounds nothing."""


@function("clamp", "out = a, but at least `least` and at most `most`")
@dataclass(eq=False)
class Clamp(Function):
    """``min(max(x, least), most)``."""

    KEEPS_ZERO: ClassVar[bool] = False

    least: float = -LARGEST
    most: float = LARGEST

    @property
    def keeps_zero(self) -> bool:
        """Whether 0 is within the bounds."""
        return self.least <= 0 <= self.most
