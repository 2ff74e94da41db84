"""The functions of the C machine with their types (runtime/api.c)."""

from __future__ import annotations

import ctypes as ct

from meshc.sim.cgen import structs
from meshc.sim.cgen.build import runtime_library
from meshc.sim.sema.csl_types import BF16, F16, F32, I16, U16, U32, Type
from meshc.sim.vector_ops import OPS
from meshc.support.native import BuildError

_P, _I, _L = ct.c_void_p, ct.c_int, ct.c_int64
_WORDS = ct.POINTER(ct.c_uint32)
_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "csl_machine_new": (_P, [_I, _I, _I, _P, _P, _I]),
    "csl_machine_end": (None, [_P]),
    "csl_size": (_L, [_I]),
    "csl_define_operation": (_I, [_I, ct.c_char_p, _I, _I, _P]),
    "csl_pe_new": (_P, [_P, _I, _I, _I, _P, _P, _P, _P, _L, _P, _L]),
    "csl_bind_data_tasks": (_I, [_P]),
    "csl_fifo_capacity": (None, [_P, _I, _L]),
    "csl_initial_load": (_I, [_P, _I, _L, _P, _I, _I, _P]),
    "csl_configure": (_I, [_P, _I, _P]),
    "csl_configure_all": (_I, [_P, _I, _P, _I, _I, _P]),
    "csl_sink": (_P, [_P, _I]),
    "csl_open_port": (_P, [_P, _I, _I, _I]),
    "csl_connect": (None, [_P, _I, _I, _P, _I, _I, _L]),
    "csl_initial_setting": (_I, [_P, _L, _L]),
    "csl_initial_gate": (_I, [_P, _I, _I, _L]),
    "csl_initial_activate": (_I, [_P, _L]),
    "csl_machine_ready": (None, [_P]),
    "csl_at_python": (None, [_P, _L, _L]),
    "csl_activate_later": (None, [_P, _L, _L]),
    "csl_host_unblock": (None, [_P]),
    "csl_launch": (None, [_P, _I, _P]),
    "csl_inject_stream": (_I, [_P, _I, _WORDS, _L]),
    "csl_enter": (None, [_P, _I, _WORDS, _L]),
    "csl_host_credit": (_P, [_P, _I]),
    "csl_stream_total": (_L, [_P]),
    "csl_stream_take": (None, [_P, _L, _WORDS]),
    "csl_goal": (None, [_P, _I, _L, _P, _L]),
    "csl_run": (_I, [_P, _L]),
    "csl_number": (_L, [_P, _I]),
    "csl_set_number": (None, [_P, _I, _L]),
    "csl_message": (ct.c_char_p, [_P]),
    "csl_inspect_pe": (_L, [_P, _P, _L]),
    "csl_inspect_routers": (_L, [_P, _P, _L]),
}  # fmt: skip
_ELEMENTS: dict[Type, int] = {U16: 0, U32: 1, I16: 2, F16: 3, F32: 4, BF16: 5}
_ready: list[ct.CDLL] = []
KNOWN_OPERATIONS: set[str] = set()


def library(lanes: list[str]) -> ct.CDLL:
    """The compiled machine. ``lanes`` are the speed classes of operations in order.

    Raises BuildError, also when the structures of Python and C differ.
    """
    if not _ready:
        found = runtime_library()
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
        for which, structure in enumerate(structs.SHARED):
            if found.csl_size(which) != ct.sizeof(structure):
                raise BuildError(f"the layout of {structure.__name__} differs in C")
        for number, (name, spec) in enumerate(OPS.items()):
            types = (ct.c_int32 * len(spec.types))(*[_ELEMENTS[t] for t in spec.types])
            known = found.csl_define_operation(
                number, spec.builtin.encode(), lanes.index(spec.kind), len(spec.types), types
            )
            if known:
                KNOWN_OPERATIONS.add(name)
        _ready.append(found)
    return _ready[0]
