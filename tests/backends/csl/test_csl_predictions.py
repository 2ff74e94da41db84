"""Predicted cycles against those of the simulator, on programs that calibrate nothing."""

import json
import tomllib
from importlib import resources

import numpy as np
import pytest
from csl_runs import emit, run_files, tile_text
from reduced import crossed, each

from meshc.analysis.csl.instruction_costs import CALLED, OFFSET, Costs
from meshc.analysis.csl.strided_windows import Dim, Window
from meshc.backends.csl.kernels.table import Kernels
from meshc.backends.csl.spelling.expressions import Spelling, expression
from meshc.backends.csl.spelling.memory_dsds import Descriptors
from meshc.backends.csl.spelling.names import Names
from meshc.backends.csl.timing.prices import Prices
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.devices import device
from meshc.devices.keys import KINDS
from meshc.driver.questions import Question, tile_module
from meshc.ir.affine import Cond, Expr
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value
from meshc.sim import timing

HELD_OUT = [
    ("gemm", "cyclic_shift", (16, 8, 12), "4x4", "wse2", "f16", "f16"),
    ("gemm", "cyclic_shift", (18, 48, 72), "6x4", "wse3", "f16", "f32"),
    ("gemm", "cannon", (24, 18, 48), "3x3", "wse3", "f32", "f32"),
    ("gemm", "summa", (24, 8, 16), "4x4", "wse2", "f32", "f32"),
    ("gemm", "allgather", (8, 6, 12), "2x2", "wse3", "f32", "f32"),
    ("gemm", "transposed", (15, 10, 30), "5x5", "wse2", "f16", "f16"),
    ("gemv", "pipeline", (1, 96, 20), "2x3", "wse2", "f32", "f32"),
    ("gemv", "ring", (1, 32, 8), "1x4", "wse2", "f32", "f32"),
    ("gemv", "ring", (1, 6, 128), "2x6", "wse3", "f16", "f16"),
    ("gemv", "k_tree:2", (1, 256, 32), "1x16", "wse2", "f16", "f16"),
    ("gemv", "tree", (1, 64, 100), "1x8", "wse3", "f32", "f32"),
]


@pytest.mark.parametrize(
    ("kind", "algo", "sizes", "mesh", "arch", "dtype", "accumulate"),
    each(HELD_OUT, 2),
    ids=[f"{algo}-{mesh}-{arch}-{dtype}" for _, algo, _, mesh, arch, dtype, _ in HELD_OUT],
)
def test_within_15_percent(kind, algo, sizes, mesh, arch, dtype, accumulate, tmp_path, monkeypatch):
    question = Question(*sizes, mesh, arch, dtype, accumulate)
    files = emit({"main": tile_module(question, kind, algo)})
    facts = json.loads(files["report.json"])
    rng = np.random.default_rng(1)
    tensors = {name: rng.random(shape, np.float32) for name, shape in facts["inputs"].items()}
    _, cycles = run_files(files, tensors, tmp_path, monkeypatch)
    assert facts["predicted_cycles"] == pytest.approx(cycles, rel=0.15)


@pytest.mark.parametrize(
    ("side", "tile", "best"),
    each([(3, 2, "allgather"), (3, 8, "allgather"), (4, 4, "allgather")], 3),
)
def test_the_best_algorithm_is_predicted(side, tile, best, tmp_path, monkeypatch):
    """Among the algorithms of a product that the cores align themselves."""
    n = tile * side
    question = Question(n, n, n, f"{side}x{side}", "wse2", "f16", "f16")
    predicted, measured = {}, {}
    for algo in ("cyclic_shift", "cannon", "summa", "allgather"):
        files = emit({"main": tile_module(question, "gemm", algo)})
        facts = json.loads(files["report.json"])
        tensors = {name: np.ones(shape, np.float32) for name, shape in facts["inputs"].items()}
        folder = tmp_path / algo
        folder.mkdir()
        predicted[algo] = facts["predicted_cycles"]
        _, measured[algo] = run_files(files, tensors, folder, monkeypatch)
    assert min(predicted, key=predicted.get) == min(measured, key=measured.get) == best


NAMES = Names()
SPELL = Spelling(lambda name: f"my_{name}")
KERNELS = Kernels(NAMES, Descriptors(NAMES, SPELL, {}), Costs(device("wse2")))
PRICES = Prices(KERNELS, None)
T, Y = Expr.var("t"), Expr.var("y")


