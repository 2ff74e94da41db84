"""Collectives as ops of their own, from mesh-level text by the driver to the fabric simulator.

Moves are exact. A sum of n values in any order is off by at most gamma(n - 1) = (n - 1) u / (1 -
(n - 1) u) of the sum of their magnitudes, u being the unit roundoff of the type. Where every core
gets a result, every core's own copy is compared.
"""

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from csl_runs import compiled, emit, run_files
from reduced import crossed

from meshc.ir.affine import Cond, Expr

EXAMPLES = Path(__file__).parents[3] / "examples"
ARCHS = ("wse2", "wse3")
KINDS = {"f16": np.float16, "f32": np.float32}
UNIT = {"f16": 2.0**-11, "f32": 2.0**-24}
MESHES = ((1, 9), (11, 1), (3, 3), (4, 6))  # rows, columns
WAYS = ("pipeline", "ring", "tree", "two_phase", "folded", *(f"k_tree:{k}" for k in range(1, 5)))
# How a tensor stands to an axis before and after: + partial, @ on the first core, / split.
STANDING = {
    "all_reduce": ("+", ""),
    "reduce": ("+", "@"),
    "reduce_scatter": ("+", "/"),
    "broadcast": ("@", ""),
    "gather": ("/", "@"),
    "scatter": ("@", "/"),
    "all_gather": ("/", ""),
    "shift": ("/", "/"),
}
DIM = {"x": "Q", "y": "R"}  # the dim that lies over an axis
WITH_DIM = ("gather", "scatter", "all_gather", "reduce_scatter", "shift")


