"""RoPE: neighbouring lanes turned by angles that grow with the position.

The angle position * frequency is brought below two turns before its sine and cosine are taken, in
parts whose products are exact (``angles.py`` says how): for all frequencies at once by vector
operations, or one by one with the sine and cosine of the library. Both are right to 1e-6.

Angles are the same for all heads and all layers; so sines and cosines of a step for one token are
worked out once, when the program starts, and those of all rows of a prompt where the call says that
they are ``kept``. Where positions depend on a loop they are worked out there, row by row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from meshc.analysis.csl.angles import LOW, TURN, TURNED, of_rows, sines_and_cosines
from meshc.analysis.csl.blocks import cut, stretches
from meshc.analysis.csl.element_costs import rows_of
from meshc.analysis.csl.instruction_costs import Costs
from meshc.analysis.csl.rope_vectors import (
    one_row,
    pairs_of,
    table,
    turning_steps,
)
from meshc.analysis.csl.strided_windows import Dim, Window, own
from meshc.analysis.csl.ways import ANGLES, KEPT, TURNS, block_of, parts_of, type_of_angles
from meshc.analysis.csl.words import angles_of, fixed_angles
from meshc.backends.csl.kernels.shared_code import SharedCode, repeat
from meshc.backends.csl.spelling.expressions import expression
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.ir.affine import Cond, Expr
from meshc.ir.core import Op
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType
from meshc.ir.values import Value
from meshc.support.diagnostics import fail

_ANGLE, _TURNS = csl.Name("angle"), csl.Name("turns")
_WITHIN_A_TURN = csl.function(
    "in_a_turn",
    ["angle: f32"],
    [
        csl.const("turns", csl.cast("f32", csl.cast("i16", _ANGLE * 0.159154943 + 0.5))),
        csl.returned(csl.joined("-", [_ANGLE, *(_TURNS * part for part in TURN)])),
    ],
    "f32",
    "What is left of an angle that is not negative when whole turns are taken off, between -pi and "
    "pi. The first two parts of 2 pi have so few bits that their products are exact.",
)


@dataclass
class AtStart:
    """What a program does when it starts: a call, and the guard of the phase that needs it, None
    for all runs."""

    setter: csl.Do
    when: Cond | None


class Rotary:
    """Writes ``rope``; ``at_start`` is what a program does about it when it starts, when the names
    ``known_at_start``, run-time scalars and coordinates, have their values. Each round of requests
    behind each other has its own scalars, the names ``of_rounds``, and begins with what follows
    from them, ``at_round``. ``phases`` has the guard of the phase around a statement, in programs
    of several phases."""

    def __init__(
        self,
        code: SharedCode,
        costs: Costs,
        known_at_start: Collection[str],
        of_rounds: Collection[str] = (),
        phases: Mapping[Op, Cond] = MappingProxyType({}),
    ) -> None:
        self.code = code
        self.costs = costs
        self.known_at_start = known_at_start
        self.of_rounds = of_rounds
        self.phases = phases
        self.at_start: dict[tuple[str, ...], AtStart] = {}
        self.at_round: list[csl.Do] = []
        self._tables: dict[tuple[str, ...], tuple[Window, Window]] = {}

    def statements(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        """Those of one ``rope`` of [.., rows, lanes] and frequencies f32 [lanes / 2]."""
        to, source, frequencies = windows
        position, step = _angle(op)
        if frequencies.dtype != DType.F32:
            kind = frequencies.dtype
            fail("csl-dtype", f"the frequencies of 'rope' are of type {kind}, not f32", op.span)
        rows, fixed = rows_of(to), self._fixed(op, windows)
        tables = self._table(op, to, frequencies, fixed)
        if KEPT in parts_of(op):
            return self._turned_in_blocks(op, pairs_of(to, source, tables))
        if TURNS in parts_of(op):
            here = own("row") if rows > 1 else Expr.const(0)
            pairs = pairs_of(one_row(to, here), one_row(source, here), tables)
            turned = self.code.steps(turning_steps(self.costs, *pairs))
        else:
            turned = self._turned(to, source, tables)
        if fixed:
            return turned
        at = expression(
            position + own("row") * step if rows > 1 else position, self.code.descriptors.spell
        )
        body = [csl.do(self._setter(op, frequencies, tables), at), *turned]
        return self.code.over("row", to.dims[-2], body) if rows > 1 else body

    def _fixed(self, op: Compute, windows: list[Window]) -> bool:
        """Whether all angles are known when the program starts."""
        to, _, frequencies = windows
        return fixed_angles(op, to, frequencies, self.known_at_start)

    # --- sines and cosines

    def _table(
        self, op: Compute, to: Window, frequencies: Window, fixed: bool
    ) -> tuple[Window, Window]:
        """Cosines and sines of positions that are ``fixed`` at the start, or of each in turn."""
        key = angles_of(op, to, frequencies, fixed)
        if key not in self._tables:
            size, dtype = frequencies.size * (rows_of(to) if fixed else 1), type_of_angles(op)
            tables = self._array("cosines", size, dtype), self._array("sines", size, dtype)
            self._tables[key] = tables
            if fixed and KEPT in parts_of(op):
                setter = self._setter_of_rows(op, to, frequencies, tables)
                self._begin_with(key, csl.do(setter), op)
            elif fixed:
                setter = self._setter(op, frequencies, tables)
                at = expression(_angle(op)[0], self.code.descriptors.spell)
                self._begin_with(key, csl.do(setter, at), op)
        if key in self.at_start and self.at_start[key].when != self.phases.get(op):
            self.at_start[key].when = None
        return self._tables[key]

    def _begin_with(self, key: tuple[str, ...], setter: csl.Do, op: Compute) -> None:
        """Let the program, or each round if the positions of ``op`` are those of a round, begin
        with ``setter``."""
        if _angle(op)[0].free_vars.isdisjoint(self.of_rounds):
            self.at_start[key] = AtStart(setter, self.phases.get(op))
        else:
            self.at_round.append(setter)

    def _setter_of_rows(
        self, op: Compute, to: Window, frequencies: Window, tables: tuple[Window, Window]
    ) -> str:
        """The function that fills ``tables`` for the positions of all rows that there may be."""
        position, step = _angle(op)
        cosines, sines = tables
        rows = rows_of(to)
        steps, places = of_rows(self.costs, frequencies, sines, cosines, rows)
        if op.dsr:
            steps.hold()

        def put(window: Window, value: csl.Expression) -> csl.Statement:
            cell = self.code.descriptors.cell(window.moved(own("row")))
            return csl.assign(cell, csl.cast("f32", value))

        place = csl.Name("place")
        body = [
            csl.const(
                "place", expression(position + own("row") * step, self.code.descriptors.spell)
            ),
            put(places.whole, place),
            put(places.high, place - place % LOW),
            put(places.low, place % LOW),
        ]
        body = [*repeat("row", rows, body), *self.code.steps(steps)]
        return self.code.function("turn", frequencies, [], body)

    def _turned_in_blocks(self, op: Compute, pairs: list[Window]) -> list[csl.Statement]:
        """All rows turned by the angles that are kept for them: so many at once as ``op`` says,
        those that are left one by one."""
        block = block_of(op)
        if not block:
            return self.code.steps(turning_steps(self.costs, *pairs))
        place = len(pairs[0].dims) - 2
        found: list[csl.Statement] = []
        for rows in stretches(pairs[0].dims[place], block, "row"):
            part = [cut(window, place, rows.start, rows.length) for window in pairs]
            found += self.code.over_stretch(rows, self.code.steps(turning_steps(self.costs, *part)))
        return found

    def _array(self, name: str, size: int, dtype: DType) -> Window:
        return table(self.code.table(name, size, dtype), size, dtype)

    def _name(self, buffer: Value) -> str:
        return self.code.names.of("buffer", buffer.name)

    def _setter(self, op: Compute, frequencies: Window, tables: tuple[Window, Window]) -> str:
        """The function that fills ``tables`` for a position."""
        cosines, sines = tables
        place, low, high, head, tail = map(csl.Name, ("place", "low", "high", "head", "tail"))
        parts = [
            csl.const("low", csl.cast("f32", place % LOW)),
            csl.const("high", csl.cast("f32", place - place % LOW)),
        ]
        if ANGLES in parts_of(op):
            steps = sines_and_cosines(self.costs, frequencies, sines, cosines)
            if op.dsr:
                steps.hold()
            parts += [
                csl.const("whole", high + low),
                csl.const("turned", csl.Name("whole") * TURNED),
            ]
            return self._setting(frequencies, [*parts, *self.code.steps(steps)])
        self.code.helper(_WITHIN_A_TURN)
        many = frequencies.size > 1
        pair = own("i") * frequencies.dims[-1].stride if many else Expr.const(0)
        bits = csl.call("@bitcast", "u32", "frequency")
        turn = csl.call("in_a_turn", high * head) + csl.call("in_a_turn", low * head)
        body = [
            csl.const("frequency", self.code.descriptors.cell(frequencies.moved(pair))),
            csl.const(
                "head", csl.call("@bitcast", "f32", csl.infix(bits, "&", csl.Literal("0xfffff000")))
            ),
            csl.const("tail", csl.Name("frequency") - head),
            csl.const("angle", turn + high * tail + low * tail),
            csl.assign(
                csl.element(self._name(cosines.buffer), "i" if many else 0),
                csl.call("math.cos_f32", _ANGLE),
            ),
            csl.assign(
                csl.element(self._name(sines.buffer), "i" if many else 0),
                csl.call("math.sin_f32", _ANGLE),
            ),
        ]
        return self._setting(frequencies, [*parts, *repeat("i", frequencies.size, body)])

    def _setting(self, frequencies: Window, body: csl.Statements) -> str:
        """The function of a ``place`` that does this."""
        return self.code.function("turn", frequencies, ["place: i16"], body)

    # --- turning

    def _turned(
        self, to: Window, source: Window, tables: tuple[Window, Window]
    ) -> list[csl.Statement]:
        """All heads of one row turned, pair by pair of lanes."""
        lanes = to.dims[-1].extent
        pairs, heads = lanes // 2, to.size // lanes // rows_of(to)
        pair = own("i") if pairs > 1 else Expr.const(0)
        row = own("row") if rows_of(to) > 1 else Expr.const(0)
        cosine, sine = (
            csl.element(self._name(each.buffer), "i" if pairs > 1 else 0) for each in tables
        )
        turned = [self.code.scratch_window(DType.F32, 2 * heads, n * heads, heads) for n in (0, 1)]
        old = [_lane(source, row, pair, n) for n in (0, 1)]
        new = [_lane(to, row, pair, n) for n in (0, 1)]
        wide = to.dtype == DType.F32
        memory = self.code.descriptors.memory
        body: list[csl.Statement] = [
            csl.do("@fmuls", memory(turned[0]), memory(old[1]), -sine),
            csl.do("@fmuls", memory(turned[1]), memory(old[0]), sine),
        ]
        for n in (0, 1):
            target = memory(new[n] if wide else turned[n])
            body.append(csl.do("@fmacs", target, memory(turned[n]), memory(old[n]), cosine))
        if not wide:
            body += [self.code.move(new[n], turned[n]) for n in (0, 1)]
        return repeat("i", pairs, body)


def _angle(op: Compute) -> tuple[Expr, int]:
    position, step = op.params["position"], op.params["step"]
    assert isinstance(position, Expr) and isinstance(step, int)
    return position, step


def _lane(window: Window, row: Expr, pair: Expr, which: int) -> Window:
    """Lane 2 pair + which of ``row``, of all heads."""
    dims = window.dims
    lanes = dims[-1]
    moved = window.moved(pair * (2 * lanes.stride) + which * lanes.stride)
    if len(dims) > 1:
        moved = moved.moved(row * dims[-2].stride)
    return moved.inner(dims[:-2] or (Dim(1, 1),))
