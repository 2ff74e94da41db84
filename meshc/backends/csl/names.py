"""Identifiers of the emitted CSL, from names that a model file may hold."""

from __future__ import annotations

import re

from meshc.support.diagnostics import fail

_WORDS = """
align and anytype bool break cb16 color comptime comptime_float comptime_int comptime_string
comptime_struct const continue control_task_id data_task_id direction dsr_dest dsr_src0 dsr_src1
else enum export extern f16 f32 bf16 fabin_dsd fabout_dsd false fifo fn for i16 i32 i64 i8 if
imported_module inline input_queue layout linkname linksection local_task_id mem1d_dsd mem4d_dsd
null or output_queue packed param pub return struct switch task true type u16 u32 u64 u8 undefined
union unreachable ut_id var void volatile while EAST WEST NORTH SOUTH RAMP
memcpy memcpy_params mod floor sys time position pc step resume start stop
"""
RESERVED = frozenset(_WORDS.split())
_SAFE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\Z")


class Names:
    """Gives each named thing an identifier of its own, close to its name."""

    def __init__(self) -> None:
        self._taken = set(RESERVED)
        self._known: dict[tuple[str, str], str] = {}

    def of(self, kind: str, name: str) -> str:
        """The identifier of the thing of ``kind`` called ``name``; the same at every call."""
        if (kind, name) not in self._known:
            self._known[kind, name] = self.fresh(name)
        return self._known[kind, name]

    def fresh(self, name: str) -> str:
        """A new identifier that resembles ``name``."""
        plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:80] or "value"
        plain = f"n{plain}" if plain[0].isdigit() else plain
        found, count = plain, 1
        while found in self._taken:
            count += 1
            found = f"{plain}_{count}"
        self._taken.add(found)
        return found


def port_file(name: str) -> str:
    """``name``, if a host-visible symbol and a data file can be called so; else
    ``csl-port-name``."""
    if not _SAFE.match(name):
        fail(
            "csl-port-name",
            f"'{name[:80]}' cannot name a symbol of a CSL program",
            help="inputs, weights and outputs need names of letters, digits and '_'",
        )
    return name
