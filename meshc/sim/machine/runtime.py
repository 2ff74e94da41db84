"""What generated code calls: vector operations, effects on the machine, slow memory paths."""

from __future__ import annotations

import struct
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import numpy as np

from meshc.sim import config_space as space
from meshc.sim import ir
from meshc.sim.control_flow import inside, statements
from meshc.sim.descriptors import FabIn, FabOut, Fifo, Mem
from meshc.sim.exact_numbers import (
    float_bits,
    float_div,
    float_to_int,
    int_div,
    int_rem,
    round_bf16,
    round_f16,
)
from meshc.sim.machine import config_registers, fft, joint, mapping, mathematics
from meshc.sim.machine.compute import BY_NAME, element_of, number_of
from meshc.sim.machine.pe import Dsr, Pe
from meshc.sim.machine.vector import vector
from meshc.sim.machine.vector_operation import Operation
from meshc.sim.program import PeProgram
from meshc.sim.pygen.python_modules import GeneratedModule
from meshc.sim.sema.builtins import dsds
from meshc.sim.sema.csl_types import BF16, U16, Int

_WORDS = range(1 << 16)
HALF = struct.unpack(f"<{len(_WORDS)}e", np.array(_WORDS, "<u2").tobytes())
BRAIN = struct.unpack(f"<{len(_WORDS)}f", (np.array(_WORDS, "<u4") << 16).tobytes())
_VIEW_CODES: Any = "BbHhIiQqf"
_SCRATCH = memoryview(bytearray(4)).cast("f")
_WORD = memoryview(_SCRATCH.obj).cast("I")


def _r32(value: float) -> float:
    _SCRATCH[0] = value
    return _SCRATCH[0]


def _w32(value: float) -> int:
    _SCRATCH[0] = value
    return _WORD[0]


def _f32_of(bits: int) -> float:
    _WORD[0] = bits
    return _SCRATCH[0]


def _h16(value: float) -> int:
    try:
        return int(struct.unpack("<H", struct.pack("<e", value))[0])
    except OverflowError:
        return 0x7C00 if value > 0 else 0xFC00


def _f2i(value: float, bits: int, signed: bool) -> int:
    return float_to_int(Int(bits, signed), value)


def bind_functions(pe: Pe, module: GeneratedModule) -> None:
    """Instantiate the generated functions over the memory of ``pe``."""
    whole = memoryview(pe.mem)
    views = [whole.cast(code) for code in _VIEW_CODES]
    pe.functions = module.make(
        pe, module.constants, RUNTIME, pe.slots, *views, HALF, BRAIN, _r32, round_f16, round_bf16,
        _h16, lambda v: float_bits(BF16, v), _w32, _f32_of, _f2i, int_div, int_rem, float_div,
    )  # fmt: skip
    for stmt in pe.program.dsr_loads:
        assert isinstance(stmt.dsd, ir.Const)
        options = stmt.options
        load_dsr(
            pe, stmt.bank, stmt.number.value, stmt.dsd.value, stmt.save_address,  # type: ignore[attr-defined]
            options.is_async, getattr(options.activate, "value", None),
            _known_gate(options.unblock), getattr(options.ut_id, "value", None),
            _known_end(options),
        )  # fmt: skip
        pe.t = 0
    for program_slot in pe.program.slots:
        _register_fifo(pe, program_slot)
    for constant in module.constants:
        _register_fifo(pe, constant)


def _known_gate(target: tuple[str, ir.Expr] | None) -> tuple[str, int] | None:
    return None if target is None else (target[0], target[1].value)  # type: ignore[attr-defined]


def _known_end(options: ir.OpOptions) -> Any:
    """What a control wavelet does to operations of a register."""
    if not options.on_control:
        return None
    activate = getattr(options.on_control_activate, "value", None)
    return options.on_control, activate, _known_gate(options.on_control_unblock)


def _register_fifo(pe: Pe, value: Any) -> None:
    if isinstance(value, Fifo):
        pe.fifos[value.number].capacity = value.capacity


def route_colors(program: PeProgram) -> set[int]:
    """Colors whose routes the code of a PE program may change at run time."""
    names = ("reset_routes", "switch_position", "switch_invalid", "switch_set", "switch_both",
             "teardown_exit", "teardown_toggle")  # fmt: skip
    found: set[int] = set()
    for function in program.functions:
        for stmt in statements(function.body):
            if isinstance(stmt, ir.Effect) and stmt.name in names:
                first = stmt.args[0]
                known = isinstance(first, ir.Const)
                found |= {first.value} if known else set(range(24))  # type: ignore[attr-defined]
            elif isinstance(stmt, ir.Effect) and stmt.name == "set_config":
                found |= _written_colors(stmt.args[0])
            elif isinstance(stmt, ir.Store):
                found |= _stored_colors(stmt.addr)
    for word, _ in program.settings:
        found |= _written_colors(ir.Const(U16, word))
    return found


