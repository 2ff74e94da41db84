"""The C structures that Python fills or reads; runtime/csl.h and machine.h say what they mean."""

from __future__ import annotations

import ctypes as ct
from typing import Any

from meshc.sim.cgen.errors import Unsupported
from meshc.sim.descriptors import Dsd as AnyDsd
from meshc.sim.descriptors import FabIn, FabOut, Fifo, Mem
from meshc.sim.machine.cycle_model import Costs
from meshc.sim.route_configs import ColorConfig

_I32, _I64 = ct.c_int32, ct.c_int64
TASKS, QUEUES, KINDS, MATHS, PARAMS = 64, 32, 32, 16, 16
MOST_DIMS = 4
_MEM, _FABIN, _FABOUT, _FIFO = 1, 2, 3, 4


class Value(ct.Union):
    """A scalar."""

    _fields_ = (("i", _I64), ("u", ct.c_uint64), ("f", ct.c_double))


class _OfMemory(ct.Structure):
    _fields_ = (("extent", _I32 * MOST_DIMS), ("step", _I32 * MOST_DIMS))


class _OfFabric(ct.Structure):
    _fields_ = (("color", _I32), ("queue", _I32))


class _OfFifo(ct.Structure):
    _fields_ = tuple((n, _I32) for n in ("number", "capacity", "activate_push", "activate_pop"))


class _OfKind(ct.Union):
    _anonymous_ = ("memory", "fabric", "fifo")
    _fields_ = (("memory", _OfMemory), ("fabric", _OfFabric), ("fifo", _OfFifo))


class Dsd(ct.Structure):
    """A descriptor."""

    _anonymous_ = ("of_kind",)
    _fields_ = (
        *[(name, ct.c_int8) for name in (
            "kind", "ndims", "indexed", "scalar", "simd", "priority", "control", "advance",
            "zero")],
        ("esize", ct.c_int16), ("n", _I32), ("addr", _I32), ("stride", _I32), ("of_kind", _OfKind),
    )  # fmt: skip


class Options(ct.Structure):
    """Options of an operation."""

    _fields_ = tuple(
        (name, _I32) for name in (
            "activate", "unblock_kind", "unblock", "thread", "priority", "on_control",
            "on_activate", "on_unblock_kind", "on_unblock")
    )  # fmt: skip


class Constants(ct.Structure):
    """The table of constants of a class."""

    _fields_ = (("n", ct.POINTER(_I64)), ("f", ct.POINTER(ct.c_double)), ("d", ct.POINTER(Dsd)))


class Function(ct.Structure):
    """An entry of the table of functions."""

    _fields_ = (("call", ct.c_void_p), ("enter", ct.c_void_p), ("waits", ct.c_int))


class Pe(ct.Structure):
    """The head of a PE."""

    _fields_ = (
        ("m", ct.c_void_p), ("t", _I64), ("limit", _I64), ("mem", ct.POINTER(ct.c_ubyte)),
        ("size", _I64), ("k", ct.c_void_p), ("top", ct.c_void_p), ("number", _I32),
        ("current", _I32), ("busy_until", _I64), ("drained", _I64), ("cycles_busy", _I64),
        ("unblocked", _I64),
        ("slots", ct.c_void_p), ("slot_count", _I64), ("functions", ct.c_void_p),
        ("function_count", _I32), ("complete", _I32), ("x", _I32), ("y", _I32), ("result", Value),
        ("result_dsd", Dsd),
    )  # fmt: skip


class PeClass(ct.Structure):
    """What PEs of one class share."""

    _fields_ = (
        ("end", _I64), ("symbol_start", ct.POINTER(_I32)), ("symbol_end", ct.POINTER(_I32)),
        ("remarked", ct.POINTER(ct.c_uint8)), ("symbols", _I32), ("data_task", _I32 * TASKS),
        ("local_task", _I32 * TASKS), ("control_task", _I32 * TASKS), ("teardown", _I32 * TASKS),
        ("empty_handler", _I32 * QUEUES), ("in_queue", _I32 * QUEUES), ("out_queue", _I32 * QUEUES),
        ("functions", _I32), ("params", ct.POINTER(ct.c_uint8)), ("wse3", _I32), ("fifos", _I32),
        ("data_task_order", _I32 * TASKS), ("data_task_count", _I32),
    )  # fmt: skip


class CCosts(ct.Structure):
    """The cycle model."""

    names = ("memory", "fabric_out", "fabric_in", "rewritten", "drained", "task", "data_task",
             "reopen", "hop", "ramp", "relay", "configure", "map_call", "period",
             "stay_every")  # fmt: skip
    _fields_ = (
        *[(name, _I64) for name in names], ("lanes", _I64 * KINDS), ("write_every", _I64 * KINDS),
        ("in_place_every", _I64 * KINDS), ("row", _I64 * KINDS),
        ("output_depth", _I64 * QUEUES), ("input_depth", _I64), ("host_depth", _I64),
        ("math", _I64 * MATHS),
    )  # fmt: skip


class CCredit(ct.Structure):
    """The beginning of an account of wavelets that are under way."""

    _fields_ = (("outstanding", _I64), ("room", _I64))


