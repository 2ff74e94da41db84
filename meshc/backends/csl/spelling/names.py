"""Identifiers of the emitted CSL, from names that a model file may hold."""

from __future__ import annotations

import re
from collections.abc import Iterable
from keyword import iskeyword
from typing import NoReturn

from meshc.support.diagnostics import fail

_WORDS = """
align and anytype bool break cb16 color comptime comptime_float comptime_int comptime_string
comptime_struct const continue control_task_id data_task_id direction dsr_dest dsr_src0 dsr_src1
else enum export extern f16 f32 bf16 fabin_dsd fabout_dsd false fifo fn for i16 i32 i64 i8 if
imported_module inline input_queue layout linkname linksection local_task_id mem1d_dsd mem4d_dsd
null or output_queue packed param pub return struct switch task true type u16 u32 u64 u8 undefined
union unreachable ut_id var void volatile while EAST WEST NORTH SOUTH RAMP
"""
# What emitted files declare themselves, be it inside functions, which nothing global may shadow.
_OWN = """
memcpy memcpy_params sys time position pc step run resume cycles cycles_of_run cycles_ptr
mod floor row column factor places i j k l value h0 h1 h2 h3 a_at b_at c_at
math most_of_row kept added slot first empty behind more
in_a_turn place low high frequency head tail angle turns erf size near found lane from
left top first_column first_row
query limit seen until beyond whole half second reciprocal inverse_root
turned largest many most group total index depth reach passed hidden missing
part words scales least numbers words_at scales_at least_at numbers_at
"""
IDLE = "idle"
"""The program of PEs of the rectangle that no region has."""
LONGEST = 40
"""Characters of a name; what makes it unlike others may come behind them."""
_FIRST = ("given_", "joined", "next_", "ended_")
_LAST = ("_ptr", "_id", "_now", "_wanted")
RESERVED = frozenset(_WORDS.split()) | frozenset(_OWN.split())
_SAFE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}\Z")
_OPTIONS = ("name", "cmaddr", "data", "state", "help")


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
        plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:LONGEST] or "value"
        if plain[0].isdigit() or plain.startswith(_FIRST):
            plain = f"n_{plain}"
        if plain.endswith(_LAST):
            plain += "_"
        found, count = plain, 1
        while found in self._taken:
            count += 1
            found = f"{plain}_{count}"
        self._taken.add(found)
        return found


def plain(text: str) -> str:
    """``text`` with what could end a comment left out."""
    return "".join(c for c in text if c.isascii() and c.isprintable())


def port_name(name: str) -> str:
    """``name``, if a data file of the host can be called so; else ``csl-port-name``."""
    if not _SAFE.match(name):
        _refuse(name, "inputs, weights and outputs need names of letters, digits, '_' and '.'")
    return name


def scalar_name(name: str) -> str:
    """``name``, if an option of the host program can be called so; else ``csl-port-name``."""
    if not name.isidentifier() or not _SAFE.match(name) or iskeyword(name) or name in _OPTIONS:
        _refuse(name, f"it is none of {', '.join(_OPTIONS)} and no word of Python")
    return name


def of_rounds(scalar: str) -> str:
    """The array with ``scalar`` of each round of a loop, a symbol for the host."""
    return f"{scalar_name(scalar)}_of_rounds"


def check_axes(coordinates: Iterable[str]) -> None:
    """Fail with ``csl-axis-name`` where a coordinate has a name that emitted files use for
    something else."""
    for name in sorted(RESERVED.intersection(coordinates)):
        fail(
            "csl-axis-name",
            f"'{name}' cannot be a coordinate of a core in CSL, where it means something else",
            help="give the axis another name in the device's fact 'axes'",
        )


def phase_file(phase: str) -> str:
    """Name of the file of a phase, without its ending."""
    found = re.sub(r"[^A-Za-z0-9]+", "_", phase).strip("_")[:80] or "phase"
    return f"{found}_phase" if found in ("layout", IDLE) else found


def _refuse(name: str, help: str) -> NoReturn:
    fail("csl-port-name", f"'{plain(name)[:80]}' cannot be a name of the host program", help=help)
