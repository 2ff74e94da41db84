"""What ``meshc estimate --kv`` prints of the capacities that it found."""

from __future__ import annotations

from collections.abc import Sequence

from meshc.cli.printing import message_objects, table
from meshc.driver import CompileRequest
from meshc.driver.capacity import Capacity
from meshc.driver.core_fit import Fit
from meshc.ir.codes import CODES
from meshc.ir.mesh import Mesh

_LARGEST = 5
"""Buffers that are named."""


def capacity_tables(model: str, request: CompileRequest, found: Sequence[Capacity]) -> list[str]:
    """Lines: the capacity by policy, the memory of the core that overflows, and why a token more
    is refused."""
    heads = ("policy", "tokens", "slots", "first to overflow", "cores like it")
    lines = [_title(model, request, found), *table([heads, *map(_row, found)])]
    filled = [(one, one.fit) for one in found if one.fit is not None]
    if filled:
        first = filled[0][1]
        columns = [text for one, _ in filled for text in (_names(one), "a slot")]
        lines += ["", f"bytes of a core, of {sum(first.uses.values())}"]
        uses = [(use, *_bytes_of(use, filled)) for use in first.uses]
        lines += table([("", *columns), *uses])
        lines += [f"{_names(one)}: largest buffers {_largest(fit)}" for one, fit in filled]
    lines += ["", *(f"{_names(one)}, {_more(one)}: {one.refused.message}" for one in found)]
    for one in found:
        if one.unreached is not None:
            lines.append(f"{_names(one)}, not emitted for all of them: {one.unreached.message}")
    return lines


def capacity_object(
    model: str, request: CompileRequest, found: Sequence[Capacity]
) -> dict[str, object]:
    """The same as JSON values."""
    return {
        "model": model,
        "device": request.device_name,
        "mesh": request.mesh_name,
        "layers": request.layers,
        "keep_quantised": list(request.keep_quantised),
        "policies": [_object(one) for one in found],
    }


def _object(one: Capacity) -> dict[str, object]:
    fit, overflow = one.fit, one.overflow
    (refused,) = message_objects([one.refused], one.refused.severity)
    return {
        "policies": list(one.policies),
        "tokens": one.tokens,
        "regions": fit.module.the_mesh().regions if fit else None,
        "slots": overflow.slots if overflow else None,
        "overflow": overflow.core if overflow else None,
        "cores": overflow.cores if overflow else None,
        "bytes": fit.uses if fit else None,
        "bytes_of_a_slot": one.slot,
        "buffers": fit.buffers if fit else None,
        "refused": refused,
        "unreached": message_objects([one.unreached], "error")[0] if one.unreached else None,
    }


def _title(model: str, request: CompileRequest, found: Sequence[Capacity]) -> str:
    modules = [one.fit.module for one in found if one.fit is not None]
    where = f"{request.mesh_name} cores of {request.device_name}"
    if modules:
        mesh: Mesh = modules[0].the_mesh()
        regions = f"{mesh.regions} regions of " if mesh.regions > 1 else ""
        where = f"{regions}{mesh} cores of {request.device_name}, {modules[0].option('dtype', '')}"
    layers = f", {request.layers} layers" if request.layers else ""
    if modules and request.keep_quantised:
        kept = sum(b.value.name.endswith(CODES) for b in modules[0].buffers)
        layers += f", {kept or 'no'} buffers of weights quantised"
    return f"KV cache of {model}{layers}: decode steps on {where}"


def _row(one: Capacity) -> tuple[str, ...]:
    if one.overflow is None:
        return _names(one), "refused" if one.tokens is None else str(one.tokens), "-", "-", "-"
    where = ", ".join(f"{axis} = {place}" for axis, place in one.overflow.core.items())
    cores = str(one.overflow.cores - 1)
    return _names(one), str(one.tokens), str(one.overflow.slots), where, cores


def _names(one: Capacity) -> str:
    return " and ".join(one.policies)


def _bytes_of(use: str, filled: Sequence[tuple[Capacity, Fit]]) -> list[str]:
    """Bytes of ``use`` on a core, and those of each slot, by policy."""
    found = []
    for one, fit in filled:
        found += [str(fit.uses[use]), f"{one.slot[use]:.1f}" if use in one.slot else "-"]
    return found


def _largest(fit: Fit) -> str:
    sizes = sorted(fit.buffers.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {size}" for name, size in sizes[:_LARGEST])


def _more(one: Capacity) -> str:
    return "a token more" if one.tokens else "a single token"