class Filter(ct.Structure):
    """A filter in front of a RAMP."""

    _fields_ = (
        ("kind", _I32), ("low", _I64), ("high", _I64), ("limit1", _I64), ("limit2", _I64),
        ("max_counter", _I64), ("init_counter", _I64), ("count_data", _I32),
        ("count_control", _I32), ("filter_control", _I32),
    )  # fmt: skip


_Directions = ct.c_uint8 * 8


class Route(ct.Structure):
    """The configuration of a color at a PE."""

    _fields_ = (
        ("rx", _Directions), ("tx", _Directions), ("new_rx", _Directions * 3),
        ("new_tx", _Directions * 3), ("present", _I32 * 3), ("has_rx", _I32 * 3),
        ("has_tx", _I32 * 3), ("position", _I32), ("ring", _I32), ("pop", _I32),
        ("teardown", _I32), ("swap_x", _I32), ("swap_y", _I32), ("is_static", _I32),
        ("rule", Filter),
    )  # fmt: skip


CallFunction = ct.CFUNCTYPE(_I64, _I32, _I32, ct.POINTER(Value))
EventFunction = ct.CFUNCTYPE(None, _I64, _I64)
BoundsFunction = ct.CFUNCTYPE(None, _I32, _I64, _I64)
MicrothreadFunction = ct.CFUNCTYPE(None, _I32, _I32, _I32, _I32)
EdgeFunction = ct.CFUNCTYPE(None, _I32, _I32, _I32)
WrapFunction = ct.CFUNCTYPE(None, _I32, _I64, _I32)
TraceFunction = ct.CFUNCTYPE(None, _I32, _I32, _I32, _I32, _I64, _I64, _I64)


class Callbacks(ct.Structure):
    """The functions that C calls in Python."""

    _fields_ = (("call", CallFunction), ("event", EventFunction), ("bounds", BoundsFunction),
                ("microthread", MicrothreadFunction), ("edge", EdgeFunction),
                ("wrap", WrapFunction),
                ("trace", TraceFunction))  # fmt: skip


SHARED = (Dsd, Options, Pe, PeClass, CCosts, Callbacks, Constants, Function, Route)
"""In the order of ``csl_size`` in runtime/api.c."""


def dsd_of(value: AnyDsd | None) -> Dsd:
    """A descriptor as C sees it. Raises Unsupported when it has too many dimensions."""
    match value:
        case Mem():
            if len(value.dims) > MOST_DIMS:
                raise Unsupported("a descriptor of more than four dimensions")
            made = Dsd(_MEM, len(value.dims), value.indexed, value.scalar, n=value.n,
                       addr=value.addr, stride=value.stride, esize=value.esize)  # fmt: skip
            for i, (extent, step) in enumerate(value.dims):
                made.extent[i], made.step[i] = extent, step
            return made
        case FabIn():
            return Dsd(_FABIN, n=value.n, color=value.color, queue=value.queue, simd=value.simd,
                       priority=value.priority)  # fmt: skip
        case FabOut():
            return Dsd(_FABOUT, n=value.n, color=value.color, queue=value.queue, simd=value.simd,
                       priority=value.priority, control=value.control, indexed=value.indexed,
                       advance=value.advance, zero=value.zero)  # fmt: skip
        case Fifo():
            return Dsd(_FIFO, addr=value.addr, esize=value.esize, number=value.number,
                       capacity=value.capacity, activate_push=value.activate_push,
                       activate_pop=value.activate_pop)  # fmt: skip
        case _:
            return Dsd()


def costs_struct(costs: Costs, math: list[int]) -> CCosts:
    """The cycle model as C sees it; ``math`` are the cycles of mathematical functions."""
    made = CCosts(*[getattr(costs, name) for name in CCosts.names])
    made.lanes[: len(costs.lanes)] = list(costs.lanes.values())
    for name, usual in (("write_every", 0), ("in_place_every", 0), ("row", 1)):
        of_kind = getattr(costs, name)
        getattr(made, name)[: len(costs.lanes)] = [of_kind.get(k, usual) for k in costs.lanes]
    made.output_depth[: len(costs.output_depth)] = costs.output_depth
    made.input_depth, made.host_depth = costs.input_depth, costs.host_depth
    made.math[: len(math)] = math
    return made


_FILTERS = {"range": 1, "counter": 2, "sparse_counter": 3}


def _listed(directions: Any) -> Any:
    given = directions if isinstance(directions, tuple) else (directions,)
    return _Directions(len(given), *given)


def route_of(config: ColorConfig) -> Route:
    """A route configuration as C sees it."""
    made = Route(rx=_listed(config.rx), tx=_listed(config.tx), position=config.position,
                 ring=config.ring, pop=config.pop, teardown=config.teardown, swap_x=config.swap_x,
                 swap_y=config.swap_y, is_static=config.is_static)  # fmt: skip
    for i, entry in enumerate(config.switches):
        if entry is None:
            continue
        made.present[i] = 1
        made.has_rx[i], made.has_tx[i] = entry[0] is not None, entry[1] is not None
        if entry[0] is not None:
            made.new_rx[i] = _listed(entry[0])
        if entry[1] is not None:
            made.new_tx[i] = _listed(entry[1])
    rule = config.filter
    if rule is not None:
        made.rule = Filter(_FILTERS[rule.kind], rule.low, rule.high, rule.limit1, rule.limit2,
                           rule.max_counter, rule.init_counter, rule.count_data,
                           rule.count_control, rule.filter_control)  # fmt: skip
    return made
