"""Clocks of slabs and classes are those of the walk core by core, and no bound is above them.

Drawn are decode steps and prompts of small llamas on meshes up to 128x128, in regions and for
batches, products and sums by every algorithm, and tile programs of any statements.
"""

import json
import random

import numpy as np
import pytest
from csl_runs import emit, tile_text
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import Generator
from reduced import each
from walked_clocks import Timing as Walk

from meshc.backends.csl.timing import breakdown
from meshc.backends.csl.timing.classes import Classes
from meshc.backends.csl.timing.clocks import Timing
from meshc.backends.csl.timing.lower_bound import Bounds
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.driver.questions import GEMMS, GEMVS, Question, tile_module
from meshc.support.diagnostics import Diagnostics, MeshcError

NO_ROOM = {
    *("does-not-fit", "csl-memory-full", "csl-regions", "csl-queues", "csl-tasks"),
    *("csl-extent", "too-many-routes", "too-many-queues", "unsupported-batch"),
}
"""Refusals of a drawn program for which another one is drawn."""


@pytest.fixture
def walked(monkeypatch):
    """Clocks are compared with the walk and the bound whenever a program is emitted; by how many
    cores each of the programs had."""
    return walk_beside(monkeypatch)


def walk_beside(monkeypatch):
    seen = []

    class Beside(Timing):
        def __init__(self, module, prices, cases, calls=(), told=()):
            super().__init__(module, prices, cases, calls, dict(told))
            if isinstance(prices, Bounds):
                return
            walk = Walk(module, prices.kernels, calls, cases.grouped, dict(told))
            np.testing.assert_array_equal(self.clock, walk.clock)
            assert sum(self.spent.values()) == self.last == self.cycles
            bound = Timing(module, Bounds(prices.kernels, cases), cases, calls, dict(told))
            assert (bound.clock <= self.clock).all()
            seen.append(self.clock.size)

    monkeypatch.setattr(breakdown, "Timing", Beside)
    return seen


class Drawn:
    """Programs by a number: model or product, mesh and options."""

    def __init__(self, number):
        self.dice = random.Random(f"clocks {number}")
        self.number = number

    def side(self):
        """Mostly few cores: the walk takes as long as their number times their lines."""
        return self.dice.choice((2, 3, 5, 8, 9, 12, 16, 24, 31, 40, 64, 96, 128))

    def emit(self, folder):
        """Emit the first of the drawn programs for which there is room; what it is."""
        for _ in range(60):
            of = self.product if self.number % 3 == 0 else self.model
            try:
                return of(folder)
            except MeshcError as refusal:
                assert {d.code for d in refusal.diagnostics} <= NO_ROOM, refusal
        raise AssertionError("there was never room")

    def product(self, folder):
        kind, algos = self.dice.choice((("gemm", GEMMS), ("gemv", GEMVS)))
        rows, columns = self.side(), self.side()
        algo = algos[self.number // 3 % len(algos)]
        square = kind == "gemm" and algo in ("cannon", "summa", "transposed")
        columns = rows if square else columns
        tile = self.dice.randint(1, 4)
        sizes = 1 if kind == "gemv" else rows * tile, rows * columns, columns * tile
        arch, dtype = self.dice.choice(("wse2", "wse3")), self.dice.choice(("f16", "f32"))
        question = Question(
            *sizes, f"{columns}x{rows}", arch, dtype, self.dice.choice((dtype, "f32"))
        )
        emit({"main": tile_module(question, kind, algo)})
        return question, algo

    def model(self, folder):
        dice = self.dice
        heads = dice.choice((2, 4, 8))
        lanes, layers = dice.choice((8, 16, 32)), dice.choice((1, 2, 4))
        config = {
            "model_type": "llama",
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e4,
            "hidden_size": heads * lanes,
            "intermediate_size": heads * lanes * dice.choice((2, 3)),
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads // dice.choice((1, 2)),
            "vocab_size": dice.choice((96, 500)),
            "max_position_embeddings": 512,
            "tie_word_embeddings": dice.random() < 0.5,
        }
        (folder / "config.json").write_text(json.dumps(config))
        side = self.side()
        rows = dice.choice((side, side, self.side()))
        regions = dice.choice((0, 0, 2, 3)) if layers > 1 else 0
        phase = dice.choice(("decode", "decode", "prefill"))
        reduced = dice.choice(("", "pipeline", "ring", "tree", "two_phase", "k_tree:2", "k_tree:3"))
        asked = CompileRequest(
            target="csl",
            device=dice.choice(("wse2", "wse3")),
            mesh=f"r={regions},y={rows},x={side}" if regions else f"{side}x{rows}",
            phase=phase,
            seq=dice.choice((16, 64, 200)),
            dtype=dice.choice(("f16", "f16", "f32", "bf16")),
            kv=dice.choice(("auto", "shift", "cyclic", "concat")),
            algo=(f"all_reduce={reduced}",) if reduced else (),
            batch=dice.choice((None, None, 2, 4)) if phase == "decode" else None,
        )
        compile_loaded(load_any(str(folder), Diagnostics()), asked, (), Diagnostics())
        return asked


@pytest.mark.parametrize("number", each(range(60), 6))
def test_the_same_as_core_by_core(number, tmp_path, walked):
    Drawn(number).emit(tmp_path)
    assert walked


def test_a_round_walks_one_core_of_each_class(walked, monkeypatch):
    """Operands of a mesh whose sides differ turn many times between two lines that have done, and
    in the products behind it all cores of a line are alike but for those at its ends."""
    cores, skipped = [], []
    moved, skip = Classes.moved, Classes.skip

    def count(self, clock, steps):
        cores.append(clock.size)
        moved(self, clock, steps)

    def note(self, rounds):
        skipped.append(rounds)
        skip(self, rounds)

    monkeypatch.setattr(Classes, "moved", count)
    monkeypatch.setattr(Classes, "skip", note)
    question = Question(64, 192, 12, "6x32", "wse2", "f16", "f32")
    emit({"main": tile_module(question, "gemm", "transposed")})
    assert walked == [192]
    assert skipped[:4] == [14, 14, 13, 88]
    assert max(cores) < 96


@st.composite
def programs(draw):
    return Generator(draw, st).program


def agree(program, arch):
    with pytest.MonkeyPatch.context() as monkeypatch:
        walk_beside(monkeypatch)
        try:
            emit({"main": tile_text(program.text(), arch)})
        except MeshcError as refusal:
            assert {d.code for d in refusal.diagnostics} <= {"csl-queues", "csl-tasks"}


ANY = {"program": programs(), "arch": st.sampled_from(["wse2", "wse3"])}


@settings(max_examples=25, deadline=None, derandomize=True)
@given(**ANY)
def test_any_statements(program, arch):
    agree(program, arch)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(**ANY)
def test_many_of_any_statements(program, arch):
    agree(program, arch)
