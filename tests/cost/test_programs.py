"""PLMR profiles: counted from tile programs, held against programs counted by hand."""

from dataclasses import replace

import pytest
from reduced import each

from meshc.cost.operations import merge
from meshc.cost.programs import Path, profile, routing_paths
from meshc.cost.reductions import reduce_cost
from meshc.cost.terms import Cost
from meshc.devices import device
from meshc.driver.estimating import estimates
from meshc.driver.questions import GEMMS, Question, tile_module
from meshc.ir.parser import parse_module
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source

WSE2 = device("wse2")


def allocated(body, header="", columns=6):
    text = f"""module @p level(tile) {{
      mesh y = 1, x = {columns}
      buffer %v : f32[10]
      {header}
      program @main {{ {body} }}
    }}"""
    passes = "allocate-routes,plan-memory"
    module = parse_module(Source("p", text))
    module.holds |= {"channels_matched", "deadlock_free"}
    module.device = device("ideal")
    return PassManager(parse_pipeline(passes)).run(module)


CHAIN = """channel @chain_x_1 "{ [y, x] -> [y, x - 1] : x >= 1 }\""""


def test_relays_let_words_flow():
    """Five links of six cores: five stages, but the words and beta count once."""
    body = """tile.sweep {rank = "5 - x", count = 6} {
      %s = tile.send @chain_x_1, %v {when = "x = 5"} : token
      %t = tile.relay @chain_x_1, @chain_x_1, %v {when = "x >= 1 and x <= 4"} : token
      %r = tile.recv @chain_x_1, %v {combine = add, when = "x = 0"} : token
    }"""
    found = profile(allocated(body, CHAIN), WSE2)
    # Of the 6 cycles of a relay one is its hop.
    assert found.total == Path(5, 5, Cost(transfer=5 + 10, stages=24.5 + 4 * 5))
    assert (found.step.hops, found.step.stages) == (5, 5)
    assert (found.paths, found.inputs, found.bytes) == (2, 1, 40)


def test_cores_that_merge_what_arrives_store_it_first():
    """Each of five links costs beta, the words, a step and the work, as those of the op do."""
    body = """tile.sweep {rank = "5 - x", count = 6} {
      %r = tile.recv @chain_x_1, %w {when = "x <= 4"} : token
      tile.wait %r
      tile.merge_softmax %v, %w {count = 2, when = "x <= 4"}
      %s = tile.send @chain_x_1, %v {when = "x >= 1"} : token
    }"""
    found = profile(allocated(body, CHAIN + " buffer %w : f32[10]"), WSE2)
    work = merge(10, 2, "f32", WSE2)
    each = Cost(transfer=1 + 10, stages=24.5, overhead=WSE2.step_cycles) + work
    assert found.total == Path(5, 5, each * 5)
    assert found.total.cycles == pytest.approx(reduce_cost((6,), 10, WSE2, work).total)
    assert work.compute > 15 and work.overhead > 0


def test_a_wait_hides_what_is_underway():
    """The product takes longer than the message that is received meanwhile."""
    header = CHAIN + " buffer %a : f32[20, 20] buffer %b : f32[20, 20] buffer %c : f32[20, 20]"
    gemm = "tile.gemm %c, %a, %b {accumulate = false, transposed = false}"
    ends = """%s = tile.send @chain_x_1, %v {when = "x >= 1"} : token
      %r = tile.recv @chain_x_1, %v {when = "x <= 4"} : token"""
    alone = profile(allocated(gemm, header), WSE2).total
    both = profile(allocated(f"{ends} {gemm} tile.wait %s, %r", header), WSE2).total
    after = profile(allocated(f"{ends} tile.wait %s, %r {gemm}", header), WSE2).total
    assert both.cost == alone.cost and (both.hops, both.stages) == (1, 1)
    assert after.cost == alone.cost + Cost(transfer=1 + 10, stages=24.5)


def test_what_work_hides_only_in_part_is_waited_for():
    header = CHAIN + " buffer %a : f32[1, 1] buffer %b : f32[1, 1] buffer %c : f32[1, 1]"
    gemm = "tile.gemm %c, %a, %b {accumulate = false, transposed = false}"
    ends = """%s = tile.send @chain_x_1, %v {when = "x >= 1"} : token
      %r = tile.recv @chain_x_1, %v {when = "x <= 4"} : token"""
    alone = profile(allocated(gemm, header), WSE2).total.cost
    both = profile(allocated(f"{ends} {gemm} tile.wait %s, %r", header), WSE2).total.cost
    assert both.compute == alone.compute > 0 and both.transfer == both.stages == 0
    assert both.total == pytest.approx(1 + 10 + 24.5) and both.waits > 0


