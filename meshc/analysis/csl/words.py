"""Memory of a core that a CSL program takes besides elements: tables, and words that it keeps.

Tables are arrays of words of 32 bits: sines and cosines for RoPE, and the control wavelets that end
turns. Words have 16 bits: what a program keeps from task to task, pointers for the host, time
stamps, coordinates that run-time code needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from meshc.analysis.csl import resources
from meshc.analysis.csl.element_costs import rows_of
from meshc.analysis.csl.joined_transfers import Group, Transfers
from meshc.analysis.csl.strided_windows import Window, window
from meshc.analysis.csl.ways import KEPT, WHOLE, block_of, parts_of, type_of_angles
from meshc.analysis.traffic.turns import turns_of
from meshc.ir.affine import Atom, Cond, Expr, Var
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute, For, Send, Sweep, scalars_of_rounds
from meshc.ir.views import Range, View

TABLE_BYTES = 4
WORD_BYTES = 2
"""Bytes of a pointer, an ``i16`` or a ``bool``, each of which the compiler keeps in a word
(vendor's page on memory: 16-bit words)."""
STAMPS = 6
"""Words of two time stamps of 48 bits (vendor's library ``<time>``): start and end of a launch."""
_UP, _DOWN = 2, 1
"""Control wavelets that end a turn on a channel that goes up, or down (``docs/csl.md``)."""
_OF_THE_ROW = ("exp_sub", "merge_softmax")
"""Kernels with a function of one element that reads the largest element of its row."""


def tables_of(module: Module) -> dict[str, int]:
    """Words of 32 bits of the tables of a program, by what they are for: ``angles``, ``turns``."""
    angles = dict(_angles(module))
    turns: dict[tuple[str, int], int] = {}
    for channel in _sent_in_turn(module):
        found = turns_of(module.channel(channel), module.the_mesh())
        if found is not None and found.way > 0:
            turns["", 0] = _UP  # the same for all lines
        elif found is not None:
            turns[found.axis, found.size] = _DOWN
    return _positive({"angles": sum(angles.values()), "turns": sum(turns.values())})


def words_of(module: Module) -> dict[str, int]:
    """Words of 16 bits that a program keeps, by what they are for, in the order of this function.
    Raises ``csl-overlap`` and ``csl-wait`` for transfers that have no CSL."""
    transfers = Transfers(module)
    ported = {port.buffer for port in module.ports}
    host = [b for b in module.buffers if b.value in ported or b.role == "state"]
    loops = {
        op.var
        for op in module.walk()
        if isinstance(op, For) and transfers.suspends_in(op.regions[0])
    }
    row = [_row_words(op) for op in module.walk() if isinstance(op, Compute)]
    flags = {g.number for g in _waited(transfers) if g.shared and not g.at_once}
    return _positive({
        "pointers": len(host) + len(scalars_of_rounds(module)) + 1,
        "stamps": STAMPS,
        "pc": int(transfers.suspends),
        "scalars": len(module.scalars),
        "rounds": sum(scalars_of_rounds(module).values()),
        "kept": len(kept_atoms(module)),
        "loops": len(loops),
        "sent": sum(module.channel(name).turns > 1 for name in _sent_in_turn(module)),
        "flags": 2 * len(flags),
        "coordinates": len(run_time_coordinates(module, transfers)),
        "rows": sum({n for n in row if n}),
    })  # fmt: skip


def run_time_coordinates(module: Module, transfers: Transfers) -> frozenset[str]:
    """The coordinates that code reads when it runs: in starts of views, in numbers that kernels
    take, in counts of loops, and in guards that name a scalar or a loop variable as well."""
    known = frozenset(module.the_mesh().coordinates)
    found: set[str] = set()  # the region is a parameter of a program, and no variable
    for value in _run_time_values(module):
        found |= value.free_vars & known
    for cond in _guards(module, transfers):
        if not cond.free_vars <= known:
            found |= cond.free_vars & known
    return frozenset(found - {module.the_mesh().outer})


def _run_time_values(module: Module) -> Iterator[Expr]:
    for op in module.walk():
        for view in op.operands:
            if isinstance(view, View):
                yield window(view, op.span).start
                yield from run_time_extents(view)
        if isinstance(op, Compute):
            yield from (value for value in op.params.values() if isinstance(value, Expr))
        if isinstance(op, For):
            yield op.count


def run_time_extents(view: View) -> list[Expr]:
    """The extents of ``view`` that are not constant."""
    ranges = [index.extent for index in view.indices if isinstance(index, Range)]
    return [extent for extent in (*ranges, *view.reshape) if not extent.is_const]


def kept_atoms(module: Module) -> list[Atom]:
    """The divisions in extents of views, in the order of first use, each worked out once."""
    views = (view for op in module.walk() for view in op.views())
    terms = (term for view in views for one in run_time_extents(view) for term in one.terms)
    return list(dict.fromkeys(atom for atom, _ in terms if not isinstance(atom, Var)))


def _guards(module: Module, transfers: Transfers) -> Iterator[Cond]:
    """The conditions that a program tests: those of ops, of waits, and of the cases of choices."""
    found: list[Cond | None] = [
        op.when for op in module.walk() if isinstance(op, (Compute, For, Sweep))
    ]
    for group in _waited(transfers):
        chosen = [op for choice in group.choices for op in choice.starts]
        found += [op.when for op in group.starts if op not in chosen]
        found += [case.when for case in group.cases]
        found.append(group.guard)
    yield from (cond for cond in found if cond is not None)


def known_at_start(module: Module) -> frozenset[str]:
    """Names that have their values when a program starts, or a round of requests behind each other
    (``request_rounds.py``): of run-time scalars, of coordinates, and of weights, as ``%name``."""
    weights = (f"%{buffer.value.name}" for buffer in module.buffers if buffer.role == "weight")
    return frozenset({*module.scalars, *module.the_mesh().coordinates, *weights})


def fixed_angles(op: Compute, to: Window, frequencies: Window, known: Iterable[str]) -> bool:
    """Whether the angles of a ``rope`` are all known, by the names ``known``, when the program
    starts, and are those of one row, or are kept for all rows."""
    position = op.params["position"]
    assert isinstance(position, Expr)
    if rows_of(to) > 1 and KEPT not in parts_of(op):
        return False
    return needed_by_angles(position, frequencies) <= {*known}


def needed_by_angles(position: Expr, frequencies: Window) -> frozenset[str]:
    """What angles are worked out from, as :func:`known_at_start` names it."""
    names = position.free_vars | frequencies.start.free_vars
    return frozenset({*names, f"%{frequencies.buffer.name}"})


def angles_of(op: Compute, to: Window, frequencies: Window, fixed: bool) -> tuple[str, ...]:
    """What the angles of a ``rope`` are of, so that those of the same share a table: their type,
    frequencies and, where they are ``fixed`` when the program starts, positions."""
    of = (str(type_of_angles(op)), str(frequencies))
    if not fixed:
        return of
    steps = (str(op.params["step"]), str(rows_of(to))) if rows_of(to) > 1 else ()
    return (*of, str(op.params["position"]), *steps)


def _angles(module: Module) -> Iterator[tuple[tuple[str, ...], int]]:
    """The angles of each ``rope``, and the words of the tables of their sines and cosines."""
    known = known_at_start(module)
    for op in module.walk():
        if isinstance(op, Compute) and op.kernel == "rope":
            to, _, frequencies = (window(v, op.span) for v in op.operands if isinstance(v, View))
            fixed = fixed_angles(op, to, frequencies, known)
            rows = rows_of(to) if fixed else 1
            table_bytes = 2 * rows * frequencies.size * type_of_angles(op).bytes
            yield angles_of(op, to, frequencies, fixed), table_bytes // TABLE_BYTES


def _sent_in_turn(module: Module) -> list[str]:
    """The channels with turns on which a program sends."""
    sent = (op.channel for op in module.walk() if isinstance(op, Send))
    return [name for name in dict.fromkeys(sent) if module.channel(name).turns]


def _row_words(op: Compute) -> int:
    """Words of the largest element of a row, kept for the function of one element; the same for
    all kernels of a type, f32 where operands are of both."""
    left = not op.way or (block_of(op) > 1 and WHOLE not in parts_of(op))
    if op.kernel not in _OF_THE_ROW or not left:
        return 0
    given = (window(v, op.span) for v in op.operands if isinstance(v, View))
    return max(one.dtype.bytes for one in given) // WORD_BYTES


def _waited(transfers: Transfers) -> list[Group]:
    """Every group of transfers."""
    return [*transfers.of_wait.values(), *transfers.of_block.values()]


def _positive(found: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in found.items() if count}


def wrong_words(module: Module) -> str | None:
    """What is wrong with the tables and words that a module says, in words; None where they are
    those of its program."""
    for what, said, needed in (
        ("of tables", resources.tables(module), tables_of(module)),
        ("of state", resources.words(module), words_of(module)),
    ):
        for name in sorted(said.keys() | needed.keys()):
            if said.get(name, 0) != needed.get(name, 0):
                return (
                    f"the program has {needed.get(name, 0)} words {what} '{name}', and "
                    f"{said.get(name, 0)} are planned"
                )
    return None


def word_bytes(module: Module) -> int:
    """Bytes of the tables and words that a module says."""
    return TABLE_BYTES * sum(resources.tables(module).values()) + WORD_BYTES * sum(
        resources.words(module).values()
    )
