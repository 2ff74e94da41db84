"""Every product by every algorithm, on every mesh, agrees with NumPy under bounded queues.

The full sweep is marked ``slow``. Of it CI runs a form in which each algorithm occurs with each
architecture and type, while meshes, sizes and the rest take turns.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from csl_runs import compiled, emit, run_files
from reduced import crossed

from meshc.support.diagnostics import MeshcError

ARCHS = ("wse2", "wse3")
TYPES = (("f16", "f16"), ("f16", "f32"), ("f32", "f32"))  # of operands and of sums
MESHES = ("2x2", "3x3", "4x4", "5x5", "8x8", "4x6", "16x16")
GEMM = ("cyclic_shift", "cannon", "summa", "allgather", "transposed")
# Primes; one row more than some meshes have, and fewer columns than all but one; one column.
GEMM_SIZES = ((19, 23, 17), (3, 29, 2), (5, 13, 1))
MIXED = ("f16", "f32")
GEMV = ("pipeline", "ring", "tree", "two_phase", *(f"k_tree:{k}" for k in range(1, 5)))
GEMV_SIZES = ((1, 37, 19), (1, 3, 5))
RESULTS = ("everywhere", "roots")
# What does not fit: memory (M) or queues and colors (R).
REFUSED = [
    *((algo, MIXED, "4x4", (256, 512, 256), "does-not-fit", "M") for algo in GEMM),
    ("allgather", MIXED, "4x4", (160, 256, 160), "does-not-fit", "M"),
    ("tree", MIXED, "128x128", (1, 128, 4), "too-many-queues", "R"),
    ("ring", MIXED, "2x2", (1, 512, 256), "does-not-fit", "M"),
]
UNIT = {"f16": 2.0**-11, "f32": 2.0**-24}
KIND = {"f16": np.float16, "f32": np.float32}
PROGRAM = """\
model product(M={m}, K={k}, N={n}) {{
  weights f32  accumulate {accumulate}
{param}  main({inputs}) -> [{row}N] {{ return x @ {right} }}
}}
"""


@dataclass(frozen=True)
class Case:
    """One product ``[m, k] @ [k, n]``; ``given`` says whether its right operand is an input."""

    algo: str
    arch: str
    types: tuple[str, str]
    mesh: str
    size: tuple[int, int, int]
    result: str = ""
    given: bool = False

    def __str__(self) -> str:
        size = "x".join(map(str, self.size))
        kind = f"{self.types[0]}+{self.types[1]}"
        words = [self.algo, self.arch, kind, self.mesh, size, self.result]
        return "-".join([w for w in words if w] + ["given"] * self.given)

    @property
    def program(self) -> str:
        """The text of the model. One row is a vector."""
        m, k, n = self.size
        turned = self.algo == "transposed"
        right = "w[N, K]" if turned else "w[K, N]"
        row = "M, " if m > 1 else ""
        return PROGRAM.format(
            m=m,
            k=k,
            n=n,
            accumulate=self.types[1],
            row=row,
            param="" if self.given else f"  param {right}\n",
            inputs=f"x[{row}K], {right}" if self.given else f"x[{row}K]",
            right="transpose(w)" if turned else "w",
        )

    def options(self) -> dict[str, object]:
        """What ``meshc compile`` is told."""
        op = "gemm" if self.algo in GEMM else "all_reduce"
        algo = (f"{op}={self.algo}",)
        return {
            "device": self.arch,
            "mesh": self.mesh,
            "dtype": self.types[0],
            "algo": algo,
            "result": self.result,
        }


def bound(x, w, exact, types, result):
    """Rounding of a sum of k products in any order: each product is rounded once and passes at
    most k - 1 additions, so gamma(k) = k u / (1 - k u) per unit of |x||w|, u being the unit
    roundoff of the sums; one rounding to the type of the result; and half the smallest subnormal
    number of f16 for each operation that may end below its normal numbers."""
    k = x.shape[-1]
    unit = k * UNIT[types[1]]
    spread = np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64)
    return unit / (1 - unit) * spread + UNIT[result] * (np.abs(exact) + spread * unit) + k * 2**-25


def every_gemm():
    for number, (algo, arch, types, mesh, size) in enumerate(
        product(GEMM, ARCHS, TYPES, MESHES, GEMM_SIZES)
    ):
        given = algo == "transposed" or number % 2 == 1
        yield Case(algo, arch, types, mesh, size, "", given)


def every_gemv():
    for *parts, size, result in product(GEMV, ARCHS, TYPES, MESHES, GEMV_SIZES, RESULTS):
        yield Case(*parts, size, result, size == GEMV_SIZES[1])


def marked(cases, rest):
    """``cases`` as parameters; those of CI, one of each ``rest`` in turn, are not slow."""
    found = []
    for number, case in enumerate(cases):
        turn, place = divmod(number, rest)
        marks = [] if place == turn * 5 % rest else [pytest.mark.slow]
        found.append(pytest.param(case, id=str(case), marks=marks))
    return found


def check(case, folder, monkeypatch):
    m, k, n = case.size
    modules = compiled(case.program, folder, **case.options())
    rng = np.random.default_rng(m * k + n)
    kind = KIND[case.types[0]]
    x = rng.standard_normal((m, k) if m > 1 else k).astype(kind)
    w = rng.standard_normal((k, n)).astype(kind)
    tensors = {"x": x, "w": w.T if case.algo == "transposed" else w}
    found, _ = run_files(emit(modules), tensors, folder, monkeypatch)
    assert list(found) == ["result"]
    result = found["result"]
    exact = x.astype(np.float64) @ w.astype(np.float64)
    assert result.shape == exact.shape
    given = {np.float16: "f16", np.float32: "f32"}[result.dtype.type]
    assert np.all(np.abs(result - exact) <= bound(x, w, exact, case.types, given))


@pytest.mark.every_case
@pytest.mark.parametrize(("refused", "arch"), crossed(REFUSED, ARCHS))
def test_what_is_refused(refused, arch, tmp_path):
    """With the letter of PLMR that is violated, before anything is emitted."""
    algo, types, mesh, size, code, letter = refused
    case = Case(algo, arch, types, mesh, size, given=algo == "transposed")
    with pytest.raises(MeshcError) as caught:
        emit(compiled(case.program, tmp_path, **case.options()))
    (found,) = caught.value.diagnostics
    assert found.code == code
    assert algo != "tree" or "tree does not fit" in found.message
    assert not letter or any(f"violates {letter} of PLMR" in note for note in found.notes)


@pytest.mark.parametrize("case", marked(every_gemm(), 4 * len(MESHES) * len(GEMM_SIZES)))
def test_gemm(case, tmp_path, monkeypatch):
    check(case, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "case", marked(every_gemv(), 4 * len(MESHES) * len(GEMV_SIZES) * len(RESULTS))
)
def test_gemv(case, tmp_path, monkeypatch):
    check(case, tmp_path, monkeypatch)
