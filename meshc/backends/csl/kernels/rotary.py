"""RoPE: neighbouring lanes turned by angles that grow with the position.

The angle position * frequency is brought below two turns before its sine and cosine are taken, in
parts whose products are exact (``angles.py`` says how): for all frequencies at once by vector
operations, or one by one with the sine and cosine of the library. Both are right to 1e-6.

Angles are the same for all heads and, in a step for one token, for all layers; so sines and cosines
of a step are worked out once, when the program starts. Where positions depend on a loop they are
worked out there, row by row.
"""

from __future__ import annotations

from collections.abc import Collection

from meshc.backends.csl.kernels.angles import LOW, TURN, sines_and_cosines
from meshc.backends.csl.kernels.choices import USUAL, Choices
from meshc.backends.csl.kernels.costs import SETUP, Costs
from meshc.backends.csl.kernels.shared_code import PAD, SharedCode, repeat
from meshc.backends.csl.kernels.vector_steps import Steps
from meshc.backends.csl.spelling.descriptors import own
from meshc.backends.csl.spelling.expressions import expression
from meshc.backends.csl.spelling.windows import Dim, Window
from meshc.ir.affine import Expr
from meshc.ir.ops.tile import Compute
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value
from meshc.support.diagnostics import fail

ANGLE = 381
"""Cycles of one angle with its sine and cosine, measured on the simulator, whose own costs of these
functions are predictions."""
_PAIR = {False: 7, True: 52}
"""Cycles of a pair of lanes besides its four operations: of the only one, of one of several, for
which descriptors are moved. Measured on the simulator."""

_WITHIN_A_TURN = [
    "// What is left of an angle that is not negative when whole turns are taken off, between -pi",
    "// and pi. The first two parts of 2 pi have so few bits that their products are exact.",
    "fn within_a_turn(angle: f32) f32 {",
    f"{PAD}const turns = @as(f32, @as(i16, angle * 0.159154943 + 0.5));",
    f"{PAD}return angle - {' - '.join(f'turns * {part}' for part in TURN)};",
    "}",
]


