"""``@map``: a function applied element by element."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from meshc.sim.descriptors import ENDLESS, FabIn, FabOut, Fifo, Mem
from meshc.sim.machine.compute import BY_NAME, element_of, number_of
from meshc.sim.machine.pe import Pe


def _plain(operand: Any) -> Any:
    return operand.dsd if type(operand).__name__ == "Dsr" else operand


def _count(operands: list[Any]) -> int:
    """``@map`` ends when any of its DSDs is used up."""
    lengths = [
        o.n for o in operands if isinstance(o, Mem | FabIn | FabOut) and not getattr(o, "scalar", 0)
    ]
    lengths = [n for n in lengths if n & ENDLESS != ENDLESS]
    return min(lengths) if lengths else 1


def _element(pe: Pe, source: Any, kind: str, position: int) -> Any:
    if isinstance(source, Mem):
        array = pe.read(source, BY_NAME[kind], position, 1)
        return number_of(kind, array.item() if np.ndim(array) == 0 else array[0].item())
    return source


def _column(pe: Pe, source: Any, kind: str, count: int) -> Any:
    """A scalar repeated; None for memory, whose elements are read when their turn comes."""
    return None if isinstance(source, Mem) else [source] * count


def map_plain(
    pe: Pe, fn: Callable[..., Any], sources: tuple[Any, ...], kinds: tuple[str, ...], dst: Any,
    dst_kind: str | None,
) -> None:  # fmt: skip
    """``@map`` over memory."""
    records = [o for o in (*sources, dst) if type(o).__name__ == "Dsr"]
    plain, target = [_plain(s) for s in sources], _plain(dst)
    count = _count([*plain, target])
    columns = [_column(pe, s, k, count) for s, k in zip(plain, kinds, strict=True)]
    for position in range(count):
        pe.t += pe.costs.map_call
        result = fn(*[c[position] if c is not None else _element(pe, s, k, position)
                      for c, s, k in zip(columns, plain, kinds, strict=True)])  # fmt: skip
        if target is not None:
            assert dst_kind is not None
            pe.write(target, BY_NAME[dst_kind], position, 1, element_of(dst_kind, result))
    for record in records:
        record.advance(count, record.dsd.esize if isinstance(record.dsd, Mem) else 2)


def map_waiting(
    pe: Pe, fn: Callable[..., Any], sources: tuple[Any, ...], kinds: tuple[str, ...], dst: Any,
    dst_kind: str | None, blocking: bool, place: str,
) -> Generator[Any, None, None]:  # fmt: skip
    """``@map`` where inputs, the output or the function itself may wait."""
    plain, target = [_plain(s) for s in sources], _plain(dst)
    count = _count([*plain, target])
    for position in range(count):
        pe.t += pe.costs.map_call
        args = []
        for source, kind in zip(plain, kinds, strict=True):
            if isinstance(source, FabIn | Fifo):
                args.append((yield from _take(pe, source, kind, place)))
            else:
                args.append(_element(pe, source, kind, position))
        result = (yield from fn(*args)) if blocking else fn(*args)
        if target is None:
            continue
        assert dst_kind is not None
        if isinstance(target, FabOut | Fifo):
            yield from _put(pe, target, dst_kind, result, place)
        else:
            pe.write(target, BY_NAME[dst_kind], position, 1, element_of(dst_kind, result))
    for record in (o for o in (*sources, dst) if type(o).__name__ == "Dsr"):
        record.advance(count, record.dsd.esize if isinstance(record.dsd, Mem) else 2)


def _transfer(kind: str) -> str:
    return "mov32" if BY_NAME[kind].itemsize == 4 else "mov16"


def _scratch(pe: Pe) -> Mem:
    """A place of four bytes behind the variables."""
    return Mem((pe.program.end + 15) // 8 * 8, 1, 4, 4)


def _take(pe: Pe, source: Any, kind: str, place: str) -> Generator[Any, None, Any]:
    from_ = source._replace(n=1) if isinstance(source, FabIn) else source
    cell = _scratch(pe)
    operation = pe.machine.start_operation(pe, _transfer(kind), (cell, from_), place)
    if isinstance(source, Fifo):
        operation.n = 1
    if not operation.done:
        yield operation
    return number_of(kind, pe.view(cell, BY_NAME[kind], 0, 1)[0].item())


def _put(pe: Pe, target: Any, kind: str, value: Any, place: str) -> Generator[Any, None, None]:
    to = target._replace(n=1) if isinstance(target, FabOut) else target
    bits = (
        np.array([element_of(kind, value)], BY_NAME[kind])
        .view(f"u{BY_NAME[kind].itemsize}")[0]
        .item()
    )
    operation = pe.machine.start_operation(pe, _transfer(kind), (to, bits), place)
    if isinstance(target, Fifo):
        operation.n = 1
    if not operation.done:
        yield operation