def test_loops_count_their_bodies():
    body = """tile.for {var = t, count = 7} {
      %s = tile.send @chain_x_1, %v {when = "x >= 1"} : token
      %r = tile.recv @chain_x_1, %v {when = "x <= 4"} : token
    }"""
    found = profile(allocated(body, CHAIN), WSE2)
    each = Cost(transfer=1 + 10, stages=24.5, overhead=WSE2.step_cycles)
    assert found.total == Path(7, 7, each * 7)


def test_cores_that_only_pass_messages_on_count():
    """A message from x = 5 to x = 0 is known to all routers; the pair (2, 1) has its own color."""
    header = """channel @chain_x_5 "{ [y, x] -> [y, x - 5] : x = 5 }"
      channel @chain_x_1 "{ [y, x] -> [y, x - 1] : x = 2 }\""""
    body = """%a = tile.send @chain_x_5, %v {when = "x = 5"} : token
      %b = tile.recv @chain_x_5, %v {when = "x = 0"} : token
      %c = tile.send @chain_x_1, %v {when = "x = 2"} : token
      %d = tile.recv @chain_x_1, %v {when = "x = 1"} : token"""
    assert routing_paths(allocated(body, header)) == 2


@pytest.mark.parametrize("side", each([4, 8, 16], 3))
def test_figure_6_of_the_paper(side):
    """MeshGEMM: constant paths, two hops. Cannon and SUMMA: N - 1 hops, without the stages that
    the paper counts for SUMMA, since panels are multicast. Allgather: N times the memory."""
    ask = Question(16 * side, 16 * side, 16 * side, f"{side}x{side}", "wse2", "f32")
    found = {e.algo: e for e in estimates(ask) if e.kind == "gemm"}
    step = {algo: (e.profile.step.hops, e.profile.step.stages) for algo, e in found.items()}
    assert step["cyclic_shift"] == step["transposed"] == (2, 1)
    assert step["cannon"] == (side - 1, 1)
    assert step["summa"] == (side - 1, 1)
    assert {a for a, e in found.items() if "L" in e.violates} == {"cannon", "summa"}
    grown = found["allgather"].profile.bytes / found["cyclic_shift"].profile.bytes
    assert 0.35 * side < grown < 0.45 * side + 0.2
    assert "R" not in found["cyclic_shift"].violates
    assert found["cyclic_shift"].profile.paths <= 12


@pytest.mark.parametrize("side", each([8, 16, 25], 3))
def test_figure_8_of_the_paper(side):
    """Stages of the reductions: N for the pipeline, 2 N for the ring, K N^(1/K) for trees."""
    ask = Question(4, 8 * side, 8 * side, f"{side}x{side}", "wse2", "f32")
    found = {e.algo: e.profile for e in estimates(ask) if e.kind == "gemv"}
    assert found["pipeline"].total.stages == side  # the multicast included
    assert found["ring"].total.stages == 2 * (side - 1)
    root = int(side**0.5)
    assert found["two_phase"].total.stages <= 2 * (root + 1)
    assert found["k_tree:3"].paths >= found["k_tree:2"].paths >= found["pipeline"].paths
    assert found["pipeline"].total.hops == 2 * (side - 1)


def test_per_step_latency_of_mesh_gemm_does_not_depend_on_the_mesh():
    """Communication per step: constant for MeshGEMM, linear for Cannon."""
    ways = {}
    for side in (4, 16, 64):
        ask = Question(8 * side, 8 * side, 8 * side, f"{side}x{side}", "wse2", "f32")
        for algo in ("cyclic_shift", "cannon"):
            ways[algo, side] = profile(tile_module(ask, "gemm", algo), WSE2).step.hops
    assert {ways["cyclic_shift", side] for side in (4, 16, 64)} == {2}
    assert [ways["cannon", side] for side in (4, 16, 64)] == [3, 15, 63]


def test_letters_say_why():
    ask = Question(2048, 2048, 2048, "16x16", "wse2", "f32")
    found = {e.algo: e.violates for e in estimates(ask) if e.kind == "gemm"}
    assert all("bytes on a core that has" in found[algo]["M"] for algo in GEMMS)
    short = estimates(replace(ask, m=3, k=64, n=64))
    assert "M = 3 on 16 parts" in short[0].violates["P"]
    assert "N = 64" not in short[0].violates["P"]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"m": 0}, "M is 0"), ({"mesh": "4"}, "no mesh"), ({"dtype": "f8"}, "no element type 'f8'")],
)
def test_wrong_questions_are_refused(change, words):
    ask = replace(Question(8, 8, 8, "2x2", "wse2"), **change)
    with pytest.raises(MeshcError, match=words):
        estimates(ask)
