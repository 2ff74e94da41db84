"""Random tensor programs: one phase, any operations in any order."""

from __future__ import annotations

from itertools import combinations
from random import Random

from bounded import Arithmetic
from building import Builder, Drawing, rope
from drawn_programs import Apply, Block, Call, Carried, Program, Repeat, Tensor, used_only
from operations import (
    Activation,
    Binary,
    Dims,
    LayerNorm,
    Product,
    RmsNorm,
    Scale,
    Softmax,
    Transpose,
)

SCALES = {
    "{} * 0.5": 0.5,
    "0.25 * {}": 0.25,
    "{} / 4": 0.25,
    "-{}": -1.0,
    "{} * (1 / 2 + 1)": 1.5,
    "{} / sqrt(3)": 3**-0.5,
    "{} * 1": 1.0,
}
_MOVES = {
    "product": 30,
    "again": 8,
    "add": 14,
    "multiply": 8,
    "bias": 8,
    "scale": 6,
    "activation": 10,
    "norm": 8,
    "softmax": 4,
    "rope": 5,
    "transpose": 3,
    "right input": 4,
    "values": 1,
    "repeat": 8,
    "block": 6,
}
_IN_REPEAT = {
    name: often for name, often in _MOVES.items() if name not in ("repeat", "right input")
}
_IN_BLOCK = {
    name: often
    for name, often in _IN_REPEAT.items()
    if name in ("add", "multiply", "activation", "scale")
}


def tensor_program(random: Random, kinds: Arithmetic, most: int = 8, largest: int = 14) -> Program:
    """A program of up to about ``most`` steps on dims of up to ``largest`` elements."""
    return _Tensors(Drawing(random), most, largest).program(kinds)