def _written_colors(word: ir.Expr) -> set[int]:
    """Colors that a write to a register at this word address may change."""
    if not isinstance(word, ir.Const):
        return set(range(24))
    known = space.word_of(word.value)
    colors = (space.color_of(known), space.switch_color_of(known))
    return {color for color in colors if color is not None}


def _stored_colors(addr: ir.Expr) -> set[int]:
    """Colors that a store through a pointer made from a number may change."""
    if isinstance(addr, ir.Const):
        return _written_colors(addr) if addr.value >= space.FIRST_BYTE else set()
    words = (*space.COLOR_BASES, *space.SWITCH_BASES)
    bases = {*words, *(2 * word for word in words)}
    parts = [part for part in inside(addr) if isinstance(part, ir.Const)]
    return set(range(24)) if any(part.value in bases for part in parts) else set()


# --- vector operations ---


def launch_sync(
    pe: Pe, name: str, operands: tuple[Any, ...], index: int | None, place: str,
    activate: int | None, unblock: Any, ut: int | None, on_control: Any = None, priority: int = 0,
) -> Operation:  # fmt: skip
    """Start an operation that its task waits for."""
    operation = _operation(pe, name, operands, index, place, activate, unblock, on_control)
    if any(r.is_async for r in operation.records):
        _start_async(pe, operation, ut, priority)
        fake = Operation.__new__(Operation)
        fake.done, fake.complete = True, True
        return fake
    if operation.needs_input:
        operation.resume = True
        operation.t = pe.t + pe.costs.fabric_in
        pe.at(max(operation.t, pe.machine.now), _begin, operation)
        return operation
    setup = pe.costs.fabric_out if isinstance(operation.dst, FabOut) else pe.costs.memory
    operation.t = pe.t + setup
    if operation.must_follow():
        operation.resume = True
        pe.at(max(operation.t, pe.machine.now), operation.run)
        return operation
    operation.run(operation.t)
    _signal(pe, operation)
    return operation


def _begin(time: int, operation: Operation) -> None:
    operation.begin()


def _signal(pe: Pe, operation: Operation) -> None:
    """A synchronous operation may activate and unblock as well."""
    if operation.activate is not None:
        pe.activated.setdefault(operation.activate, pe.t)
    if operation.unblock is not None:
        pe.open(*operation.unblock, pe.t)


def launch_async(
    pe: Pe, name: str, operands: tuple[Any, ...], index: int | None, place: str,
    activate: int | None, unblock: Any, ut: int | None, on_control: Any = None, priority: int = 0,
) -> None:  # fmt: skip
    """Start an operation on a microthread."""
    operation = _operation(pe, name, operands, index, place, activate, unblock, on_control)
    _start_async(pe, operation, ut, priority)


def _operation(
    pe: Pe, name: str, operands: tuple[Any, ...], index: int | None, place: str,
    activate: int | None, unblock: Any, on_control: Any,
) -> Operation:  # fmt: skip
    """An operation; what follows the end of one on a register that was loaded as asynchronous
    was said then (documented)."""
    operation = Operation(pe, name, operands, index, place)
    operation.activate, operation.unblock = activate, unblock
    operation.on_control = on_control
    if any(record.is_async for record in operation.records):
        operation.activate = operation.unblock = None
    for record in operation.records:
        if operation.activate is None:
            operation.activate = record.activate
        operation.unblock = operation.unblock or record.unblock
        operation.on_control = operation.on_control or record.on_control
    return operation


def _start_async(pe: Pe, operation: Operation, ut: int | None, priority: int) -> None:
    operation.is_async = True
    operation.priority = max(operation.priority, priority)
    operation.occupy(ut)
    pe.t += 1
    operation.t = pe.t + pe.costs.fabric_in
    if operation.needs_input:
        pe.at(max(operation.t, pe.machine.now), _begin, operation)
        return
    operation.send_later()