class Rotary:
    """Writes ``rope``; ``at_start`` is what a program does about it when it starts, when the names
    ``known_at_start``, run-time scalars and coordinates, have their values."""

    def __init__(
        self,
        code: SharedCode,
        costs: Costs,
        free_bytes: int,
        known_at_start: Collection[str],
        choices: Choices = USUAL,
    ) -> None:
        """Vector operations take at most ``free_bytes`` of scratch."""
        self.code = code
        self.costs = costs
        self.free_bytes = free_bytes
        self.choices = choices
        self.known_at_start = known_at_start
        self.at_start: list[str] = []
        self.cycles_at_start = 0
        self._tables: dict[tuple[str, ...], tuple[Window, Window]] = {}

    def lines(self, op: Compute, windows: list[Window]) -> list[str]:
        """The statements of one ``rope`` of f32 [.., rows, lanes] and frequencies [lanes / 2]."""
        to, source, frequencies = windows
        position, step = _angle(op)
        if frequencies.dtype != DType.F32:
            kind = frequencies.dtype
            fail("csl-dtype", f"the frequencies of 'rope' are of type {kind}, not f32", op.span)
        rows, fixed = _rows(to), self._fixed(op, windows)
        tables = self._table(frequencies, position if fixed else None)
        steps = self._turns(to, source, tables)
        turned = self._turned(to, source, tables) if steps is None else steps.lines(self.code)
        if fixed:
            return turned
        here = position + own("row") * step if rows > 1 else position
        at = expression(here, self.code.descriptors.spell)
        body = [f"{self._setter(frequencies, tables)}({at});", *turned]
        return repeat("row", rows, body)

    def cycles(self, op: Compute, windows: list[Window], costs: Costs) -> int:
        """Predicted cycles of one ``rope``, without what is done at the start."""
        to, source, frequencies = windows
        tables = (frequencies.inner((Dim(frequencies.size, 1),)),) * 2
        steps = self._turns(to, source, tables)
        turned = self._pair_by_pair(to, frequencies, costs) if steps is None else steps.cycles
        angles = 0 if self._fixed(op, windows) else self._angles(frequencies, tables)[1]
        return _rows(to) * (turned + angles)

    def _pair_by_pair(self, to: Window, frequencies: Window, costs: Costs) -> int:
        """Predicted cycles of a row whose pairs of lanes are turned one after the other."""
        heads = to.size // (2 * frequencies.size * _rows(to))
        each = 4 * (SETUP + costs.vector("mac", DType.F32, heads, ()))
        return frequencies.size * (each + _PAIR[frequencies.size > 1])

    def _fixed(self, op: Compute, windows: list[Window]) -> bool:
        """Whether all angles are known when the program starts."""
        to, _, frequencies = windows
        position, _ = _angle(op)
        names = position.free_vars | frequencies.start.free_vars
        return _rows(to) == 1 and names <= {*self.known_at_start}

    # --- sines and cosines

    def _table(self, frequencies: Window, position: Expr | None) -> tuple[Window, Window]:
        """Cosines and sines of a position that is known at the start, or of each in turn."""
        spell = self.code.descriptors.spell
        at = "" if position is None else expression(position, spell)
        key = (str(frequencies), at)
        if key not in self._tables:
            self._tables[key] = (
                self._array("cosines", frequencies.size),
                self._array("sines", frequencies.size),
            )
            if position is not None:
                setter = self._setter(frequencies, self._tables[key])
                self.at_start.append(f"{setter}({at});")
                self.cycles_at_start += self._angles(frequencies, self._tables[key])[1]
        return self._tables[key]

    def _array(self, name: str, size: int) -> Window:
        buffer = Value(self.code.table(name, size), BufferType(DType.F32, (size,)))
        return Window(buffer, DType.F32, Expr.const(0), (Dim(size, 1),))

    def _name(self, buffer: Value) -> str:
        return self.code.names.of("buffer", buffer.name)

    def _setter(self, frequencies: Window, tables: tuple[Window, Window]) -> str:
        """The function that fills ``tables`` for a position."""
        steps, _ = self._angles(frequencies, tables)
        parts = [
            f"const low = @as(f32, place % {LOW});",
            f"const high = @as(f32, place - place % {LOW});",
        ]
        if steps is not None:
            body = [*parts, "const whole = high + low;", *steps.lines(self.code)]
            return self.code.function("turn", frequencies, ["place: i16"], body)
        self.code.uses_math = True
        self.code.helper(_WITHIN_A_TURN)
        cosines, sines = (self._name(table.buffer) for table in tables)
        place = own("i") * frequencies.dims[-1].stride if frequencies.size > 1 else Expr.const(0)
        at = expression(frequencies.start + place, self.code.descriptors.spell)
        target = "i" if frequencies.size > 1 else "0"
        body = [
            f"const frequency = {self._name(frequencies.buffer)}[{at}];",
            "const head = @bitcast(f32, @bitcast(u32, frequency) & 0xfffff000);",
            "const tail = frequency - head;",
            "const angle = within_a_turn(high * head) + within_a_turn(low * head)",
            f"{PAD}+ high * tail + low * tail;",
            f"{cosines}[{target}] = math.cos_f32(angle);",
            f"{sines}[{target}] = math.sin_f32(angle);",
        ]
        body = [*parts, *repeat("i", frequencies.size, body)]
        return self.code.function("turn", frequencies, ["place: i16"], body)

    def _angles(
        self, frequencies: Window, tables: tuple[Window, Window]
    ) -> tuple[Steps | None, int]:
        """The vector operations that fill ``tables``, if these are the faster way, and the
        predicted cycles of the chosen one."""
        cosines, sines = tables
        steps = sines_and_cosines(self.costs, frequencies, sines, cosines)
        one_by_one = ANGLE * frequencies.size
        possible = steps.fits and steps.bytes <= self.free_bytes
        if self.choices.vector_angles and possible and steps.cycles < one_by_one:
            return steps, steps.cycles
        return None, one_by_one

    def _turns(self, to: Window, source: Window, tables: tuple[Window, Window]) -> Steps | None:
        """The vector operations that turn all pairs of lanes of all heads of a row, if these are
        the faster way."""
        if not self.choices.vector_turns:
            return None
        row = own("row") if _rows(to) > 1 else Expr.const(0)
        (old_even, old_odd), (new_even, new_odd) = (
            [_lanes(window, row, which) for which in (0, 1)] for window in (source, to)
        )
        heads = to.dims[:-2]
        cosines, sines = (
            table.inner((*(Dim(dim.extent, 0) for dim in heads), *table.dims)) for table in tables
        )
        steps = Steps(self.costs)
        even, odd, even_by_odd, odd_by_even = (steps.room(old_even.size) for _ in range(4))
        steps.do("@fmuls", even_by_odd, old_odd, sines)
        steps.do("@fmuls", odd_by_even, old_even, sines)
        steps.do("@fmuls", even, old_even, cosines)
        steps.do("@fmuls", odd, old_odd, cosines)
        wide = to.dtype == DType.F32
        steps.do("@fsubs", new_even if wide else even, even, even_by_odd)
        steps.do("@fadds", new_odd if wide else odd, odd, odd_by_even)
        if not wide:
            steps.do("@fs2h", new_even, even)
            steps.do("@fs2h", new_odd, odd)
        slower = steps.cycles >= self._pair_by_pair(to, tables[0], self.costs)
        possible = steps.fits and steps.bytes <= self.free_bytes
        return steps if possible and not slower else None

    # --- turning

    def _turned(self, to: Window, source: Window, tables: tuple[Window, Window]) -> list[str]:
        """All heads of one row turned, pair by pair of lanes."""
        lanes = to.dims[-1].extent
        pairs, heads = lanes // 2, to.size // lanes // _rows(to)
        pair = own("i") if pairs > 1 else Expr.const(0)
        row = own("row") if _rows(to) > 1 else Expr.const(0)
        cosine, sine = (f"{self._name(t.buffer)}[{'i' if pairs > 1 else 0}]" for t in tables)
        memory = self.code.descriptors.memory
        turned = [self.code.scratch_window(DType.F32, 2 * heads, n * heads, heads) for n in (0, 1)]
        old = [_lane(source, row, pair, n) for n in (0, 1)]
        new = [_lane(to, row, pair, n) for n in (0, 1)]
        body = [
            f"@fmuls({memory(turned[0])}, {memory(old[1])}, -{sine});",
            f"@fmuls({memory(turned[1])}, {memory(old[0])}, {sine});",
        ]
        for n in (0, 1):
            target = new[n] if to.dtype == DType.F32 else turned[n]
            operands = f"{memory(turned[n])}, {memory(old[n])}, {cosine}"
            body.append(f"@fmacs({memory(target)}, {operands});")
        if to.dtype != DType.F32:
            body += [self.code.move(new[n], turned[n]) + ";" for n in (0, 1)]
        return repeat("i", pairs, body)


def _angle(op: Compute) -> tuple[Expr, int]:
    position, step = op.params["position"], op.params["step"]
    assert isinstance(position, Expr) and isinstance(step, int)
    return position, step


def _rows(window: Window) -> int:
    return window.dims[-2].extent if len(window.dims) > 1 else 1


def _lanes(window: Window, row: Expr, which: int) -> Window:
    """All lanes 2 n + which of ``row``, of all heads."""
    lanes = window.dims[-1]
    moved = window.moved(which * lanes.stride)
    if len(window.dims) > 1:
        moved = moved.moved(row * window.dims[-2].stride)
    return moved.inner((*window.dims[:-2], Dim(lanes.extent // 2, 2 * lanes.stride)))


def _lane(window: Window, row: Expr, pair: Expr, which: int) -> Window:
    """Lane 2 pair + which of ``row``, of all heads."""
    dims = window.dims
    lanes = dims[-1]
    moved = window.moved(pair * (2 * lanes.stride) + which * lanes.stride)
    if len(dims) > 1:
        moved = moved.moved(row * dims[-2].stride)
    return moved.inner(dims[:-2] or (Dim(1, 1),))
