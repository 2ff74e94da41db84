"""Random tile programs: copies, fills, sums, products, rotations, rings, chains, multicasts, loops.

Every buffer is loaded and read back, so that any difference in any core's memory shows. Values are
small integers and the generator bounds what they can become, so all arithmetic is exact and results
are compared bit by bit.
"""

from dataclasses import dataclass, field

LIMIT = {"f16": 2**11, "bf16": 2**8, "f32": 2**24}
LARGEST_INPUT = 3


@dataclass
class Step:
    """Lines of one or more statements and what they do to the bounds of buffers."""

    lines: list
    effect: object  # bounds -> None

    def text(self, pad):
        return "".join(f"{pad}{line}\n" for line in self.lines)


@dataclass
class Program:
    """What a random program is made of."""

    rows: int
    columns: int
    shape: tuple
    types: list
    scalar: bool
    steps: list = field(default_factory=list)

    def bounds_hold(self, more=()):
        """Whether no element can leave the integers that its type holds exactly."""
        bounds = [LARGEST_INPUT] * len(self.types)
        for step in [*self.steps, *more]:
            step.effect(bounds)
        limits = [LIMIT[kind] for kind in self.types]
        return all(b <= most for b, most in zip(bounds, limits, strict=True))

    def text(self):
        slots, lanes = self.shape
        rows, columns = self.rows, self.columns
        head = [
            "module @random level(tile) holds(channels_matched, deadlock_free, guards_cover) {",
            f"  dims Y = {rows}, X = {columns}, S = {slots}, L = {lanes}",
            *(["  scalars pos = 0..2"] if self.scalar else []),
            f"  mesh y = {rows}, x = {columns}",
            *(f"  buffer %b{n} : {kind}[{slots}, {lanes}] {{role = in}}"
              for n, kind in enumerate(self.types)),
            *channels(rows, columns),
        ]  # fmt: skip
        for n, kind in enumerate(self.types):
            where = f"{kind}[Y, X, S, L] : %b{n} {{lanes = [i, j], element = [y, x, i, j]}}"
            head += [f"  port @in{n} in {where}", f"  port @out{n} out {where}"]
        body = "".join(step.text("    ") for step in self.steps)
        return "\n".join(head) + "\n  program @main {\n" + body + "  }\n}\n"


def channels(rows, columns):
    """A ring, a chain and a multicast along each axis that has several cores."""
    found = []
    for axis, size in (("y", rows), ("x", columns)):
        if size < 2:
            continue

        def at(target, axis=axis):
            return f"[{target}, x]" if axis == "y" else f"[y, {target}]"

        ring = f"[y, x] -> {at(f'{axis} - 1')} : {axis} >= 1"
        back = f"[y, x] -> {at(f'{axis} + {size - 1}')} : {axis} = 0"
        chain = f"[y, x] -> {at(f'{axis} - 1')} : {axis} >= 1"
        reach = f"_{axis} >= 1 and _{axis} <= {size - 1}"
        cast = f"[y, x] -> {at(f'_{axis}')} : {reach} and {axis} = 0"
        found += [
            f'  channel @ring_{axis} "{{ {ring}; {back} }}"',
            f'  channel @chain_{axis}_1 "{{ {chain} }}"',
            f'  channel @cast_{axis} "{{ {cast} }}" {{multicast = true}}',
        ]
    return found