def load_dsr(
    pe: Pe, bank: str, number: int, dsd: Any, save: bool, is_async: bool, activate: int | None,
    unblock: Any, ut: int | None, on_control: Any = None, priority: int = 0,
) -> None:  # fmt: skip
    """Load a data structure register."""
    record = pe.dsrs.setdefault((bank, number), Dsr())
    record.dsd, record.save, record.is_async, record.ut = dsd, save, is_async, ut
    record.activate, record.unblock, record.on_control = activate, unblock, on_control
    record.ready = pe.t + pe.costs.rewritten


def _dsr(bank: str) -> Any:
    def get(pe: Pe, kind: str, number: int) -> Dsr:
        return pe.dsr(bank, number)

    return get


def set_dsr_base(pe: Pe, bank: int, number: int, addr: int) -> None:
    """Change the base address of a loaded register."""
    record = pe.dsr(("dest", "src0", "src1")[bank], number)
    record.dsd = record.dsd._replace(addr=addr)
    record.ready = max(pe.t, pe.drained) + pe.costs.rewritten


# --- descriptors at run time ---


def _mem1d(pe: Pe, kind: str, addr: int, n: int, stride: int, esize: int, indexed: bool) -> Mem:
    return Mem(addr & 0xFFFF, n & 0xFFFF, stride * esize, esize, indexed)


def _scalar_mem(pe: Pe, kind: str, addr: int, esize: int) -> Mem:
    return Mem(addr & 0xFFFF, 0, 0, esize, False, (), True)


def _inc_offset(pe: Pe, kind: str, dsd: Mem, count: int, size: int) -> Mem:
    return dsd._replace(addr=(dsd.addr + count * size) & 0xFFFF)


# --- memory, slow paths ---


def load(pe: Pe, addr: int, kind: str) -> Any:
    """A read through a pointer."""
    addr &= 0xFFFF
    if addr >= space.FIRST_BYTE:
        return config_registers.read(pe, addr)
    dtype = BY_NAME[kind]
    if addr + dtype.itemsize > len(pe.mem):
        pe.out_of_bounds(addr, addr + dtype.itemsize)
    return number_of(kind, np.ndarray((), dtype, pe.mem, addr).item())


def store(pe: Pe, addr: int, kind: str, value: Any) -> None:
    """A write through a pointer."""
    addr &= 0xFFFF
    if addr >= space.FIRST_BYTE:
        config_registers.write(pe, addr, value)
        return
    dtype = BY_NAME[kind]
    if addr + dtype.itemsize > len(pe.mem):
        pe.out_of_bounds(addr, addr + dtype.itemsize)
    np.ndarray((), dtype, pe.mem, addr)[...] = element_of(kind, value)


def wrap_index(pe: Pe, index: int, size: int, place: str) -> int:
    """The index of the element that an address of more than 16 bits means."""
    wrapped = index * size & 0xFFFF
    if wrapped + size > len(pe.mem):
        raise IndexError
    pe.machine.remark_wrap(pe, index * size, place)
    return wrapped // size


def copy(pe: Pe, to: int, source: int, size: int) -> None:
    """Copy bytes."""
    for start in (source, to):
        if start + size > len(pe.mem):
            pe.out_of_bounds(start, start + size)
    pe.mem[to : to + size] = pe.mem[source : source + size]


# --- effects ---


def _gate(kind: str, action: str) -> Any:
    def block(pe: Pe, number: int) -> None:
        pe.close(kind, number)

    def unblock(pe: Pe, number: int) -> None:
        if kind in ("local", "control"):
            pe.blocked.discard(number)
        else:
            pe.open(kind, number, pe.t)

    def activate(pe: Pe, number: int) -> None:
        pe.activated.setdefault(number, pe.t)

    return {"block": block, "unblock": unblock, "activate": activate}[action]


def unblock_cmd_stream(pe: Pe) -> None:
    """The launched function is through on this PE."""
    pe.unblocked += 1


def check(pe: Pe, holds: bool, place: str) -> None:
    """A run-time assertion."""
    if not holds:
        pe.machine.fault(pe, place, "an assertion does not hold")


def descriptor(pe: Pe, value: Any, place: str) -> Any:
    """A descriptor that must have been set."""
    if not isinstance(value, tuple):
        pe.machine.fault(pe, place, "a descriptor is used that was never set")
    return value


def overrun(pe: Pe) -> None:
    """A loop that does not end."""
    pe.machine.fault(pe, "", "a task runs for too many cycles; does its loop end?")


