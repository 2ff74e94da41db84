"""Functions of elements as vector operations: which these are, and what they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from meshc.analysis.csl.functions import (
    exponentials,
    exponentials_in_half,
    gelu_by_erf,
    gelu_by_tanh,
    silu,
    silu_in_half,
)
from meshc.analysis.csl.instruction_costs import BANKS, Costs
from meshc.analysis.csl.operands import BY_STEPS
from meshc.analysis.csl.strided_windows import Window
from meshc.analysis.csl.vector_steps import Steps
from meshc.analysis.csl.ways import HALF, parts_of
from meshc.devices import Device, WatchedDevice
from meshc.ir.ops.tile import Compute
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value

_OPERANDS = tuple(Value(f"operand_{n}", BufferType(DType.F32, (1,))) for n in range(8))
"""Stand for the buffers of operands where only costs are asked for."""


class Taken(NamedTuple):
    """Predicted ``cycles`` of :class:`Steps`, elements (``words``) and ``bytes`` of their scratch,
    and whether descriptors have enough dims for their operands (``fits``)."""

    cycles: int
    words: int
    bytes: int
    fits: bool

    @staticmethod
    def of(steps: Steps) -> Taken:
        """What ``steps`` take."""
        return Taken(steps.cycles, steps.words, steps.bytes, steps.fits)


def function_steps(
    op: Compute, given: Sequence[Window], costs: Costs, kind: str = ""
) -> Steps | None:
    """The operations of one of ``BY_STEPS`` whose result has 16 bits, of the ``kind`` of way that
    is asked for or that the call says, with registers if it says these; None for others."""
    found = _steps(_function(op), _kind(op, kind), given, costs)
    return found.hold() if found is not None and op.dsr else found


def steps_taken(op: Compute, given: Sequence[Window], costs: Costs, kind: str = "") -> Taken | None:
    """What :func:`function_steps` take; what was asked before is known, wherever operands like
    these lay."""
    alike = _alike(given, costs)
    of = _function(op), _kind(op, kind)
    found, asked = _known(*of, bool(op.dsr), alike, costs.device.unwatched)
    if isinstance(costs.device, WatchedDevice):
        costs.device.asked.update(asked)
    return found


@lru_cache(maxsize=8192)
def _known(
    function: str, kind: str, held: bool, given: tuple[Window, ...], device: Device
) -> tuple[Taken | None, frozenset[str]]:
    """What they take, their operands ``held`` in registers or not, and the numbers of ``device``
    that this rests on."""
    watched = device.watched()
    steps = _steps(function, kind, given, Costs(watched))
    if steps is None:
        return None, frozenset(watched.asked)
    return Taken.of(steps.hold() if held else steps), frozenset(watched.asked)


def _alike(given: Sequence[Window], costs: Costs) -> tuple[Window, ...]:
    """Windows that cost as much: of the place of a buffer only the bank group counts, and how the
    operands that lie in it stand to each other, which are held in one register where they are the
    same elements."""
    stands: dict[Value, tuple[Value, int]] = {}
    for one in given:
        at = one.start.constant
        moved = (at + costs.late.get(one.buffer.name, 0)) % BANKS - at
        stands.setdefault(one.buffer, (_OPERANDS[len(stands)], moved))
    return tuple(
        Window(stands[one.buffer][0], one.dtype, one.start + stands[one.buffer][1], one.dims)
        for one in given
    )


def _function(op: Compute) -> str:
    """The function by its kernel and form; nothing for kernels that have no such operations."""
    if op.kernel not in BY_STEPS:
        return ""
    return f"{op.kernel}_{op.params['form']}" if op.kernel == "gelu" else op.kernel


def _kind(op: Compute, kind: str) -> str:
    return kind or next(iter(parts_of(op)), "")


def _steps(function: str, kind: str, given: Sequence[Window], costs: Costs) -> Steps | None:
    if not function or not given[0].dtype.half:
        return None
    if kind == HALF:
        return _in_half(function, given, costs)
    of: dict[str, Callable[..., Steps]] = {
        "exp_sub": exponentials,
        "silu": silu,
        "gelu_tanh": gelu_by_tanh,
        "gelu_erf": gelu_by_erf,
    }
    return of[function](costs, *given)


def _in_half(function: str, given: Sequence[Window], costs: Costs) -> Steps | None:
    """The operations in f16 alone; None for functions and types that have none."""
    if given[0].dtype != DType.F16 or function not in ("exp_sub", "silu"):
        return None
    if function == "silu":
        return silu_in_half(costs, *given)
    return exponentials_in_half(costs, *given) if given[1].dtype == DType.F16 else None
