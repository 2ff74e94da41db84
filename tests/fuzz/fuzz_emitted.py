"""Modules that are altered a little, so that many still verify: those are emitted and interpreted.

A module that the verifier lets through must end in files or in a refusal in every emitter, and in
numbers or in a refusal in the interpreter of its level.
"""

from __future__ import annotations

import re
from math import prod
from pathlib import Path
from random import Random

from meshc.cli import main
from meshc.interp.check import random_trace, run_from
from meshc.ir.core import Block
from meshc.ir.module import Module
from meshc.ir.ops import tile
from meshc.ir.parser import parse_module
from meshc.ir.verifier import verify_module
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source

_MOST_WORK = 300_000  # elements and steps that the interpreter may look at in its five seconds
_MOST_ROUNDS = 20_000
_TARGETS = (("python",), ("csl", "--device", "wse2"), ("csl", "--device", "wse3"))
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?")
_NAME = re.compile(r"[%@]?[A-Za-z_]\w*")


def altered(random: Random, text: str) -> str:
    """``text`` with one or two numbers, names, operands or statements of the program changed."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        text = random.choice((_number, _number, _name, _name, _value, _statement))(random, text)
    return text


def _number(random: Random, text: str) -> str:
    found = list(_NUMBER.finditer(text))
    if not found:
        return text
    place, other = random.choice(found), random.choice(found)[0]
    near = (
        str(int(place[0]) + random.choice((-1, 1)))
        if re.fullmatch(r"-?\d{1,17}", place[0])
        else "0.0"
    )
    new = random.choice((near, near, near, other, other, "0", "1", "2", "3", "64"))
    return text[: place.start()] + new + text[place.end() :]


def _name(random: Random, text: str) -> str:
    """A name becomes another that the text has: an op, a kernel, a dim, an attribute, a word."""
    found = list(_NAME.finditer(text))
    if not found:
        return text
    place = random.choice(found)
    like = [f[0] for f in found if f[0][0] in "%@" or place[0][0] not in "%@"]
    return text[: place.start()] + random.choice(like) + text[place.end() :]


def _value(random: Random, text: str) -> str:
    """An operand becomes another, with the view that is taken of it."""
    found = list(re.finditer(r"%\w+(?:\[[^\]]*\])?(?: as \[[^\]]*\])?", text))
    if not found:
        return text
    place = random.choice(found)
    return text[: place.start()] + random.choice(found)[0] + text[place.end() :]


def _statement(random: Random, text: str) -> str:
    lines = text.split("\n")
    at = [number for number, line in enumerate(lines) if re.match(r"\s+(%|tile\.)", line)]
    if len(at) < 2:
        return text
    one, other = random.sample(at, 2)
    match random.randrange(3):
        case 0:
            del lines[one]
        case 1:
            lines[one], lines[other] = lines[other], lines[one]
        case 2:
            lines.insert(one, lines[other])
    return "\n".join(lines)


def emit_and_interpret(name: str) -> int:
    """0 when a module verifies, 1 when not; raises what an emitter or the interpreter raises that
    is no refusal. Exit code 3 is that of a command which did."""
    try:
        module = parse_module(Source(name, Path(name).read_text(encoding="utf-8")))
        verify_module(module)
    except MeshcError:
        return main(["opt", name])
    for target in _TARGETS:
        code = main(["compile", name, "--target", *target, "-o", "o"])
        if code not in (0, 1):
            return code
    if _work(module) <= _MOST_WORK:
        try:
            trace = random_trace(module, 1, steps=2)
            run_from(module, trace)
        except MeshcError:
            return 0
    return 0


def _work(module: Module) -> int:
    """About how many elements the interpreter touches."""
    cores = module.mesh.cores if module.mesh else 1
    scalars = {name: high for name, (_, high) in module.scalars.items()}
    if module.level == "tile":
        memory = sum(prod(b.type.shape) for b in module.buffers)
        rounds = _rounds(module.program.body, scalars)
        return _MOST_WORK + 1 if rounds > _MOST_ROUNDS else cores * (memory + 20 * rounds)
    ops = list(module.walk())
    extents = [module.dims.get(getattr(op, "dim", ""), 1) for op in ops if op.regions]
    largest = max((_elements(module, op) for op in ops), default=1)
    return cores * largest * len(ops) * prod(extents) // 8


def _elements(module: Module, op: object) -> int:
    """Elements of the product or sum that an op computes."""
    dims = {d for v in op.tensors() for d in getattr(v.type, "dims", ())}  # type: ignore[attr-defined]
    return prod(module.dims.get(d, 1) for d in dims)


def _rounds(block: Block, names: dict[str, int]) -> int:
    total = 0
    for op in block.ops:
        count = 1
        inside = names
        if isinstance(op, tile.For):
            count = max(0, int(op.count.evaluate({v: names.get(v, 8) for v in op.count.free_vars})))
            inside = {**names, op.var: max(0, count - 1)}
        total += 1 + count * sum(_rounds(region, inside) for region in op.regions)
    return total