def call(pe: Pe, target: int, args: tuple[Any, ...]) -> Generator[Operation, None, Any]:
    """Call through a function pointer where the target may wait."""
    result = _target(pe, target)(*args)
    while True:
        if hasattr(result, "send"):
            result = yield from result
        if type(result) is not tuple:
            return result
        result = result[0](*result[1])


def call_plain(pe: Pe, target: int, args: tuple[Any, ...]) -> Any:
    """Call through a function pointer."""
    result = _target(pe, target)(*args)
    while type(result) is tuple:
        result = result[0](*result[1])
    return result


def _target(pe: Pe, target: int) -> Any:
    functions = pe.program.functions
    if not 0 < target <= len(functions):
        pe.machine.fault(pe, "", "a call through a function pointer that was never set")
    return pe.functions[functions[target - 1].name]


def random16(pe: Pe) -> int:
    """The next 16 bits of the PE's generator (a 23-bit LFSR, 128 steps per call)."""
    state = pe.prng & 0x7FFFFF
    for _ in range(128):
        state = (state << 1 | (state >> 22 ^ state >> 17) & 1) & 0x7FFFFF
    pe.prng = state
    return state & 0xFFFF


def prng_seed(pe: Pe, seed: int) -> None:
    """Start the generator anew; PEs differ by their coordinates."""
    mixed = (seed ^ (pe.x * 2654435761 + pe.y * 40503)) & 0x7FFFFF
    pe.prng = mixed or 0x12345


def set_prng(pe: Pe, number: int) -> None:
    """Choose a generator; there is one."""


def fifo_read_length(pe: Pe, number: int, length: int) -> None:
    """``@set_fifo_read_length``"""
    pe.fifos[number].read_length = length


def fifo_write_length(pe: Pe, number: int, length: int) -> None:
    """``@set_fifo_write_length``"""
    pe.fifos[number].write_length = length


def queue_flush(pe: Pe, number: int) -> None:
    """Call the handler of a queue as soon as it is empty; output queues count from 8."""
    pe.flush(number)


def flush_exit(pe: Pe, number: int) -> None:
    """Forget that a queue was flushed."""
    word = space.FLUSHED[number // 8]
    pe.registers[word] = pe.registers.get(word, 0) & ~(1 << number % 8)


def bind_queue(pe: Pe, is_output: int, queue: int, color: int) -> None:
    """Give a queue another color."""
    pe.bind_queue(bool(is_output), queue, color)


def queue_empty(pe: Pe, queue: int) -> bool:
    """Whether an input queue holds nothing."""
    return not pe.channel(pe.input_color(queue)).bursts


def _x_coord(pe: Pe, kind: str) -> int:
    return pe.x


def _y_coord(pe: Pe, kind: str) -> int:
    return pe.y


RUNTIME = SimpleNamespace(
    vector=vector, launch_sync=launch_sync, launch_async=launch_async, load_dsr=load_dsr,
    dsr_dest=_dsr("dest"), dsr_src0=_dsr("src0"), dsr_src1=_dsr("src1"), set_dsr_base=set_dsr_base,
    map_plain=mapping.map_plain, map_waiting=mapping.map_waiting,
    mem1d=_mem1d, scalar_mem=_scalar_mem, inc_offset=_inc_offset,
    set_base=lambda pe, kind, *a: dsds.set_base(*a),
    dsd_length=lambda pe, kind, *a: dsds.dsd_length(*a),
    dsd_stride=lambda pe, kind, *a: dsds.dsd_stride(*a),
    fabin=lambda pe, kind, *a: FabIn(*a), fabout=lambda pe, kind, *a: FabOut(*a),
    load=load, store=store, wrap_index=wrap_index, copy=copy, check=check, overrun=overrun,
    descriptor=descriptor,
    call=call, call_plain=call_plain, unblock_cmd_stream=unblock_cmd_stream, random16=random16,
    prng_seed=prng_seed, set_prng=set_prng, fifo_read_length=fifo_read_length,
    fifo_write_length=fifo_write_length, queue_flush=queue_flush, flush_exit=flush_exit,
    bind_queue=bind_queue,
    queue_empty=queue_empty, x_coord=_x_coord, y_coord=_y_coord,
    **{f"{action}_{kind}": _gate(kind, action) for action in ("activate", "block", "unblock")
       for kind in ("local", "color", "queue", "control")},
    fft3d=fft.fft3d,
    collective=joint.collective, tally_signal=joint.tally_signal,
    **mathematics.FUNCTIONS, **config_registers.EFFECTS,
)  # fmt: skip