class Generator:
    """Draws a program; ``draw`` is hypothesis's."""

    def __init__(self, draw, strategies):
        self._draw, self._st = draw, strategies
        kind = self.of("f32", "f16", "bf16")
        self.program = Program(
            self.number(1, 4),
            self.number(1, 4),
            (self.number(2, 4), self.number(1, 6)),
            [kind, kind, kind, self.of("f32", kind)],
            self.chance(4),
        )
        self.tokens = 0
        for _ in range(self.number(1, 7)):
            step = self.step(Scope(self.program))
            if self.program.bounds_hold([step]):
                self.program.steps.append(step)

    # --- draws

    def number(self, low, high):
        return self._draw(self._st.integers(low, high))

    def of(self, *choices):
        return choices[self.number(0, len(choices) - 1)]

    def chance(self, one_in):
        return self.number(1, one_in) == one_in

    # --- statements

    def step(self, scope):
        kinds = ["kernel", "kernel", "exchange", "exchange", "sweep"]
        if scope.depth < 2:
            kinds.append("loop")
        kind = self.of(*kinds)
        if kind == "loop":
            return self.loop(scope)
        if kind == "kernel" or not scope.axes:
            return self.kernel(scope, range(4), range(4))
        return self.exchange(scope) if kind == "exchange" else self.sweep(scope)

    def loop(self, scope):
        name = f"t{scope.depth}"
        count = self.number(1, 3)
        over = f"{count}" if not self.program.scalar or self.chance(2) else "pos + 1"
        when, axes = self.common_guard(scope)
        inner = scope.inside(name, axes)
        body = [self.step(inner) for _ in range(self.number(1, 3))]
        when = f', when = "{when}"' if when else ""
        head = f'tile.for {{var = {name}, count = "{over}"{when}}} {{'
        lines = [head, *(f"  {line}" for step in body for line in step.lines), "}"]

        def effect(bounds):
            for _ in range(3):
                for step in body:
                    step.effect(bounds)

        return Step(lines, effect)

    def kernel(self, scope, readable, writable):
        """One kernel that writes one of ``writable``."""
        to = self.of(*writable)
        kind = self.program.types[to]
        alike = [n for n in readable if self.program.types[n] == kind]
        choices = ["fill", "rotate"] + (["copy", "add", "mul", "scale"] if alike else [])
        factors = [n for n in readable if n != to]
        pairs = [
            (a, b)
            for a in factors
            for b in factors
            if self.program.types[a] == self.program.types[b]
            and not (kind != "f32" and self.program.types[a] == "f32")
        ]
        apart = [n for n in alike if n != to]
        if apart and self.program.shape[1] > 1:
            choices += ["row_sum", "row_max", "square_sum", "add_rows", "mul_rows"]
        name = self.of(*choices, *(["gemm", "gemm"] if pairs else []))
        when = self.own_guard(scope)
        tail = f', when = "{when}"' if when else ""
        if name == "gemm":
            return self.gemm(scope, to, self.of(*pairs), tail)
        if name == "rotate":
            by = self.of("1", "y", "x + 1", *scope.names)
            return Step([f'tile.rotate %b{to} {{by = "{by}"{tail}}}'], lambda bounds: None)
        if name in ("row_sum", "row_max", "square_sum", "add_rows", "mul_rows"):
            return self.by_rows(scope, name, to, self.of(*apart), tail.removeprefix(", "))
        rows, lanes = self.number(1, self.program.shape[0]), self.number(1, self.program.shape[1])
        target = self.view(scope, to, rows, lanes)
        if name == "fill":
            value = self.number(-3, 3)

            def fill(bounds):
                bounds[to] = max(bounds[to], abs(value))

            return Step([f"tile.fill {target} {{value = {float(value)}{tail}}}"], fill)
        return self.pointwise(scope, name, to, target, alike, (rows, lanes), tail)

    def pointwise(self, scope, name, to, target, alike, shape, tail):
        a = self.of(*alike)
        tail = tail.removeprefix(", ")
        left = self.source(scope, target, to, a, shape)
        if name == "copy":

            def copy(bounds):
                bounds[to] = max(bounds[to], bounds[a])

            return Step([f"tile.copy {target}, {left}" + (f" {{{tail}}}" if tail else "")], copy)
        if name == "scale":
            factor = self.of(-2, -1, 2)
            tail = f", {tail}" if tail else ""

            def scale(bounds):
                bounds[to] = max(bounds[to], bounds[a] * abs(factor))

            return Step([f"tile.scale {target}, {left} {{factor = {float(factor)}{tail}}}"], scale)
        b = self.of(*alike)
        right = self.source(scope, target, to, b, shape)

        def combine(bounds):
            value = bounds[a] + bounds[b] if name == "add" else bounds[a] * bounds[b]
            bounds[to] = max(bounds[to], value)

        text = f"tile.{name} {target}, {left}, {right}" + (f" {{{tail}}}" if tail else "")
        return Step([text], combine)

    def by_rows(self, scope, name, to, a, tail):
        """A reduction to one value per row, or a row that is repeated."""
        rows = self.number(1, min(self.program.shape))
        lanes = self.number(1, self.program.shape[1])
        kernel = name.removesuffix("_rows")
        single = self.view(scope, to, 1, rows, point=True)
        tail = f" {{{tail}}}" if tail else ""
        if kernel != name:
            target = self.view(scope, to, rows, lanes)
            single = self.view(scope, a, 1, lanes, point=True)

            def combine(bounds):
                value = bounds[to] + bounds[a] if kernel == "add" else bounds[to] * bounds[a]
                bounds[to] = max(bounds[to], value)

            return Step([f"tile.{kernel} {target}, {target}, {single}{tail}"], combine)

        def reduce(bounds):
            largest = bounds[a] ** 2 if name == "square_sum" else bounds[a]
            bounds[to] = max(bounds[to], largest * (1 if name == "row_max" else lanes))

        return Step([f"tile.{name} {single}, {self.view(scope, a, rows, lanes)}{tail}"], reduce)

    def source(self, scope, target, to, name, shape):
        """A view to read: of the buffer that is written only what is written, in its place."""
        return target if name == to else self.view(scope, name, *shape)

    def gemm(self, scope, to, pair, tail):
        slots, lanes = self.program.shape
        a, b = pair
        m, k, n = self.number(1, slots), self.number(1, min(slots, lanes)), self.number(1, lanes)
        transposed = self.chance(2)
        if transposed:
            n, k = self.number(1, min(slots, lanes)), self.number(1, lanes)
        accumulate = self.chance(2)
        right = (n, k) if transposed else (k, n)
        chunks = self.number(1, slots // max(m, right[0]))
        views = [self.view(scope, to, m, n), self.view(scope, a, chunks * m, k)]
        views += [self.view(scope, b, chunks * right[0], right[1])]
        if chunks > 1:
            shapes = (1, m, n), (chunks, m, k), (chunks, *right)
            views = [f"{view} as {list(one)}" for view, one in zip(views, shapes, strict=True)]
        flags = f"accumulate = {str(accumulate).lower()}, transposed = {str(transposed).lower()}"

        def effect(bounds):
            product = chunks * k * bounds[a] * bounds[b]
            bounds[to] = (bounds[to] if accumulate else 0) + product + bounds[to]

        return Step([f"tile.gemm {', '.join(views)} {{{flags}{tail}}}"], effect)

    # --- transfers

    def exchange(self, scope):
        """Messages on one or two channels, kernels beside them, one wait or several."""
        when, axes = self.common_guard(scope)
        kind = self.of(*self.program.types)
        buffers = [n for n, t in enumerate(self.program.types) if t == kind]
        if len(buffers) < 2:
            return self.kernel(scope, range(4), range(4))
        into = self.of(*buffers)
        source = self.of(*(n for n in buffers if n != into))
        slots, lanes = self.program.shape
        free = list(range(slots))
        starts, groups, adds = [], [], 0
        for name in self.channels(axes or scope.axes):
            tokens = []
            for _ in range(min(self.number(1, 2), len(free))):
                slot, width = free.pop(0), self.number(1, lanes)
                combine = self.of("store", "store", "add", "max")
                adds += combine == "add"
                tokens += self.message(
                    scope, starts, name, when, source, (into, slot), width, combine
                )
            if tokens:
                groups.append(tokens)
        busy = {into, source}
        others = [n for n in range(4) if n not in busy]
        beside = [
            self.kernel(scope, [n for n in range(4) if n != into], others)
            for _ in range(self.number(0, 2) if others else 0)
        ]
        waits = self.waits(groups)
        lines = [*starts]
        for step in beside:
            lines += step.lines
        lines += waits

        def effect(bounds):
            for step in beside:
                step.effect(bounds)
            bounds[into] += bounds[source] * max(adds, 1)

        return Step(lines, effect)

    def waits(self, groups):
        if self.chance(2) and len(groups) > 1:
            order = groups if self.chance(2) else groups[::-1]
            return [f"tile.wait {', '.join(tokens)}" for tokens in order]
        return [f"tile.wait {', '.join(t for tokens in groups for t in tokens)}"]

    def channels(self, axes):
        """One or two channels, not two of them on one."""
        names = [f"{kind}_{axis}{tail}" for axis in axes
                 for kind, tail in (("ring", ""), ("chain", "_1"), ("cast", ""))]  # fmt: skip
        first = self.of(*names)
        return [first] if self.chance(2) else list(dict.fromkeys([first, self.of(*names)]))

    def message(self, scope, starts, name, when, source, into, width, combine):
        """A send and its receive; appends their lines and gives their tokens."""
        kind, axis = name.split("_")[:2]
        size = self.program.rows if axis == "y" else self.program.columns
        sends, gets = {
            "ring": ("", ""),
            "chain": (f"{axis} >= 1", f"{axis} <= {size - 2}"),
            "cast": (f"{axis} = 0", f"{axis} >= 1"),
        }[kind]
        buffer, slot = into
        sent, got = self.token(), self.token()
        view = self.view(scope, source, 1, width, point=True)
        starts.append(f"{sent} = tile.send @{name}, {view}{_when(when, sends)} : token")
        target = f"%b{buffer}[{slot}, 0 +: {width}]"
        how = "" if combine == "store" else f"combine = {combine}"
        starts.append(f"{got} = tile.recv @{name}, {target}{_when(when, gets, how)} : token")
        return [sent, got]

    def sweep(self, scope):
        """A chain that sums or maximises towards the first core."""
        axis = self.of(*scope.axes)
        size = self.program.rows if axis == "y" else self.program.columns
        buffer, combine = self.number(0, 3), self.of("add", "max")
        when, axes = self.common_guard(scope)
        when = when if axis in axes else ""
        width, slot = self.number(1, self.program.shape[1]), self.slot(scope, axis)
        view, name = f"%b{buffer}[{slot}, 0 +: {width}]", f"@chain_{axis}_1"
        tail = f', when = "{when}"' if when else ""
        lines = [f'tile.sweep {{rank = "{size - 1} - {axis}", count = {size}{tail}}} {{']
        lines.append(f'  {self.token()} = tile.send {name}, {view} '
                     f'{{when = "{axis} = {size - 1}"}} : token')  # fmt: skip
        if size > 2:
            between = f"{axis} >= 1 and {axis} <= {size - 2}"
            lines.append(f'  {self.token()} = tile.relay {name}, {name}, {view} '
                         f'{{combine = {combine}, when = "{between}"}} : token')  # fmt: skip
        lines.append(f'  {self.token()} = tile.recv {name}, {view} '
                     f'{{combine = {combine}, when = "{axis} = 0"}} : token')  # fmt: skip

        def effect(bounds):
            bounds[buffer] *= size

        return Step([*lines, "}"], effect)

    def token(self):
        self.tokens += 1
        return f"%k{self.tokens}"

    # --- guards and views

    def own_guard(self, scope):
        """Any condition, for a kernel."""
        if self.chance(2):
            return ""
        rows, columns = self.program.rows, self.program.columns
        choices = [
            f"y = {self.number(0, rows - 1)}",
            f"x >= {self.number(0, columns - 1)}",
            "x mod 2 = 1",
            "x <= y",
            "y >= 1 and x <= 1",
            "y = 0 or x = 1",
            "x + 2*y <= 3",
            "floor(x/2) = 0",
        ]
        for name in scope.names:
            choices += [f"{name} >= 1", f"x <= {name}", f"{name} = 0 or y >= 1"]
        return self.of(*choices)

    def common_guard(self, scope):
        """A condition that is the same all along some axes, and these axes."""
        if self.chance(2):
            return "", scope.axes
        choices = [(f"{n} <= {self.number(0, 1)}", scope.axes) for n in scope.names]
        if "x" in scope.axes:
            choices += [("y mod 2 = 0", ("x",)), ("y >= 1", ("x",))]
            choices += [(f"y <= {n}", ("x",)) for n in scope.names]
        if "y" in scope.axes:
            choices += [("x mod 2 = 0", ("y",)), ("x <= 1", ("y",))]
        return self.of(*choices) if choices else ("", scope.axes)

    def slot(self, scope, axis):
        """A slot that is the same all along ``axis``."""
        slots = self.program.shape[0]
        choices = [str(self.number(0, slots - 1)), *(f"{n} mod {slots}" for n in scope.names)]
        return self.of(*choices)

    def view(self, scope, buffer, rows, lanes, point=False):
        slots, most = self.program.shape
        first = self.number(0, most - lanes)
        names = ["x", "y", *scope.names]
        if point:
            at = self.of(str(self.number(0, slots - 1)), f"{self.of(*names)} mod {slots}",
                         f"({self.of(*names)} + {self.of(*names)}) mod {slots}",
                         f"({self.of(*names)} - {self.of(*names)}) mod {slots}")  # fmt: skip
            return f"%b{buffer}[{at}, {first} +: {lanes}]"
        if rows * 2 - 1 <= slots and self.chance(3):
            top = self.number(0, slots - (2 * rows - 1))
            return f"%b{buffer}[{top} +: {rows} by 2, {first} +: {lanes}]"
        top = str(self.number(0, slots - rows))
        if rows < slots and self.chance(2):
            top = f"{self.of(*names)} mod {slots - rows + 1}"
        return f"%b{buffer}[{top} +: {rows}, {first} +: {lanes}]"


class Scope:
    """Where a statement stands: names it may use, axes along which all cores are there."""

    def __init__(self, program, names=None, axes=None, depth=0):
        self.names = (["pos"] if program.scalar else []) if names is None else names
        several = [a for a, n in (("y", program.rows), ("x", program.columns)) if n > 1]
        self.axes = tuple(several) if axes is None else axes
        self.depth = depth
        self._program = program

    def inside(self, name, axes):
        return Scope(self._program, [*self.names, name], axes, self.depth + 1)


def _when(common, own, how=""):
    test = " and ".join(part for part in (common, own) if part)
    inside = ", ".join(part for part in (how, f'when = "{test}"' if test else "") if part)
    return f" {{{inside}}}" if inside else ""
