"""The kernels of a program of tasks that is cut, and in which order they are launched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from meshc.backends.cuda.launches import Launch
from meshc.backends.cuda.tasks.families import Loop, Phase, phases_of
from meshc.backends.cuda.tasks.reserved import fresh
from meshc.ir.builder import Names
from meshc.ir.module import Module
from meshc.ir.ops import task


@dataclass(frozen=True, eq=False)
class KernelPart:
    """What one kernel does: ``phases`` in a round of the loops around, whose variables, each with
    its number of ``rounds``, its launches say."""

    name: str
    phases: tuple[Phase, ...]
    rounds: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Rounds:
    """``count`` rounds of what is launched, in which ``var`` counts."""

    var: str
    count: int
    body: tuple[KernelPart | Rounds, ...]


def kernel_parts(module: Module) -> tuple[KernelPart | Rounds, ...]:
    """The kernels of ``module`` in order, none where no meeting ends one. Loops begin and end
    kernels as well, since launches count their rounds."""
    if not any(isinstance(op, task.Meet) and op.kind == task.KERNEL for op in module.walk()):
        return ()
    return tuple(_parts(phases_of(module), {}, Names()))


def _parts(
    body: Sequence[Phase | Loop], rounds: dict[str, int], names: Names
) -> Iterator[KernelPart | Rounds]:
    together: list[Phase] = []
    for one in (*body, None):
        if together and not (isinstance(one, Phase) and one.meets != task.KERNEL):
            name = fresh(names, f"step_{'_'.join(phase.name for phase in together)}")
            yield KernelPart(name, tuple(together), dict(rounds))
            together = []
        if isinstance(one, Loop):
            inner = {**rounds, one.var: one.count}
            yield Rounds(one.var, one.count, tuple(_parts(one.body, inner, names)))
        elif one is not None:
            together.append(one)


def every_part(parts: Sequence[KernelPart | Rounds]) -> Iterator[KernelPart]:
    """Each kernel once."""
    for one in parts:
        if isinstance(one, Rounds):
            yield from every_part(one.body)
        else:
            yield one


def launched(
    parts: Sequence[KernelPart | Rounds],
    arguments: Callable[[KernelPart], Sequence[str]],
    rounds: Mapping[str, int] | None = None,
) -> Iterator[Launch]:
    """The launches of all ``parts`` in order, each with its ``arguments`` and the round of each
    loop around it."""
    known = rounds or {}
    for one in parts:
        if isinstance(one, KernelPart):
            yield Launch(one.name, (*arguments(one), *known.values()))
            continue
        for number in range(one.count):
            yield from launched(one.body, arguments, {**known, one.var: number})
