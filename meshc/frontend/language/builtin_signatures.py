"""The built-in functions' parameters, and how the arguments of a call meet parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Literal, cast

from meshc.frontend.language.ast import Argument, Block, Call, Constant, Tensor
from meshc.ir.brought_functions import is_function
from meshc.ir.functions import FUNCTIONS, Function, attributes_of
from meshc.support.diagnostics import fail
from meshc.support.spans import Span

# Comparing with more names than any model has would take long.
_MANY_NAMES = 500

Kind = Literal["tensor", "number", "word", "dim", "cache", "constant"]


@dataclass(frozen=True)
class Formal:
    """A parameter of a function. ``words`` are the allowed values of a parameter of kind word."""

    name: str
    kind: Kind
    required: bool = True
    default: Constant = ""
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Signature:
    """A function's name and parameters, in the order in which they can be given by position."""

    name: str
    formals: tuple[Formal, ...]

    def formal(self, name: str) -> Formal | None:
        """The parameter called ``name``."""
        return next((f for f in self.formals if f.name == name), None)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(_shown(f) for f in self.formals)})"


def _option(name: str, default: float) -> Formal:
    return Formal(name, "number", False, default)


def _word(name: str, *words: str) -> Formal:
    return Formal(name, "word", False, words[0], words)


def _of_elements(name: str) -> Signature:
    return Signature(name, (_X, *_options_of(FUNCTIONS[name])))


def _options_of(function: type[Function]) -> Iterator[Formal]:
    """The parameters that are options of a function of elements."""
    defaults = {field.name: field.default for field in fields(function)}
    for attribute in attributes_of(function):
        if attribute.rule.among:
            yield _word(attribute.name, *attribute.rule.among)
        else:
            yield _option(attribute.name, cast(float, defaults[attribute.name]))


_DIM = Formal("dim", "dim", required=False)
_X = Formal("x", "tensor")

_ALL = (
    Signature(
        "embed",
        (
            Formal("tokens", "tensor"),
            Formal("table", "tensor"),
            Formal("positions", "tensor", required=False),
        ),
    ),
    Signature("rms_norm", (_X, Formal("gain", "tensor"), _option("eps", 1e-5))),
    Signature(
        "layer_norm",
        (
            _X,
            Formal("gain", "tensor"),
            Formal("bias", "tensor", required=False),
            _option("eps", 1e-5),
        ),
    ),
    Signature(
        "rope",
        (
            _X,
            _option("theta", 10000.0),
            _word("style", "half", "interleaved"),
            _word("scaling", "none", "linear", "dynamic", "llama3", "yarn", "longrope"),
            _option("factor", 1.0),
            _option("low_freq_factor", 1.0),
            _option("high_freq_factor", 4.0),
            _option("original_max_position", 8192),
            Formal("truncate", "constant", False, True),
            _option("rotated", 0),
            _option("but", 0),
            _option("local_theta", 10000.0),
            _option("skip", 0),
            Formal("short_factors", "constant", False),
            Formal("long_factors", "constant", False),
            _DIM,
        ),
    ),
    Signature(
        "softmax",
        (
            _X,
            _word("mask", "none", "causal"),
            _DIM,
            _option("window", 0),
            _option("every", 1),
            _option("but", 0),
            _option("after", 0),
            Formal("sink", "tensor", required=False),
        ),
    ),
    Signature(
        "top_k",
        (
            Formal("scores", "tensor"),
            Formal("count", "number"),
            Formal("bias", "tensor", required=False),
            _option("groups", 1),
            _option("kept_groups", 1),
            _option("group_top", 1),
            Formal("normalise", "constant", False, False),
            _DIM,
        ),
    ),
    *map(_of_elements, FUNCTIONS),
    Signature("transpose", (_X, Formal("first", "dim", False), Formal("second", "dim", False))),
    Signature("append", (Formal("cache", "cache"), Formal("value", "tensor"))),
    Signature("sqrt", (Formal("number", "number"),)),
)

BUILTINS = {signature.name: signature for signature in _ALL}


def built_in(name: str, span: Span | None = None) -> Signature | None:
    """The built-in function ``name``, or the function of elements of an installed package. Raises
    ``bad-plugin``."""
    if name in BUILTINS:
        return BUILTINS[name]
    return _of_elements(name) if is_function(name, span) else None


def signature_of(block: Block) -> Signature:
    """A block's parameters: its tensors and its constants."""
    return Signature(
        block.name,
        tuple(
            Formal(f.name, "tensor")
            if isinstance(f, Tensor)
            else Formal(f.name, "constant", f.default is None)
            for f in block.formals
        ),
    )


def bind(call: Call, signature: Signature) -> dict[str, Argument]:
    """Which argument goes to which parameter; parameters that keep their default are absent."""
    bound: dict[str, Argument] = {}
    for index, argument in enumerate(call.arguments):
        formal = _target(call, signature, index, argument)
        if formal.name in bound:
            message = f"'{formal.name}' of {signature.name} is given twice"
            fail("wrong-arguments", message, argument.span)
        bound[formal.name] = argument
    missing = [f.name for f in signature.formals if f.required and f.name not in bound]
    if missing:
        fail(
            "wrong-arguments",
            f"{signature.name} lacks {', '.join(repr(m) for m in missing)}",
            call.span,
            [f"its form is {signature}"],
        )
    return bound


def did_you_mean(name: str, candidates: Iterable[str]) -> str | None:
    """A help line with the candidate that is most like ``name``, if any is."""
    known = sorted(set(candidates))
    found = get_close_matches(name, known, n=1) if len(known) <= _MANY_NAMES else []
    return f"did you mean '{found[0]}'?" if found else None


def _target(call: Call, signature: Signature, index: int, argument: Argument) -> Formal:
    if argument.name:
        formal = signature.formal(argument.name)
        if formal is None:
            fail(
                "unknown-option",
                f"{signature.name} has no parameter '{argument.name}'",
                argument.span,
                [f"its form is {signature}"],
                did_you_mean(argument.name, (f.name for f in signature.formals)),
            )
        return formal
    if index >= len(signature.formals):
        fail(
            "wrong-arguments",
            f"{signature.name} takes {len(signature.formals)} arguments, not {len(call.arguments)}",
            argument.span,
            [f"its form is {signature}"],
        )
    return signature.formals[index]


def _shown(formal: Formal) -> str:
    if formal.required:
        return formal.name
    if formal.words:
        return f"{formal.name}={'|'.join(formal.words)}"
    default = str(formal.default).lower() if isinstance(formal.default, bool) else formal.default
    return f"{formal.name}={default}" if default != "" else f"{formal.name}=..."
