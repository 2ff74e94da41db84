"""Descriptor registers (DSRs) in which the vector operations of a function find their operands.

An operation brings each operand that is named by a descriptor to a register first. What several
operations of a function name is loaded once where the function begins: into a first source's
register, which may be the destination as well, what operations change in place, and into a second
source's what they read (vendor's documentation, DSRs). So no operation has a destination's register
beside a first source's of another number, which compilers before SDK 2.10 refuse. The numbers lie
behind those of products (``sum_registers.py``), and no function leaves anything in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshc.analysis.csl.instruction_costs import CONSTANT, DESCRIPTOR
from meshc.analysis.csl.strided_windows import Dim, Window, has_one_dim

FUNCTIONS = 8
"""The first of the numbers that functions take."""
CHANGED, READ = "dsr_src0", "dsr_src1"
_COUNTS = {CHANGED: 3, READ: 5}
"""Registers of functions by file. Public programs for both architectures have more (numbers up to
10 and 14), and leave fewer to the compiler."""

Operand = Window | float | str
"""Elements, a number, or the name of a scalar."""
Operation = tuple[str, tuple[Operand, ...]]
"""The name of an operation, and its operands, the destination first."""


class Place(NamedTuple):
    """What a register holds: the file that it is of, and the elements."""

    file: str
    buffer: str
    start: str
    dims: tuple[Dim, ...]


def places(operation: Operation) -> list[Place | None]:
    """Where each operand of an operation may be held; None for what is named as it stands. A single
    source of vectors that is not changed in place has a file that is not documented."""
    _, (to, *operands) = operation
    found: list[Place | None] = [None] * (1 + len(operands))
    if len(operands) > 1:
        first, second = _place(CHANGED, operands[0]), _place(READ, operands[1])
        if first is not None and first == _place(CHANGED, to):
            found[:2] = [first, first]
        found[2] = second
    return found


def _place(file: str, operand: Operand) -> Place | None:
    if not isinstance(operand, Window) or not operand.start.is_const or not operand.constant:
        return None
    dims = operand.fewest
    if not has_one_dim(operand) or not dims[0].stride:
        return None
    return Place(file, operand.buffer.name, str(operand.start), dims)


def held(operations: Sequence[Operation]) -> dict[Place, tuple[int, Window]]:
    """The registers that pay for ``operations``, in the order in which they are needed: of each
    file as many as there are for what is named most often."""
    gains: dict[Place, int] = {}
    windows: dict[Place, Window] = {}
    for operation in operations:
        for place, operand in zip(places(operation), operation[1], strict=True):
            if place is not None and isinstance(operand, Window):
                windows.setdefault(place, operand)
                gains[place] = gains.get(place, 0) + DESCRIPTOR
    chosen: set[Place] = set()
    for file, count in _COUNTS.items():
        paying = [p for p, gain in gains.items() if p.file == file and gain > CONSTANT]
        chosen |= {*sorted(paying, key=lambda place: -gains[place])[:count]}
    numbers = dict.fromkeys(_COUNTS, FUNCTIONS)
    found: dict[Place, tuple[int, Window]] = {}
    for place, window in windows.items():
        if place in chosen:
            found[place] = numbers[place.file], window
            numbers[place.file] += 1
    return found