class _Tensors:
    """Draws one program."""

    def __init__(self, draw: Drawing, most: int, largest: int) -> None:
        self.draw, self.most, self.largest = draw, most, largest
        self.extents: dict[str, int] = {}
        self.inputs: list[Tensor] = []
        rows = draw.weighted({"L": 75, "M": 15, "": 10})
        if rows:
            self.extents[rows] = 1 if draw.chance(10) else draw.number(2, largest)
        for name in ("E", "F", "A"):
            self.extents[name] = draw.number(1, largest)
        self.extents["H"] = draw.number(1, 5)
        self.extents["D"] = 2 * draw.number(1, 4)
        self.rows: Dims = (rows,) if rows else ()
        if draw.chance(25):
            self.rows = ("B", *self.rows)

    def program(self, kinds: Arithmetic) -> Program:
        """Inputs, statements, results."""
        draw = self.draw
        top = Builder(draw, self.extents)
        first = (*self.rows, "H", "D") if draw.chance(12) else (*self.rows, "E")
        self._input(top, "x", first)
        if draw.chance(12):
            self._input(top, "z", draw.of([first, first, (*self.rows, "F")]))
        if draw.chance(6):
            self._input(top, "c", (first[-1],))
        wanted = draw.number(1, self.most)
        while len(top.statements) < wanted:
            self._move(top, _MOVES, self._pool(top))
        returns = self._returns(top)
        stated = tuple(top.dims(n) for n in returns) if draw.chance(30) else ()
        program = Program(
            self.extents,
            tuple(self.inputs),
            tuple(top.params),
            tuple(top.statements),
            tuple(returns),
            kinds,
            stated=stated,
            flags=("on",),
        )
        return used_only(program)

    def _returns(self, top: Builder) -> list[str]:
        """The last value, often with others that nothing reads, now and then with any or twice."""
        draw = self.draw
        made = [n for s in top.statements for n in s.results]
        made = [n for n in made if not self._is_turned_param(top, n)]
        if not made:
            return [top.apply(Scale("{} * 0.5", 0.5), "x")]
        read = {name for s in top.statements for name in s.args}
        leaves = [n for n in made[:-1] if n not in read]
        found = [made[-1]]
        if leaves and draw.chance(50):
            found += draw.random.sample(leaves, min(len(leaves), draw.number(1, 2)))
        if len(made) > 1 and draw.chance(12):
            found.append(draw.of([n for n in made if n not in found] or made))
        if draw.chance(2):
            found.append(found[0])
        return found

    def _input(self, top: Builder, stem: str, dims: Dims) -> str:
        name = top.fresh(stem)
        self.inputs.append(Tensor(name, dims))
        top.known[name] = dims
        return name

    def _names_of_params(self, body: Builder) -> set[str]:
        return {p.name for p in body.params}

    def _is_turned_param(self, body: Builder, name: str) -> bool:
        """Whether a value is a transposed param or right input, which no step computed."""
        given = self._names_of_params(body) | {t.name for t in self.inputs[1:]}
        return any(
            isinstance(s, Apply)
            and s.result == name
            and isinstance(s.operation, Transpose)
            and s.args[0] in given
            for s in body.statements
        )

    def _pool(self, body: Builder) -> list[str]:
        """Values that steps may start from: those with rows, the latest ones first."""
        given = self._names_of_params(body)
        found = [n for n, d in body.known.items() if n not in given and set(self.rows) <= set(d)]
        if not self.rows:
            found = [n for n in found if n not in ("c",)]
        found = [n for n in found if not self._is_turned_param(body, n)][::-1]
        read = {name for s in body.statements for name in s.args}
        return [n for n in found if n not in read] + [n for n in found if n in read]

    def _pick(self, pool: list[str]) -> str:
        """A value: mostly one that nothing has read yet, the latest more often."""
        return pool[min(int(self.draw.random.expovariate(1.1)), len(pool) - 1)]

    def _move(self, body: Builder, moves: dict[str, float], pool: list[str]) -> None:
        """One more step, if it can be taken."""
        kind = self.draw.weighted(moves)
        getattr(self, "_" + kind.replace(" ", "_"))(body, pool)

    # --- steps

    def _product(self, body: Builder, pool: list[str]) -> None:
        draw, left = self.draw, self._pick(pool)
        inner = [d for d in body.dims(left) if d not in (*self.rows, "B")]
        if not inner or body.dims(left)[-1] != inner[-1]:
            return
        run = tuple(inner[-2:]) if len(inner) > 1 and draw.chance(60) else (inner[-1],)
        if body.dims(left)[-len(run) :] != run:
            run = run[-1:]
        rest = [d for d in body.dims(left) if d not in run]
        free = [d for d in ("E", "F", "A", "H", "D") if d not in rest and d not in run]
        if run == ("E",) and "Eo" not in rest and draw.chance(25):
            self.extents["Eo"] = self.extents["E"]
            free = ["Eo"]
        new: Dims = (draw.of(free),)
        if {"H", "D"} <= set(free) and draw.chance(25):
            new = ("H", "D")
        elif len(free) > 1 and draw.chance(5):
            new = tuple(draw.random.sample(free, 2))
        elif rest and draw.chance(3):
            new = ()
        if "H" in rest and run == ("D",) and draw.chance(30):
            body.apply(
                Product(run), left, body.param("w", "D", "H", new[0] if new else "F"), stem="y"
            )
            return
        body.weighted(left, run, new, form=draw.weighted({"": 80, "transposed": 20}))

    def _again(self, body: Builder, pool: list[str]) -> None:
        """Another product of a value that has one already."""
        made = [
            s
            for s in body.statements
            if isinstance(s, Apply) and isinstance(s.operation, Product) and s.args[0] in pool
        ]
        if not made:
            return self._product(body, pool)
        step = self.draw.of(made)
        run = step.operation.summed
        new = tuple(d for d in body.dims(step.result) if d not in body.dims(step.args[0]))
        if set(run) & set(body.dims(step.result)):
            return None
        if self.draw.chance(6) and step.args[1] in self._names_of_params(body):
            body.apply(step.operation, *step.args, stem="y")
        else:
            body.weighted(step.args[0], run, new)
        return None

    def _pair(self, body: Builder, pool: list[str]) -> tuple[str, str] | None:
        """Two values that an elementwise operation takes."""
        pairs = [
            (a, b)
            for a, b in combinations(pool[:8], 2)
            if _spreads(body.dims(b), body.dims(a)) or _spreads(body.dims(a), body.dims(b))
        ]
        pairs += [(a, a) for a in pool[:2]]
        found = self.draw.of(pairs)
        return found if self.draw.chance(50) else found[::-1]

    def _add(self, body: Builder, pool: list[str]) -> None:
        body.apply(Binary(self.draw.of("++-")), *self._pair(body, pool), stem="s")

    def _multiply(self, body: Builder, pool: list[str]) -> None:
        body.apply(Binary("*"), *self._pair(body, pool), stem="p")

    def _bias(self, body: Builder, pool: list[str]) -> None:
        """A value and a param of some of its dims, in either order."""
        draw, left = self.draw, self._pick(pool)
        dims = [d for d in body.dims(left) if d not in (*self.rows, "B")]
        if not dims:
            return
        kept = tuple(d for d in dims if draw.chance(70)) or (dims[-1],)
        given = [t.name for t in self.inputs if t.dims == kept]
        other = given[0] if given and draw.chance(70) else body.param("b", *kept)
        sign = Binary(draw.of("+++-*"))
        args = (left, other) if sign.sign == "-" or draw.chance(80) else (other, left)
        body.apply(sign, *args, stem="s")

    def _scale(self, body: Builder, pool: list[str]) -> None:
        pattern = self.draw.of(list(SCALES))
        body.apply(Scale(pattern, SCALES[pattern]), self._pick(pool), stem="s")

    def _activation(self, body: Builder, pool: list[str]) -> None:
        found = self.draw.of(
            [("silu", ""), ("relu2", ""), ("gelu", ""), ("gelu", "tanh"), ("tanh", "")]
        )
        body.apply(Activation(*found), self._pick(pool), stem="a")

    def _norm(self, body: Builder, pool: list[str]) -> None:
        value = self._pick(pool)
        dims = [d for d in body.dims(value) if d not in (*self.rows, "B")]
        if dims:
            dim = dims[-1] if self.draw.chance(85) else self.draw.of(dims)
            eps = self.draw.of([None, 1e-6, 1e-3, 0.5])
            args = [value, body.param("g", dim)]
            if not self.draw.chance(30):
                body.apply(RmsNorm(eps), *args, stem="h")
                return
            args += [body.param("b", dim)] if self.draw.chance(70) else []
            body.apply(LayerNorm(eps), *args, stem="h")

    def _softmax(self, body: Builder, pool: list[str]) -> None:
        value = self._pick(pool)
        dims = [d for d in body.dims(value) if d not in (*self.rows, "B")]
        if not dims:
            return
        dim = "" if body.dims(value)[-1] in dims and self.draw.chance(80) else self.draw.of(dims)
        causal = "L" in body.dims(value) and self.draw.chance(15)
        body.apply(Softmax(dim, causal), value, stem="s")

    def _rope(self, body: Builder, pool: list[str]) -> None:
        found = [
            n
            for n in pool
            if "L" in body.dims(n)[:-1] and self.extents.get(body.dims(n)[-1], 1) % 2 == 0
        ]
        if found:
            value = self._pick(found)
            turn = rope(self.draw, self.extents.get(body.dims(value)[-1], 1))
            body.apply(turn, value, stem="r")

    def _transpose(self, body: Builder, pool: list[str]) -> None:
        value = self._pick(pool)
        inner = [d for d in body.dims(value) if d != "B"]
        if len(inner) > 1:
            pair = None if self.draw.chance(50) else tuple(self.draw.random.sample(inner, 2))
            body.apply(Transpose(pair), value, stem="t")

    def _right_input(self, body: Builder, pool: list[str]) -> None:
        """A product with an input of main, maybe transposed."""
        left = self._pick(pool)
        last = body.dims(left)[-1]
        free = [d for d in ("E", "F", "A") if d not in body.dims(left)]
        if last in (*self.rows, "B") or not free or body.parent:
            return
        new = self.draw.of(free)
        if self.draw.chance(60):
            body.apply(Product((last,)), left, self._input(body, "m", (last, new)), stem="y")
        else:
            given = self._input(body, "m", (new, last))
            turned = body.apply(Transpose(), given, stem="mt", inline=90)
            body.apply(Product((last,)), left, turned, stem="y")

    def _values(self, body: Builder, pool: list[str]) -> None:
        """A product of two computed values, over a dim that is no row."""
        for left, right in combinations(pool, 2):
            a, b = body.dims(left), body.dims(right)
            shared = [d for d in a if d in b and d not in (*self.rows, "B")]
            if len(a) == 3 and len(b) == 3 and len(shared) == 1 and a[-1] == shared[0] == b[-2]:
                body.apply(Product((shared[0],)), left, right, stem="y")
                return

    def _repeat(self, body: Builder, pool: list[str]) -> None:
        """Layers that carry one value or two, and read others."""
        draw = self.draw
        if body.parent is not None:
            return
        count = body.dim("layers", draw.number(1, 3))
        starts = list(dict.fromkeys([self._pick(pool)] + [self._pick(pool)] * draw.chance(20)))
        inner = Builder(draw, self.extents, body)
        names = {}
        for start in starts:
            names[start] = inner.fresh("c")
            inner.known[names[start]] = body.dims(start)
        for _ in range(draw.number(1, 4)):
            self._move(inner, _IN_REPEAT, self._inner_pool(inner, body, list(names.values())))
        carried = [
            Carried(names[start], start, self._end(inner, body, names[start])) for start in starts
        ]
        if len(carried) == 2 and body.dims(starts[0]) == body.dims(starts[1]) and draw.chance(15):
            first, second = carried
            carried = [Carried(first.name, first.start, second.name), second]
        loop = Repeat(count, tuple(inner.params), tuple(carried), tuple(inner.statements))
        body.give(loop, *(body.dims(start) for start in starts))

    def _inner_pool(self, inner: Builder, outer: Builder, carried: list[str]) -> list[str]:
        """Values of the body, the carried ones, and now and then one from outside."""
        known = set(outer.known)
        own = [n for n in self._pool(inner) if n not in known]
        outside = [n for n in self._pool(outer) if self.draw.chance(8)]
        return own + [n for n in carried if n not in own] + outside

    def _end(self, inner: Builder, outer: Builder, name: str) -> str:
        """What a carried value becomes: a value of its dims that the body computed from it."""
        dims = inner.dims(name)
        own = [s.results[-1] for s in inner.statements]
        same = [
            n for n in own if inner.known.get(n) == dims and not self._is_turned_param(inner, n)
        ]
        if same and self.draw.chance(60):
            step = same[-1]
        elif own and inner.dims(own[-1])[:-1] == dims[:-1] and inner.dims(own[-1])[-1] != dims[-1]:
            if self._is_turned_param(inner, own[-1]) or inner.dims(own[-1])[-1] in self.rows:
                return inner.apply(Activation("silu"), name, inline=0)
            step = inner.weighted(own[-1], inner.dims(own[-1])[-1:], dims[-1:], "down")
        else:
            step = inner.apply(Activation("silu"), name)
        return inner.apply(Binary("+"), name, step, stem="n", inline=50)

    def _block(self, body: Builder, pool: list[str]) -> None:
        """A block called once or twice, its dims under names of its own."""
        draw, value = self.draw, self._pick(pool)
        dims = body.dims(value)
        if draw.chance(50) and dims[-1] not in (*self.rows, "B"):
            block, new = self._gated(body, value)
        else:
            block, new = self._pointwise(body, value), ""
        for _ in range(draw.number(1, 2)):
            names = [(f"N{i}", d) for i, d in enumerate(dims) if d not in ("B", "L")]
            if not new:
                results = tuple(body.fresh("v") for _ in block.returns)
                others = [n for n in pool if body.dims(n) == dims]
                args = (draw.of(others),)
                body.call(Call(results, block, args, tuple(names)), *(dims for _ in results))
                continue
            rest, last = dims[:-1], dims[-1]
            result = (body.fresh("v"),)
            up, down = body.param("up", last, new), body.param("down", new, last)
            names.append(("Nf", new))
            body.call(Call(result, block, (value, up, down), tuple(names)), (*rest, last))

    def _gated(self, body: Builder, value: str) -> tuple[Block, str]:
        """value + activation(value @ up) @ down."""
        dims = body.dims(value)
        new = next(d for d in ("F", "A", "E") if d not in dims)
        own = tuple(d if d in ("B", "L") else f"N{i}" for i, d in enumerate(dims))
        inner = Builder(self.draw, self.extents)
        inner._names = body._names
        x, up, down = inner.fresh("x"), inner.fresh("u"), inner.fresh("d")
        inner.known |= {x: own, up: (own[-1], "Nf"), down: ("Nf", own[-1])}
        wide = inner.apply(Product((own[-1],)), x, up)
        act = inner.apply(Activation("silu"), wide)
        back = inner.apply(Product(("Nf",)), act, down)
        end = inner.apply(Binary("+"), x, back)
        formals = tuple(Tensor(n, inner.known[n]) for n in (x, up, down))
        steps = tuple(s for s in inner.statements if isinstance(s, Apply))
        return Block(body.fresh("ffn"), formals, steps, (end,)), new

    def _pointwise(self, body: Builder, value: str) -> Block:
        """A few elementwise steps, one result or two."""
        own = tuple(d if d in ("B", "L") else f"N{i}" for i, d in enumerate(body.dims(value)))
        inner = Builder(self.draw, self.extents)
        inner._names = body._names
        x = inner.fresh("x")
        inner.known[x] = own
        for _ in range(self.draw.number(1, 3)):
            self._move(inner, _IN_BLOCK, list(inner.known)[::-1])
        steps = tuple(s for s in inner.statements if isinstance(s, Apply))
        ends = [s.result for s in steps]
        returns = (ends[-1], ends[0]) if len(ends) > 1 and self.draw.chance(40) else (ends[-1],)
        return Block(body.fresh("piece"), (Tensor(x, own),), steps, returns)


def _spreads(small: Dims, large: Dims) -> bool:
    """Whether ``small`` is ``large`` with dims left out."""
    rest = iter(large)
    return (len(small) < len(large) and all(d in rest for d in small)) or small == large
