"""Attention over tiles on tensor cores in the executor: numbers, masks, banks, races, registers."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from kernel_reference import from_kind, swizzled, to_kind

from meshc.analysis.cuda.blocks import THREADS
from meshc.backends.cuda.executor import CXX, QUICK, WATCHED, Grid, Library, Mode, modes
from meshc.backends.cuda.toolchain.toolkit import compile_cubin

needs_cxx = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
KERNEL = "attention_tile"
MOST_REGISTERS = 168  # at which blocks of nine warps still launch
# Of the highest output: queries and weights are rounded to 11 and 8 bits, or are two such values.
BOUNDS = {"f16": 2e-3, "bf16": 1.5e-2}
TWICE_BOUNDS = {"f16": 4e-6, "bf16": 2e-5}


@dataclass(frozen=True)
class Shape:
    """Of a kernel; values are lanes of the keys where the lanes differ. Queries and weights are two
    values each, or one."""

    kind: str
    queries: int
    key_lanes: int
    value_lanes: int
    tokens: int
    twice: bool = False

    @property
    def bound(self):
        """Of the highest output."""
        return (TWICE_BOUNDS if self.twice else BOUNDS)[self.kind]

    @property
    def latent(self):
        """Whether there is one row per token."""
        return self.key_lanes != self.value_lanes

    @property
    def value_row(self):
        """Lanes of the rows that values lie in."""
        return self.key_lanes if self.latent else self.value_lanes

    @property
    def row(self):
        """Values of a token."""
        return self.key_lanes + (0 if self.latent else self.value_lanes)

    @property
    def text(self):
        """The kernel."""
        names = ("TYPE", "QUERIES", "KEY_LANES", "VALUE_LANES", "TOKENS", "VALUE_ROW", "TWICE")
        values = (self.kind, self.queries, self.key_lanes, self.value_lanes, self.tokens,
                  self.value_row, int(self.twice))  # fmt: skip
        defines = [
            f"#define THE_{name} {value}\n" for name, value in zip(names, values, strict=True)
        ]
        text = (Path(__file__).parent / "attention_tile.cu").read_text()
        return "".join(defines) + text

    @property
    def shared_bytes(self):
        """What the kernel lays out: at least as much as its arena needs."""
        padded = -(-self.queries // 16) * 16 * (2 if self.twice else 1)
        work = padded * (4 * 4 * (self.tokens + 8) + 2 * self.tokens + 4)
        given = 2 * padded * self.key_lanes + 2 * self.row * (2 * self.tokens + 16)
        return min(work + given + 4 * self.queries * (self.value_lanes + 2) + 384, 232448)


@dataclass(frozen=True)
class Case:
    """Cached and new tokens; ``per_token`` queries for each new token, or all for the last one."""

    cached: int
    new: int = 1
    per_token: int = 0
    window: int = 0


DECODE = Case(1), Case(15), Case(150), Case(170, window=40), Case(128, window=3), Case(0)
CASES = {
    Shape("f16", 1, 64, 64, 128): DECODE,
    Shape("bf16", 8, 128, 128, 64): DECODE,
    Shape("f16", 16, 96, 96, 64): (*DECODE, Case(70, 16, 1), Case(70, 16, 1, 9)),
    Shape("f16", 20, 256, 256, 32): (Case(75), Case(33, 5, 4), Case(0, 5, 4, 2)),
    Shape("bf16", 16, 576, 512, 32): (Case(70), Case(33), Case(0)),
    Shape("f16", 20, 576, 512, 16): (Case(37), Case(20, 5, 4)),
    Shape("bf16", 64, 64, 64, 128): (Case(150, 16, 4), Case(150, 16, 4, 30), Case(0, 16, 4)),
    Shape("f16", 64, 96, 96, 64): (Case(80, 16, 4),),
    Shape("f16", 64, 128, 128, 64): (Case(80, 16, 4), Case(20, 16, 4, 5)),
    Shape("bf16", 40, 256, 256, 32): (Case(40, 16, 3),),
    Shape("f16", 16, 576, 512, 16, True): (Case(37), Case(16), Case(0)),
    Shape("bf16", 5, 80, 64, 64, True): (Case(70), Case(65, window=9), Case(0)),
    Shape("f16", 12, 96, 64, 16, True): (Case(40),),
}


def chosen(stride=1):
    """All cases, of which one of every ``stride`` runs in CI."""
    return [
        pytest.param(
            s,
            id=f"{s.kind}-{s.queries}-{s.key_lanes}-{s.value_lanes}" + "-twice" * s.twice,
            marks=pytest.mark.slow if number % stride else (),
        )
        for number, s in enumerate(CASES)
    ]


CHOSEN = chosen()
# Without queries for warps of their own, with them, with shared scores of one row.
FEW = [CHOSEN[1], CHOSEN[5], CHOSEN[7], CHOSEN[11]]


@cache
def library(shape, toolchain):
    return Library(shape.text, toolchain=toolchain)


@dataclass
class Inputs:
    """Random ones; ``fresh`` rows are those of the new tokens."""

    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    fresh: np.ndarray
    scale: float


def make_inputs(shape, case, seed=0):
    rng = np.random.default_rng(seed)
    rows = to_kind(rng.standard_normal((case.cached + case.new, shape.row)), shape.kind)
    cached = rows[: case.cached]
    places = np.arange(case.cached)
    keys = swizzled(cached[:, : shape.key_lanes], places)
    values = swizzled(cached[:, shape.key_lanes :], places) if shape.row > shape.key_lanes else keys
    queries = rng.standard_normal((shape.queries, shape.key_lanes)).astype(np.float32) * 2
    return rows, Inputs(queries, keys, values, rows[case.cached :].copy(), shape.key_lanes**-0.5)


def arguments(shape, case, inputs):
    """What the kernel reads, in its order."""
    return [
        inputs.queries, inputs.keys, inputs.values, inputs.fresh, np.int32(case.cached),
        np.int32(case.new), np.int32(case.per_token or shape.queries), np.int32(case.window),
        np.float32(inputs.scale * np.log2(np.e)),
    ]  # fmt: skip


def run(shape, case, inputs, mode, lint=False, toolchain=QUICK):
    out = np.full((shape.queries, shape.value_lanes), np.nan, np.float32)
    most, weights = (np.full(shape.queries, np.nan, np.float32) for _ in range(2))
    given = [*arguments(shape, case, inputs), out, most, weights]
    grid = Grid(1, THREADS, 1, shape.shared_bytes)
    counts = library(shape, toolchain).run(KERNEL, grid, given, mode, lint)
    return out, most, weights, counts


def expected(shape, case, rows, inputs):
    """Outputs and log2 of the sum of exponentials, in float64."""
    rows = from_kind(rows, shape.kind)
    keys = rows[:, : shape.key_lanes]
    values = (rows if shape.latent else rows[:, shape.key_lanes :])[:, : shape.value_lanes]
    queries = inputs.queries.astype(np.float64)
    if not shape.twice:
        queries = from_kind(to_kind(inputs.queries, shape.kind), shape.kind)
    scores = queries @ keys.T * inputs.scale
    query, token = np.ogrid[: shape.queries, : len(rows)]
    position = case.cached + query // (case.per_token or shape.queries)
    seen = token <= position
    if case.window:
        seen &= token > position - case.window
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(1, keepdims=True)
    return weights @ values / total, ((top + np.log(total)) / np.log(2))[:, 0]


@needs_cxx
@pytest.mark.parametrize("shape", chosen(2))
def test_attention_equals_float64(shape):
    for case in CASES[shape]:
        rows, inputs = make_inputs(shape, case)
        out, most, weights, counts = run(shape, case, inputs, Mode("random", True), lint=True)
        exact, logs = expected(shape, case, rows, inputs)
        bound = shape.bound
        assert np.abs(out / weights[:, None] - exact).max() < bound * np.abs(exact).max(), case
        assert np.abs(most + np.log2(weights) - logs).max() < bound, case
        assert counts.shared_load_cycles == counts.shared_loads > 0, case


@needs_cxx
@pytest.mark.parametrize("shape", FEW)
def test_all_modes_give_the_same_bits(shape):
    case = CASES[shape][-1]
    _, inputs = make_inputs(shape, case)
    found = {b"".join(a.tobytes() for a in run(shape, case, inputs, m)[:3]) for m in modes()}
    assert len(found) == 1


@needs_cxx
def test_queries_that_see_nothing_have_no_weight():
    """A block of a cluster may have no token that a query sees; joining then takes nothing."""
    shape, case = CHOSEN[1].values[0], Case(70, new=0, window=1)
    _, inputs = make_inputs(shape, case)
    out, most, weights, _ = run(shape, case, inputs, Mode())
    assert (out == 0).all()
    assert (weights == 0).all()
    assert (most == np.float32(-1e30)).all()


@needs_cxx
@pytest.mark.parametrize(
    "shape",
    [
        FEW[0],
        FEW[3],
        *(pytest.param(*p.values, id=p.id, marks=pytest.mark.slow) for p in FEW[1:3]),
    ],
)
def test_there_are_no_races(shape):
    case = CASES[shape][-2 if shape.queries < 20 else -1]
    _, inputs = make_inputs(shape, case)
    for mode in (Mode(), Mode("random", True, 3)):
        run(shape, case, inputs, mode, toolchain=WATCHED)


@pytest.mark.cuda_compiler
@pytest.mark.parametrize("shape", chosen(3))
def test_a_block_of_nine_warps_has_the_registers(shape):
    needs = compile_cubin(shape.text).kernels[KERNEL]
    assert (needs.spill_bytes, needs.stack_bytes) == (0, 0)
    assert needs.registers <= MOST_REGISTERS