@pytest.mark.parametrize(
    ("value", "local", "cycles"),
    [
        (T, (), 1),
        (T, ("t",), 0),
        ((Y + T) % 4 * 2, (), 5),
        ((Y + T) % 4 * 2, ("t",), 4),
        (Expr.const(7), (), 0),
    ],
    ids=str,
)
def test_scalar_code_costs_its_loads_and_operations(value, local, cycles):
    assert value_cycles(value, local) == cycles


def value_cycles(value, local=()):
    return KERNELS.cycles_of([csl.const("value", expression(value, SPELL))], local)[0]


def test_helpers_and_branches():
    assert value_cycles((Y - T) % 4) > CALLED + 20
    assert PRICES.test(Cond.ge(Y, T), ()) == 2 + 1 + 2


def test_descriptors_that_do_not_move_cost_nothing():
    buffer = Value("v", BufferType(DType.F32, (8,)))
    still = Window(buffer, DType.F32, Expr.const(3), (Dim(2, 1),))
    assert PRICES.address(still, ()) == 0
    assert PRICES.address(still.moved(T * 2), ()) == OFFSET + 2


BANKS = {
    "two buffers": "tile.add %a, %a, %b",
    "two parts of one": "tile.mul %a[0 +: 20], %a[0 +: 20], %a[20 +: 20]",
    "parts in other bank groups": "tile.mul %a[0 +: 19], %a[0 +: 19], %a[21 +: 19]",
    "sums that are factors too": """tile.gemm %c, %d, %w {accumulate = false, transposed = false}
    tile.gemm %d, %c, %w {accumulate = false, transposed = false}""",
}


@pytest.mark.parametrize(("name", "arch"), crossed([*BANKS], ["wse2", "wse3"]))
def test_f32_sources_that_meet_in_a_bank_group(name, arch, tmp_path, monkeypatch):
    sizes = {"a": "40", "b": "40", "c": "1, 12", "d": "1, 12", "w": "12, 12"}
    given = {name: f"f32[{size}]" for name, size in sizes.items()}
    dims = {name: ("N",) if "," not in size else ("R", "K") for name, size in sizes.items()}
    dims["w"] = ("K", "M")
    lanes = {name: "i" if len(of) == 1 else "i, j" for name, of in dims.items()}
    text = "\n".join(
        [
            "module @banks level(tile) holds(channels_matched) {",
            "  dims N = 40, R = 1, K = 12, M = 12",
            "  mesh y = 1, x = 1",
            *(f"  buffer %{name} : {kind} {{role = in}}" for name, kind in given.items()),
            *(
                f"  port @{name} in f32[{', '.join(of)}] : %{name} "
                f"{{lanes = [{lanes[name]}], element = [{lanes[name]}]}}"
                for name, of in dims.items()
            ),
            "  port @found out f32[N] : %a {lanes = [i], element = [i]}",
            f"  program @main {{\n    {BANKS[name]}\n  }}\n}}\n",
        ]
    )
    files = emit({"main": tile_text(text, arch)})
    rng = np.random.default_rng(1)
    tensors = {
        name: rng.random(tuple(map(int, size.split(",")))).astype(np.float32)
        for name, size in sizes.items()
    }
    _, cycles = run_files(files, tensors, tmp_path, monkeypatch)
    assert json.loads(files["report.json"])["predicted_cycles"] == pytest.approx(cycles, abs=2)


def test_cycles_of_statements_have_a_kind_and_a_source():
    """The simulator's are those of a file of its own, which shares no code; where both count the
    same, they agree."""
    text = (resources.files("meshc.devices") / "csl.toml").read_text()
    entries = tomllib.loads(text)
    assert {entry["kind"] for entry in entries.values()} <= {*KINDS}
    assert all(entry["source"] for entry in entries.values())
    scalar = timing.numbers("vendor-simulator", "wse2", "scalar")
    same = {"branch": "branch", "call": "call", "effect": "effect", "divide": "divide"}
    same |= {"real_divide": "divide_f32", "to_integer": "to_integer", "unrolled": "unrolled"}
    same |= {"descriptor": "descriptor", "grid_descriptor": "grid_descriptor", "number": "scalar"}
    same |= {"constant_load": "load_constant", "rebased": "register_base", "back": "back"}
    same |= {"routine": "routine", "timestamp": "timestamp"}
    assert {ours: entries[ours]["value"] for ours in same} == {
        ours: scalar[theirs] for ours, theirs in same.items()
    }
