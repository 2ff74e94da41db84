"""What names mean at one place of a model while it is elaborated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshc.frontend.language.ast import Block, Constant, Name, Reference
from meshc.frontend.language.builtin_signatures import did_you_mean
from meshc.frontend.language.dims import BATCH, CAPACITY, ROWS, HeadPair
from meshc.frontend.language.graph_function import Weight
from meshc.frontend.language.names import PHASES
from meshc.frontend.language.parameters import Extents
from meshc.ir.values import Value
from meshc.support.diagnostics import fail

PREDECLARED = (BATCH, ROWS, CAPACITY)


class Poisoned(Exception):
    """A value whose own error has been reported already is used."""


@dataclass
class Scope:
    """The names of a block or of main.

    ``dims`` maps a name to the module's dim it stands for, ``bound`` only those names that the
    arguments of a block have fixed. ``values`` holds None for a value that
    could not be computed. ``caches`` is the prefix of cache names and ``trace`` tells how a block
    was reached, for notes.
    """

    extents: Extents
    blocks: Mapping[str, Block]
    constants: dict[str, Constant]
    dims: dict[str, str]
    values: dict[str, Value | Weight | None] = field(default_factory=dict)
    heads: list[HeadPair] = field(default_factory=list)
    caches: str = ""
    trace: tuple[str, ...] = ()
    bound: dict[str, str] = field(default_factory=dict)

    def bind(self, names: tuple[str, ...], actual: tuple[str, ...]) -> None:
        """Let a block's names of dims stand for those of an argument."""
        for name, dim in zip(names, actual, strict=True):
            self.bound[name] = self.dims[name] = dim
            self.constants.pop(name, None)

    def dim(self, name: Name) -> str:
        """The module's dim that ``name`` stands for; its extent is checked."""
        if name.text not in self.dims:
            fail(
                "unknown-dim",
                f"there is no dim '{name.text}' here",
                name.span,
                help=did_you_mean(name.text, self.dims),
            )
        actual = self.dims[name.text]
        self.extents.use(actual, name.span)
        return actual

    def dim_list(self, names: tuple[Name, ...]) -> tuple[str, ...]:
        """The module's dims for a written list."""
        return tuple(self.dim(name) for name in names)

    def read(self, reference: Reference) -> Value | Constant:
        """What a name means in an expression."""
        if reference.name not in self.values:
            return self.constant(reference)
        return self.value(reference.name)

    def value(self, name: str) -> Value:
        """The tensor called ``name``; a param counts as used from now on."""
        found = self.values[name]
        if found is None:
            raise Poisoned
        if isinstance(found, Weight):
            found.used = True
            return found.inner
        return found

    def constant(self, reference: Reference) -> Constant:
        """The value of a parameter, of a dim, or of ``prefill`` and ``decode``."""
        name = reference.name
        if name in self.constants:
            return self.constants[name]
        if name in self.dims:
            return self.extents.use(self.dims[name], reference.span)
        if name in self.values:
            fail(
                "bad-operand",
                f"'{name}' is a tensor; a constant is needed here",
                reference.span,
                help="conditions and options are decided at compile time",
            )
        fail(
            "unknown-name",
            f"'{name}' is not known here",
            reference.span,
            help=did_you_mean(name, [*self.values, *self.constants, *self.dims])
            or "it may be assigned only in a branch or a repeat; assign it before",
        )


def phase_constants(phase: str) -> dict[str, Constant]:
    """``prefill`` and ``decode`` as truth values."""
    return {name: name == phase for name in PHASES}
