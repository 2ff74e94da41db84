"""A model of the language as it is found: statements over params, written as text at the end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from meshc.torch.exported.followed_dims import BATCH, ROWS, Dim, settled

_RESERVED = re.findall(
    r"\w+",
    "model block main param heads share weights accumulate repeat return when if else use true "
    "false and or not prefill decode cache",
)


@dataclass(eq=False)
class Param:
    """A tensor of the checkpoint, called about ``hint``, with ``dims`` and its numbers, which are
    laid out by them."""

    hint: str
    dims: Sequence[Dim]
    numbers: np.ndarray


@dataclass(eq=False)
class Statement:
    """A value: ``text`` with the names of ``operands`` put in, of ``dims`` in the order of the
    language. ``stem`` begins its name; ``attends`` says that it has a cache."""

    text: str
    operands: Sequence[Statement | Param]
    dims: Sequence[Dim]
    stem: str
    attends: bool = False


@dataclass(frozen=True)
class ModelText:
    """A model in the language and its weights by the names of its params."""

    text: str
    weights: dict[str, np.ndarray]


def model_text(
    name: str,
    comment: str,
    given: Statement,
    results: Sequence[Statement],
    dtype: str,
) -> ModelText:
    """The model called ``name`` that makes ``results`` of ``given``, its only input; weights have
    the element type ``dtype``."""
    needed = _needed(results)
    statements = [one for one in needed if isinstance(one, Statement) and one is not given]
    params = [one for one in needed if isinstance(one, Param)]
    dims = _dim_names([given, *needed])
    names = _names(given, statements, params, set(dims.values()))

    def shown(axis: Iterable[Dim]) -> str:
        return f"[{', '.join(dims[dim] for dim in settled(axis))}]"

    declared = settled(dim for axis in [given.dims, *(one.dims for one in params)] for dim in axis)
    extents = {dims[dim]: dim.extent for dim in declared if dim.role not in (BATCH, ROWS)}
    head = ", ".join(f"{called}={extent}" for called, extent in extents.items())
    lines = [f"# {comment}", "use blocks", "", f"model {name}({head}) {{"]
    lines += [f"  weights {dtype}  accumulate f32", ""]
    lines += [f"  param {names[one]}{shown(one.dims)}" for one in params]
    lines += [""] * bool(params) + [f"  main({names[given]}{shown(given.dims)}) {{"]
    early = _early(results, given)
    attending = 0
    for one in statements:
        text = one.text.format(*(names[operand] for operand in one.operands))
        if one.attends:
            text = text.removesuffix(")") + f", cache = layer{attending})"
            attending += 1
        lines.append(f"    {names[one]} = {text}")
        if one is early:
            lines.append(f"    return {names[one]} when prefill")
    lines += [f"    return {', '.join(names[one] for one in results)}", "  }", "}"]
    weights = {
        names[one]: np.ascontiguousarray(
            one.numbers.reshape([dim.extent for dim in settled(one.dims)])
        )
        for one in params
    }
    return ModelText("\n".join(lines) + "\n", weights)


def _needed(results: Sequence[Statement]) -> list[Statement | Param]:
    """What ``results`` need, in the order in which it can be computed."""
    found: dict[Statement | Param, None] = {}
    waiting: list[tuple[Statement | Param, bool]] = [(one, False) for one in reversed(results)]
    while waiting:
        one, ready = waiting.pop()
        if one in found:
            continue
        if ready or isinstance(one, Param):
            found[one] = None
            continue
        waiting.append((one, True))
        waiting += [(operand, False) for operand in reversed(one.operands)]
    return list(found)


def _early(results: Sequence[Statement], given: Statement) -> Statement | None:
    """What a prompt needs to compute of a model of tokens whose caches it fills: all in front of
    the norm and the head, which take one value each and attend to nothing."""
    if len(results) != 1 or not given.text.startswith("tokens"):
        return None
    if not any(isinstance(one, Statement) and one.attends for one in _needed(results)):
        return None
    found = results[0]
    while True:
        values = [one for one in found.operands if isinstance(one, Statement)]
        if len(values) != 1 or found.attends:
            return found if found is not results[0] else None
        found = values[0]


def _dim_names(needed: Iterable[Statement | Param]) -> dict[Dim, str]:
    """Names by roles. Dims of one role and extent have one name, unless a tensor has both."""
    apart: dict[Dim, set[Dim]] = {}
    for one in needed:
        axis = settled(one.dims)
        for dim in axis:
            apart.setdefault(dim, set()).update(axis)
    found: dict[Dim, str] = {}
    taken: dict[str, list[Dim]] = {}
    for dim, beside in apart.items():
        number = 1
        while True:
            name = dim.role if number == 1 else f"{dim.role}{number}"
            same = taken.setdefault(name, [])
            if all(one.extent == dim.extent for one in same) and not beside.intersection(same):
                break
            number += 1
        same.append(dim)
        found[dim] = name
    return found


def _names(
    given: Statement, statements: Sequence[Statement], params: Sequence[Param], taken: set[str]
) -> dict[Statement | Param, str]:
    """A name for each of them that no other has; statements of a stem are numbered."""
    used = {*taken, *_RESERVED, BATCH, ROWS, "S"}
    found: dict[Statement | Param, str] = {}

    def named(one: Statement | Param, wanted: str) -> None:
        name, number = wanted, 2
        while name in used:
            name, number = f"{wanted}_{number}", number + 1
        used.add(name)
        found[one] = name

    named(given, given.stem)
    for param in params:
        plain = re.sub(r"\W+", "_", param.hint, flags=re.ASCII).strip("_").lower()
        named(param, plain if re.match("[a-z]", plain) else f"w_{plain}")
    counts: dict[str, int] = {}
    for one in statements:
        counts[one.stem] = counts.get(one.stem, 0) + 1
        named(one, f"{one.stem}{counts[one.stem]}")
    return found