@dataclass(frozen=True)
class Case:
    """One collective ``op`` over each of ``axes`` in turn."""

    op: str
    axes: str
    rows: int
    columns: int
    dtype: str
    arch: str
    way: str = ""
    by: int = 1

    def __str__(self) -> str:
        words = [self.op, self.way, self.axes, f"{self.rows}x{self.columns}", self.dtype, self.arch]
        return "-".join([w for w in words if w] + [f"by{self.by}"] * (self.op == "shift"))

    def size(self, axis: str) -> int:
        return self.columns if axis == "x" else self.rows

    @property
    def extents(self) -> dict[str, int]:
        """Of [P, Q, R]; parts are uneven but for a shift, which asks for equal ones."""
        even = self.op == "shift"
        q = 2 * self.columns if even else self.columns + 3
        r = self.rows if even else 2 * self.rows + 1
        return {"P": 3, "Q": q, "R": r, "X": self.columns, "Y": self.rows}

    @property
    def summed(self) -> str:
        """Axes whose cores have terms of a sum."""
        return self.axes if STANDING[self.op][0] == "+" else ""

    def layout(self, stands: dict[str, str], terms: str = "") -> str:
        """A type: the tensor with its stand to each axis, and a dim of ``terms`` for each axis
        whose terms are not yet added up."""
        splits = [(a, DIM[a]) for a in "xy" if stands[a] == "/"] + [(a, a.upper()) for a in terms]
        words = [f"{dim}_{a}:{-(-self.extents[dim] // self.size(a))}" for a, dim in splits]
        words += [f"{mark}{a}" for mark in "+@" for a in "xy" if stands[a] == mark]
        dims = ", ".join(["P", "Q", "R", *(a.upper() for a in reversed(terms))])
        return f"{self.dtype}[{dims}]<{' '.join(words)}>"

    @property
    def text(self) -> str:
        """The module: terms are added up on each core, then over the cores of an axis."""
        before, after = STANDING[self.op]
        stands = {a: ("" if self.summed else before) if a in self.axes else "/" for a in "xy"}
        given, terms, value, lines = self.layout(stands, self.summed), self.summed, "%v", []
        for axis in self.axes:
            if self.summed:
                terms = terms[1:]
                stands[axis] = "+"
                dim = axis.upper()
                part = self.layout(stands, terms)
                lines.append(f"%part_{axis} = mesh.row_sum {value} {{dim = {dim}}} : {part}")
                value = f"%part_{axis}"
            stands[axis] = after
            words = [f"axis = {axis}"] + [f"dim = {DIM[axis]}"] * (self.op in WITH_DIM)
            words += [f"by = {self.by}"] * (self.op == "shift")
            kind = self.layout(stands, terms)
            lines.append(f"%r_{axis} = mesh.{self.op} {value} {{{', '.join(words)}}} : {kind}")
            value = f"%r_{axis}"
        dims = ", ".join(f"{name} = {extent}" for name, extent in self.extents.items())
        body = "\n    ".join(lines)
        return f"""module @collective level(mesh) {{
  dims {dims}
  options dtype = {self.dtype}, accumulate = {self.dtype}
  mesh y = {self.rows}, x = {self.columns}
  func @main(in %v: {given}) -> ({self.layout(stands, terms)}) {{
    {body}
    mesh.return {value}
  }}
}}
"""

    def expected(self, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The result, and how far it may be off."""
        exact = v.astype(np.float64)
        if self.summed:
            over = tuple(range(3, v.ndim))
            n = np.prod([self.size(a) for a in self.axes]) - 1
            unit = n * UNIT[self.dtype]
            return exact.sum(over), unit / (1 - unit) * np.abs(exact).sum(over)
        if self.op == "shift":
            for axis in self.axes:
                place = 1 if axis == "x" else 2
                part = self.extents[DIM[axis]] // self.size(axis)
                exact = np.roll(exact, -self.by * part, axis=place)
        return exact, np.zeros_like(exact)


def on_every_core(module, case):
    """Let the host read each copy of the result along axes on which all cores have it."""
    (port,) = (p for p in module.ports if p.direction == "out")
    copies = case.axes if STANDING[case.op][1] == "" else ""
    roots = case.axes if STANDING[case.op][1] == "@" else ""
    place = module.ports.index(port)
    dims = (*port.tensor.dims, *(a.upper() for a in copies))
    module.ports[place] = replace(
        port,
        tensor=replace(port.tensor, dims=dims),
        element=(*port.element, *(Expr.var(a) for a in copies)),
        where=Cond.all(Cond.eq(Expr.var(f"rank_{a}"), 0) for a in roots) if roots else None,
    )
    return copies


def check(case, folder, monkeypatch):
    algo = (f"all_reduce={case.way}",) if case.way else ()
    modules = compiled(case.text, folder, "collective.meshir", device=case.arch, algo=algo)
    copies = on_every_core(modules["main"], case)
    shape = [case.extents[d] for d in ("P", "Q", "R", *(a.upper() for a in reversed(case.summed)))]
    v = np.random.default_rng(sum(shape)).standard_normal(shape).astype(KINDS[case.dtype])
    found, _ = run_files(emit(modules), {"v": v}, folder, monkeypatch)
    (result,) = found.values()
    exact, bound = case.expected(v)
    assert result.shape == (*exact.shape, *(case.size(a) for a in copies))
    each = result.reshape(*exact.shape, -1)
    assert np.all(np.abs(each - exact[..., None]) <= bound[..., None])


def variants():
    """What is done: collective, its algorithm, how far."""
    for op in STANDING:
        ways = [w for w in WAYS if op == "all_reduce" or w != "ring"]
        if op in ("all_reduce", "reduce"):
            yield from ((op, way, 1) for way in ways)
        else:
            yield from ((op, "", by) for by in ((1, -1, 2) if op == "shift" else (1,)))


def every_case():
    """All cases; those of CI, in which wafers, meshes, axes and types take turns, are not slow."""
    found = []
    for number, ((op, way, by), arch) in enumerate(product(variants(), ARCHS)):
        turn = number // len(ARCHS) % len(ARCHS)
        places = list(product(KINDS, ("x", "y", "xy"), MESHES))
        for place, (dtype, axes, (rows, columns)) in enumerate(places):
            case = Case(op, axes, rows, columns, dtype, arch, way, by)
            in_ci = place == number * 7 % len(places) and arch == ARCHS[turn]
            marks = [] if in_ci else [pytest.mark.slow]
            found.append(pytest.param(case, id=str(case), marks=marks))
    return found


@pytest.mark.parametrize("case", every_case())
def test_collective(case, tmp_path, monkeypatch):
    check(case, tmp_path, monkeypatch)


@pytest.mark.parametrize("dim", ["P", "Q", "R"])
@pytest.mark.parametrize("op", ["row_sum", "square_sum"])
def test_sums_over_any_dim(op, dim, tmp_path, monkeypatch):
    """On each core, of a dim before the last one too."""
    rest = ", ".join(d for d in "PQR" if d != dim)
    text = f"""module @sums level(mesh) {{
  dims P = 3, Q = 4, R = 5
  options dtype = f32, accumulate = f32
  mesh y = 1, x = 2
  func @main(in %v: f32[P, Q, R]<>) -> (f32[{rest}]<>) {{
    %r = mesh.{op} %v {{dim = {dim}}} : f32[{rest}]<>
    mesh.return %r
  }}
}}
"""
    modules = compiled(text, tmp_path, "sums.meshir", device="wse2")
    v = np.random.default_rng(0).integers(-9, 10, (3, 4, 5)).astype(np.float32)
    found, _ = run_files(emit(modules), {"v": v}, tmp_path, monkeypatch)
    terms = v if op == "row_sum" else v * v
    np.testing.assert_array_equal(found["r"], terms.sum("PQR".index(dim)))


TWO_SUMS = """module @two level(mesh){holds} {{
  dims P = {p}, Q = {q}, X = {columns}
  options dtype = f32, accumulate = f32
  mesh y = 1, x = {columns}{interleaved}
  func @main(in %v: f32[P, X]<X_x:1>, in %w: f32[Q, X]<X_x:1>) -> (f32[P]<>, f32[Q]<>) {{
    %a = mesh.row_sum %v {{dim = X}} : f32[P]<+x>
    %s = mesh.all_reduce %a {{axis = x{first}}} : f32[P]<>
    %b = mesh.row_sum %w {{dim = X}} : f32[Q]<+x>
    %t = mesh.all_reduce %b {{axis = x{second}}} : f32[Q]<>
    mesh.return %s, %t
  }}
}}
"""
GIVEN = " holds(collectives_selected, padding_safe, partitioned, placed)"


def check_two_sums(text, folder, monkeypatch, arch):
    """Both sums are exact; the channels of the program."""
    modules = compiled(text, folder, "two.meshir", device=arch)
    tensors, wanted = {}, {}
    for name, result in (("v", "s"), ("w", "t")):
        (port,) = (p for p in modules["main"].ports if p.name == name)
        shape = port.tensor.shape(modules["main"].dims)
        tensors[name] = np.random.default_rng(2).integers(-9, 10, shape).astype(np.float32)
        wanted[result] = tensors[name].sum(1)
    found, _ = run_files(emit(modules), tensors, folder, monkeypatch)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)
    return [channel.name for channel in modules["main"].channels]


@pytest.mark.parametrize(
    ("sums", "arch"),
    crossed(
        [
            ([4, 3], [12], 3),
            ([3, 4], [4, 3], 4),
            ([2, 2, 3], [6, 2], 5),
            ([12], "ring", 3),
        ],
        ARCHS,
    ),
)
def test_two_algorithms_on_one_axis(sums, arch, tmp_path, monkeypatch):
    """Chains of one stride are one channel, whatever the groups."""
    first, second, channels = sums
    words = [
        ", algo = ring" if way == "ring" else f", algo = k_tree, groups = {way}"
        for way in (first, second)
    ]
    text = TWO_SUMS.format(
        p=3, q=14, columns=12, first=words[0], second=words[1], holds=GIVEN,
        interleaved=" interleaved",
    )  # fmt: skip
    assert len(check_two_sums(text, tmp_path, monkeypatch, arch)) == channels


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_one_word_and_many_take_different_trees(arch, tmp_path, monkeypatch):
    """By cost: one word takes a folded tree, many go through the chain of neighbours alone."""
    text = TWO_SUMS.format(
        p=1, q=600, columns=36, first="", second="", holds="", interleaved=""
    )  # fmt: skip
    names = check_two_sums(text, tmp_path, monkeypatch, arch)
    assert names == ["fold_x_1", "fold_x_5", "cross_x", "out_x", "chain_x_1", "cast_x"]


EXPECTED = {
    "column_sums": lambda v: {"sums": v.sum(2)},
    "all_gather": lambda v: {"rows": v, "columns": v.sum(1)},
    "scatter": lambda v: {"all": np.roll(v, -3)},
    "relay": lambda v: {"sum": v.sum(0)},
}


@pytest.mark.parametrize(("name", "arch"), crossed([*EXPECTED], ARCHS))
def test_examples(name, arch, tmp_path, monkeypatch):
    path = EXAMPLES / f"{name}.meshir"
    modules = compiled(path.read_text(encoding="utf-8"), tmp_path, path.name, device=arch)
    (port,) = (p for p in modules["main"].ports if p.direction == "in")
    shape = port.tensor.shape(modules["main"].dims)
    v = np.random.default_rng(1).integers(-9, 10, shape).astype(np.float32)
    found, _ = run_files(emit(modules), {"v": v}, tmp_path, monkeypatch)
    wanted = EXPECTED[name](v)
    assert sorted(found) == sorted(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)
