"""A tile program of one core as the text of a C program.

``./main DIR`` reads each tensor from ``DIR/NAME.f32``, 32-bit floats in row-major order, and writes
those that the model gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod

from meshc.ir.module import Module, Port
from meshc.ir.ops.tile import Compute, For
from meshc.support.diagnostics import fail
from one_core_c.expressions import COORDINATES, condition, number
from one_core_c.kernels import kernel

HEAD = """\
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static long div_floor(long a, long b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
static long mod_floor(long a, long b) { return a - b * div_floor(a, b); }

static FILE *opened(const char *folder, const char *name, const char *how) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.f32", folder, name);
    FILE *file = fopen(path, how);
    if (!file) { fprintf(stderr, "cannot open %s\\n", path); exit(1); }
    return file;
}

static void get(const char *folder, const char *name, float *values, size_t count) {
    FILE *file = opened(folder, name, "rb");
    if (fread(values, sizeof *values, count, file) != count) {
        fprintf(stderr, "%s.f32 has fewer than %zu floats\\n", name, count);
        exit(1);
    }
    fclose(file);
}

static void put(const char *folder, const char *name, const float *values, size_t count) {
    FILE *file = opened(folder, name, "wb");
    if (fwrite(values, sizeof *values, count, file) != count) exit(1);
    if (fclose(file)) exit(1);
}
"""

_USAGE = ['        fprintf(stderr, "give the folder of the tensors\\n");', "        return 2;"]


def program(module: Module, real: str) -> str:
    """The program of ``module``, computing in ``real``. Raises ``one-core-c`` for what has no C
    here: run-time scalars, kept state, tables of constants, and kernels and views of other forms.
    """
    for what, found in (("run-time scalars", module.scalars), ("constants", module.constants)):
        if found:
            fail("one-core-c", f"'{module.name}' has {what}, which no C is written for")
    if module.the_mesh().cores != 1 or not module.the_mesh().coordinates <= COORDINATES:
        fail("one-core-c", f"'{module.name}' is for a mesh {module.the_mesh()}, not for one core")
    if any(buffer.role == "state" for buffer in module.buffers):
        fail("one-core-c", f"'{module.name}' keeps state, which no C is written for")
    names = {b.value: f"b{n}_{_word(b.value.name)}" for n, b in enumerate(module.buffers)}
    lines = [
        f"static {real} {names[b.value]}[{prod(b.type.shape)}];  /* {b.type} */"
        for b in module.buffers
    ]
    tensors = {port.name: prod(port.tensor.shape(module.dims)) for port in module.ports}
    lines += [f"static float t_{_word(name)}[{count}];" for name, count in tensors.items()]
    lines += ["", "static void run(void) {"]
    for port in (one for one in module.ports if one.direction == "in"):
        lines += _port(module, port, names[port.buffer])
    lines += _block(module.program.body.ops, names, 1)
    for port in (one for one in module.ports if one.direction == "out"):
        lines += _port(module, port, names[port.buffer])
    lines += ["}", "", "int main(int count, char **words) {"]
    lines += ["    if (count != 2) {", *_USAGE, "    }"]
    for direction, call in (("in", "get"), ("out", "put")):
        lines += ["    run();"] if direction == "out" else []
        given = {port.name for port in module.ports if port.direction == direction}
        for name in sorted(given):
            lines += [f'    {call}(words[1], "{name}", t_{_word(name)}, {tensors[name]});']
    return "\n".join([HEAD, *lines, "    return 0;", "}"]) + "\n"


def _word(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _port(module: Module, port: Port, buffer: str) -> list[str]:
    """Loops over the lanes of a port, whose elements come from its tensor or go there."""
    held = port.buffer.type
    extents, tensor = port.tensor.shape(module.dims), f"t_{_word(port.name)}"
    lines = [f"    /* {port.direction} {port.name} */"]
    for lane, extent in zip(port.lanes, held.shape, strict=True):
        lines.append(f"    for (long {lane} = 0; {lane} < {extent}; {lane}++)")
    lines[-1] += " {"
    lines += [f"        long {name} = {number(value)}; (void){name};" for name, value in port.lets]
    lane = _row_major([(name, n) for name, n in zip(port.lanes, held.shape, strict=True)])
    index = [f"({number(value)})" for value in port.element]
    element = _row_major(list(zip(index, extents, strict=True)))
    inside = " && ".join(f"{i} >= 0 && {i} < {n}" for i, n in zip(index, extents, strict=True))
    where = "1" if port.where is None else condition(port.where)
    if port.direction == "in":
        value = f"{inside} ? {tensor}[{element}] : {port.pad!r}f"
        lines.append(f"        if ({where}) {buffer}[{lane}] = {value};")
    else:
        lines.append(f"        if (({where}) && {inside}) {tensor}[{element}] = {buffer}[{lane}];")
    return [*lines, "    }"]


def _row_major(places: list[tuple[str, int]]) -> str:
    found = "0"
    for index, extent in places:
        found = index if found == "0" else f"({found}) * {extent} + {index}"
    return found


def _block(ops: list, names: dict, depth: int) -> list[str]:
    return [f"{'    ' * depth}{line}" for op in ops for line in _statement(op, names)]


def _statement(op: object, names: dict) -> Iterator[str]:
    guard = getattr(op, "when", None)
    if guard is not None and guard.is_false:
        return
    if guard is not None and not guard.is_true:
        yield f"if ({condition(guard)})"
    if isinstance(op, Compute):
        yield "{"
        yield from (f"    {line}" for line in kernel(op, names))
        yield "}"
    elif isinstance(op, For) and not op.each:
        yield f"for (long {op.var} = 0; {op.var} < {number(op.count)}; {op.var}++) {{"
        yield from _block(op.regions[0].ops, names, 1)
        yield "}"
    else:
        fail("one-core-c", f"no C is written for {type(op).NAME}", op.span)
