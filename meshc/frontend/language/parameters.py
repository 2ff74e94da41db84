"""Values of a model's parameters, and the extents of its dims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from meshc.frontend.language.ast import Constant, Literal, Model, Parameter, Reference
from meshc.frontend.language.builtin_signatures import did_you_mean
from meshc.frontend.language.constants import bounded, fold, kind
from meshc.frontend.language.dims import BATCH, CAPACITY, ROWS
from meshc.support.diagnostics import fail
from meshc.support.spans import Span

LARGEST_EXTENT = 2**24
LARGEST_TENSOR = 2**40
_LONGEST_TEXT = 1 << 13  # a factor for each rotated pair of a wide head


def with_parameters(model: Model, values: Mapping[str, Constant]) -> Model:
    """``model`` with new defaults for some parameters, each checked against the old one's kind.

    Raises MeshcError (``bad-parameter``) for a name the model does not have or a value of another
    kind.
    """
    known = parameter_values(model, values)
    changed = tuple(
        replace(p, default=Literal(known[p.name], p.span)) if p.name in values else p
        for p in model.parameters
    )
    return replace(model, parameters=changed)


def parameter_values(model: Model, given: Mapping[str, Constant]) -> dict[str, Constant]:
    """Every parameter's value: the given one, else its default, which may use earlier ones."""
    names = [p.name for p in model.parameters]
    for name in given:
        if name not in names:
            message = f"model '{model.name}' has no parameter '{name}'"
            fail("bad-parameter", message, model.span, help=did_you_mean(name, names))
    values: dict[str, Constant] = {}
    for parameter in model.parameters:
        values[parameter.name] = _value(parameter, given, values)
    return values


def _value(
    parameter: Parameter, given: Mapping[str, Constant], earlier: Mapping[str, Constant]
) -> Constant:
    default = None
    if parameter.default is not None:
        default = fold(parameter.default, lambda reference: _earlier(reference, earlier))
    if parameter.name in given:
        return _accepted(parameter, given[parameter.name], default)
    if default is None:
        fail(
            "bad-parameter",
            f"parameter '{parameter.name}' has no default and no value was given",
            parameter.span,
        )
    return default


def _earlier(reference: Reference, values: Mapping[str, Constant]) -> Constant:
    if reference.name not in values:
        fail(
            "unknown-name",
            f"a default can only use the parameters before it, not '{reference.name}'",
            reference.span,
        )
    return values[reference.name]


def _accepted(parameter: Parameter, value: Constant, default: Constant | None) -> Constant:
    """``value`` when it is of the kind of the default; a whole number may stand for a float."""
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        message = f"the text for '{parameter.name}' has more than {_LONGEST_TEXT} characters"
        fail("bad-parameter", message, parameter.span)
    if not isinstance(value, (bool, str)):
        bounded(value, parameter.span)
    if default is not None and kind(default) != kind(value):
        message = f"'{parameter.name}' is {kind(default)}; {value!r} is not"
        fail("bad-parameter", message, parameter.span)
    # A computed default, such as D=E/H, says nothing of whether the value must be whole.
    written = parameter.default.value if isinstance(parameter.default, Literal) else None
    if type(written) is int and isinstance(value, float):
        message = f"'{parameter.name}' is a whole number; {value!r} is not"
        fail("bad-parameter", message, parameter.span)
    return float(value) if isinstance(written, float) else value


@dataclass
class Extents:
    """Extents of a model's dims in one phase; ``used`` collects those that some type names.

    ``fixed`` are B, L and S as far as the phase and the caller give them; ``places`` are where the
    parameters are declared.
    """

    parameters: Mapping[str, Constant]
    fixed: Mapping[str, int]
    places: Mapping[str, Span] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)

    def use(self, dim: str, span: Span) -> int:
        """The extent of ``dim``, which is one of the module's dims from now on."""
        if dim not in self.used:
            self.used[dim] = self._extent(dim, span)
        return self.used[dim]

    def ordered(self) -> dict[str, int]:
        """The used dims: B, L and S first, then in the order of the model's head."""
        names = (BATCH, ROWS, CAPACITY, *self.parameters)
        return {name: self.used[name] for name in dict.fromkeys(names) if name in self.used}

    def _extent(self, dim: str, span: Span) -> int:
        value = self.fixed.get(dim, self.parameters.get(dim))
        if value is None:
            fail(
                "bad-extent",
                f"the extent of '{dim}' is not given",
                span,
                help=f"declare {dim}=16 in the model's head, or give a sequence length (--seq)",
            )
        span = self.places.get(dim, span)
        if isinstance(value, bool) or not isinstance(value, int):
            fail("bad-extent", f"'{dim}' is {value!r}; a dim needs a whole number", span)
        if not 1 <= value <= LARGEST_EXTENT:
            message = f"dim '{dim}' is {value}; extents are 1 to {LARGEST_EXTENT}"
            fail("bad-extent", message, span)
        return value
