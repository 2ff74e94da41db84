"""Synchronous vector operations on memory: the fast path of the Python back end.

What an operation will do follows from its operands, which are values; it is worked out once per
set of operands and kept as a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshc.sim.descriptors import Mem
from meshc.sim.machine.compute import COMPUTE, DTYPES, QUICK
from meshc.sim.machine.pe import Dsr, Pe
from meshc.sim.machine.vector_operation import length_of, reduces
from meshc.sim.vector_ops import OPS

_MOST_PLANS = 20_000


@dataclass(slots=True)
class Plan:
    """``views`` are the sources (None for scalars); ``dst`` is None when the slow path must run."""

    n: int
    cycles: int
    steps: int
    function: Callable[..., Any]
    views: list[Any]
    dst: Any


def vector(pe: Pe, name: str, operands: tuple[Any, ...], index: int | None) -> None:
    """A synchronous operation on memory only."""
    records = [
        (o, DTYPES[kind].itemsize)
        for o, kind in zip(operands, OPS[name].types, strict=False)
        if o.__class__ is Dsr
    ]
    if records:
        operands = tuple([o.dsd if o.__class__ is Dsr else o for o in operands])
        pe.t = max(pe.t, *[record.ready for record, _ in records])
    if index is not None:
        operands = tuple(
            o._replace(addr=(o.addr + 2 * index) & 0xFFFF)
            if o.__class__ is Mem and o.indexed
            else o
            for o in operands
        )
    key = (name, *[o if o.__class__ is Mem else None for o in operands])
    plan = pe.plans.get(key)
    if plan is None:
        plan = _plan(pe, name, operands)
        if len(pe.plans) > _MOST_PLANS:
            pe.plans.clear()
        pe.plans[key] = plan
    if plan.dst is None:
        _general(pe, name, operands, plan.n)
    else:
        plan.dst[...] = plan.function(
            *[
                operand if view is None else view
                for operand, view in zip(operands[1:], plan.views, strict=True)
            ]
        )
    pe.t += plan.cycles
    pe.issued += plan.steps
    if records:
        pe.drained = pe.t + pe.costs.drained
    for record, itemsize in records:
        if record.save:
            record.advance(plan.n, itemsize)


def _plan(pe: Pe, name: str, operands: tuple[Any, ...]) -> Plan:
    spec = OPS[name]
    dst, sources = operands[0], operands[1:]
    n = next((length for o in (*sources, dst) if (length := length_of(o))), 1)
    steps = pe.costs.vector_cycles(spec, list(sources), dst, n)
    cycles = pe.costs.memory + steps
    plain = [o for o in operands if o.__class__ is Mem]
    slow = (
        any(o.scalar or o.dims for o in plain)
        or len(plain) < 2
        or reduces(dst, n)
        or _chained(dst, sources, n)
    )
    if slow:
        return Plan(n, cycles, steps, COMPUTE[name], [], None)
    views = [
        pe.view(s, DTYPES[kind], 0, n) if s.__class__ is Mem else None
        for s, kind in zip(sources, spec.types[1:], strict=True)
    ]
    target = pe.view(dst, DTYPES[spec.types[0]], 0, n)
    return Plan(n, cycles, steps, QUICK.get(name, COMPUTE[name]), views, target)


def _general(pe: Pe, name: str, operands: tuple[Any, ...], n: int) -> None:
    spec = OPS[name]
    dst, sources = operands[0], operands[1:]
    arrays = [
        pe.read(source, DTYPES[kind], 0, n) if source.__class__ is Mem else source
        for source, kind in zip(sources, spec.types[1:], strict=True)
    ]
    if reduces(dst, n):
        pe.reduce(spec, dst, list(sources), arrays, n)
    elif _chained(dst, sources, n):
        _sequential(pe, name, dst, sources, arrays, n)
    else:
        pe.write(dst, DTYPES[spec.types[0]], 0, n, COMPUTE[name](*arrays))


def _chained(dst: Any, sources: tuple[Any, ...], n: int) -> bool:
    """Whether an element written may be read as a later element of a source."""
    if n < 2 or dst.dims or dst.scalar:
        return False
    end = dst.addr + n * dst.stride
    for source in sources:
        if source.__class__ is not Mem or source.scalar or source.dims:
            continue
        if source.stride == dst.stride and dst.stride > 0:
            if dst.addr < source.addr + n * source.stride and source.addr < dst.addr:
                return True
        elif dst.addr <= source.addr < end and source.stride == 0:
            return True
    return False


def _sequential(
    pe: Pe, name: str, dst: Mem, sources: tuple[Any, ...], arrays: list[Any], n: int
) -> None:
    """Element by element, so that later elements see earlier results."""
    target = pe.view(dst, DTYPES[OPS[name].types[0]], 0, n)
    function = COMPUTE[name]
    for position in range(n):
        target[position] = function(*(a if np.ndim(a) == 0 else a[position] for a in arrays))
