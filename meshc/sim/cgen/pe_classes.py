"""One PE class ready for the C machine: tables, constants, and the functions it shares."""

from __future__ import annotations

import ctypes as ct
from dataclasses import dataclass
from typing import Any

from meshc.sim import ir
from meshc.sim.cgen import structs
from meshc.sim.cgen.emit import Group, Member
from meshc.sim.descriptors import Dsd
from meshc.sim.program import PeProgram
from meshc.sim.pygen.expressions import machine_type

_TYPES = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "u64": 6, "i64": 7, "f16": 8,
          "f32": 9, "bf16": 10}  # fmt: skip
_GATES = {"local": 0, "color": 1, "queue": 2, "control": 3}
_ON_CONTROL = {"": 0, "terminate": 1, "activate": 2, "unblock": 3}


@dataclass
class CodeClass:
    """``names`` are the functions from number 1; the C structures must outlive the machine."""

    program: PeProgram
    group: Group
    code: ct.CDLL
    functions: int
    shared: structs.PeClass
    constants: structs.Constants
    slots: Any
    dsds: list[Dsd | None]
    names: list[str]
    kept: list[Any]


def prepare(program: PeProgram, group: Group, entry: Member, code: ct.CDLL) -> CodeClass:
    """Fill the structures of a class."""
    integers = (ct.c_int64 * max(1, len(entry.table.integers)))(*entry.table.integers)
    reals = (ct.c_double * max(1, len(entry.table.reals)))(*entry.table.reals)
    dsds = _dsd_array(entry.table.dsds)
    constants = structs.Constants(integers, reals, dsds)
    names = ["", *(f.name for f in program.functions)]
    kept: list[Any] = [integers, reals, dsds]
    shared = _shared(program, names, kept)
    functions = ct.addressof(ct.c_char.in_dll(code, "csl_functions"))
    return CodeClass(program, group, code, functions, shared, constants,
                     _dsd_array(program.slots), entry.table.dsds, names, kept)  # fmt: skip


def _dsd_array(values: list[Any]) -> Any:
    return (structs.Dsd * max(1, len(values)))(*[structs.dsd_of(v) for v in values])


def _shared(program: PeProgram, names: list[str], kept: list[Any]) -> structs.PeClass:
    ordered = [program.symbols[i] for i in program.order]
    count = max(1, len(ordered))
    starts = (ct.c_int32 * count)(*[s.addr for s in ordered])
    ends = (ct.c_int32 * count)(*[s.addr + s.size for s in ordered])
    remarked = (ct.c_uint8 * count)()
    params = (ct.c_uint8 * (structs.PARAMS * len(names)))()
    for number, function in enumerate(program.functions, 1):
        kinds = [_TYPES.get(str(machine_type(p.type)), 2) for p in function.params]
        kinds = kinds[: structs.PARAMS - 1]
        start = structs.PARAMS * number
        params[start : start + 1 + len(kinds)] = [len(kinds), *kinds]
    kept += [starts, ends, remarked, params]
    made = structs.PeClass(program.end, starts, ends, remarked, len(ordered))
    numbers = {name: i for i, name in enumerate(names)}
    for table, tasks in (
        (made.data_task, program.data_tasks), (made.local_task, program.local_tasks),
        (made.control_task, program.control_tasks), (made.teardown, program.teardown),
        (made.empty_handler, program.empty_handlers),
    ):  # fmt: skip
        for task, name in tasks.items():
            table[task] = numbers[name]
    for queues, given in ((made.in_queue, program.in_queues), (made.out_queue, program.out_queues)):
        queues[:] = [given.get(queue, -1) for queue in range(structs.QUEUES)]
    made.functions, made.params = len(program.functions), params
    made.wse3, made.fifos = program.arch == "wse3", program.fifos
    made.data_task_count = len(program.data_tasks)
    made.data_task_order[: len(program.data_tasks)] = list(program.data_tasks)
    return made


def options_of(options: ir.OpOptions) -> structs.Options:
    """Options of a register load at start, whose parts are known."""

    def number(code: ir.Expr | None) -> int:
        return -1 if code is None else int(code.value)  # type: ignore[attr-defined]

    def gate(target: tuple[str, ir.Expr] | None) -> tuple[int, int]:
        return (-1, 0) if target is None else (_GATES[target[0]], number(target[1]))

    return structs.Options(
        number(options.activate), *gate(options.unblock), number(options.ut_id),
        options.priority, _ON_CONTROL[options.on_control], number(options.on_control_activate),
        *gate(options.on_control_unblock),
    )  # fmt: skip
