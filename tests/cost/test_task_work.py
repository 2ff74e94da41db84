"""What tasks stream and need, held against sums by hand and against a walk point by point."""

from itertools import product
from math import prod

import pytest

import meshc
from meshc.analysis.tasks.shares import share
from meshc.analysis.tasks.tiles import CACHE_PAGE
from meshc.cost.tasks.stages import FamilyWork, LoopWork, Meeting, PhaseWork, Piece
from meshc.cost.tasks.work import work_of
from meshc.ir.ops import task, tile
from meshc.ir.parser import parse_module
from meshc.ir.views import Point, Range
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.support.spans import Source


def tasks_of(model, passes="expand-tasks{rows=4,tokens=4}", **options):
    usual = {"phase": "decode", "dtype": "f16", "device": "h200", "seq": 40}
    made = meshc.compile(model, compile_to="graph", **{**usual, **options})
    return PassManager(parse_pipeline(passes)).run(made.modules["decode"])


def parsed(text):
    return parse_module(Source("m.meshir", text))


SMALL = """module @m level(task) {
  scalars pos = 0..9
  buffer %w : f16[3, 32, 512] {role = weight}
  buffer %gain : f32[512] {role = weight}
  buffer %cache : f16[3, 12, 512] {role = state}
  buffer %v : f32[4, 512]
  buffer %y : f32[3, 32]
  program @decode {
    task.phase {name = before} {
      task.family {name = before, dims = [g], sizes = [4]} {
        %zero = task.local : f32[512]
        tile.fill %zero {value = 0.0}
        task.give %v[g], %zero
      }
    }
    tile.for {var = layer, count = 3} {
      task.phase {name = one} {
        task.family {name = weights, dims = [g], sizes = [4]} {
          %x = task.need %v[layer] : f32[512]
          %g1 = task.stream %gain : f32[512]
          %x2 = task.local : f32[1, 512]
          tile.mul %x2, %x as [1, 512], %g1
          %rows = task.stream %w[layer, 8*g +: 8] : f16[8, 512]
          %s = task.local : f32[1, 8]
          tile.gemm %s, %x2, %rows {accumulate = false, transposed = true}
          %own = task.need %v[layer, 8*g +: 8] : f32[8]
          task.give %y[layer, 8*g +: 8], %s as [8]
        }
        task.family {name = tokens, dims = [s], sizes = [2]} {
          %q = task.need %v[layer] : f32[512]
          %t = task.local : f32[1, 2]
          tile.for {var = n, count = "floor((pos + 5 - 2*s)/4)"} {
            %run = task.stream %cache[layer, 4*n + 2*s +: 2] {dim = 1, below = "pos"} : f16[2, 512]
            tile.gemm %t, %q as [1, 512], %run {accumulate = false, transposed = true}
          }
        }
      }
    }
  }
}
"""


def test_a_small_program_by_hand():
    """Seven cached tokens, in runs of two taken in turn by two tasks: 0, 1, 4, 5 and 2, 3, 6."""
    meeting, before, loop = work_of(parsed(SMALL), {"pos": 7})
    assert isinstance(meeting, Meeting) and before.bytes == 0
    assert loop.count == 3 and [type(s) for s in loop.body] == [Meeting, PhaseWork]
    weights, tokens = loop.body[1].families
    assert weights.read == {"%v[layer]": (2048, False), "%gain": (2048, True)}
    assert tokens.read == {"%v[layer]": (2048, False)}
    assert weights.held == 4 * 512 + 1024
    assert (weights.vectors, weights.width, weights.at_once) == (1, 512, 2048)
    assert weights.waited == tokens.waited == {"%v[layer]": 2048}
    (one,) = set(weights.tasks)
    assert len(weights.tasks) == 4 and one.own == 32
    assert one.pieces == (Piece(8192, "product", 1, 0.5),)
    token = 1024
    assert [[p.bytes // token for p in t.pieces] for t in tokens.tasks] == [[2, 2], [2, 1]]
    assert {(p.kind, p.looked_up) for t in tokens.tasks for p in t.pieces} == {("attention", 32)}
    assert loop.body[1].bytes == 4 * 8192 + 7 * token + 2048


@pytest.mark.parametrize(("page", "tiles"), [(1, 16), (16, 32), (64, 32)])
def test_pages_say_how_many_tiles_are_looked_up_together(page, tiles):
    module = parsed(SMALL)
    module.options[CACHE_PAGE] = page
    tokens = work_of(module, {"pos": 7})[2].body[1].families[1]
    assert {p.looked_up for task in tokens.tasks for p in task.pieces} == {tiles}


def test_meetings_are_those_of_the_module():
    text = SMALL.replace("    tile.for {var = layer", "    task.meet\n    tile.for {var = layer")
    before, met, loop = work_of(parsed(text), {"pos": 7})
    assert isinstance(before, PhaseWork) and isinstance(met, Meeting)
    assert [type(s) for s in loop.body] == [PhaseWork]


def test_rounds_that_differ_are_rounds_of_their_own():
    text = SMALL.replace("task.phase {name = one}", 'task.phase {name = one, when = "layer = 1"}')
    assert [s.name for s in work_of(parsed(text), {"pos": 7}) if isinstance(s, PhaseWork)] == [
        "before",
        "one",
    ]


@pytest.mark.parametrize(
    ("scalars", "words"),
    [({}, "'pos' has no value"), ({"pos": 10}, "is not 0 to 9"), ({"pos": [1, 2]}, "2 values")],
)
def test_scalars_that_are_none(scalars, words):
    with pytest.raises(ValueError, match=words):
        work_of(parsed(SMALL), scalars)


def test_other_levels_have_no_tasks():
    made = meshc.compile("tests/data/tiny/llama-3h1", phase="decode", seq=8, compile_to="graph")
    with pytest.raises(ValueError, match="graph level has no tasks"):
        work_of(made.modules["decode"], {"pos": 1})


# -- every point of every family, one at a time ---------------------------------------------------
def bytes_by_walk(module, positions):
    """Bytes of streams that are operands of products, walked point by point with plain numbers."""

    def size(op, env):
        extents = []
        for dim, extent in enumerate(op.view.buffer_type.shape):
            index = op.view.indices[dim] if dim < len(op.view.indices) else None
            places = range(extent)
            if isinstance(index, Point):
                places = [int(index.at.evaluate(env))]
            elif isinstance(index, Range):
                start = int(index.start.evaluate(env))
                places = range(start, start + index.extent.constant)
            if op.below is not None and dim == op.dim:
                places = [p for p in places if p < int(op.below.evaluate(env))]
            extents.append(len(places))
        return 2 * prod(extents)  # f16 in the GPU's memory, whatever files have

    def body(block, env, wanted):
        found = 0
        for op in block.ops:
            if op.when is not None and not op.when.evaluate(env):
                continue
            if isinstance(op, task.Stream) and op.result in wanted:
                found += size(op, env)
            elif isinstance(op, tile.For):
                for n in range(int(op.count.evaluate(env))):
                    own = dict.fromkeys(op.each, positions[n] if op.each else None)
                    found += body(op.regions[0], {**env, op.var: n, **own}, wanted)
        return found

    def program(block, env):
        found = 0
        for op in block.ops:
            if isinstance(op, tile.For):
                for n in range(int(op.count.evaluate(env))):
                    found += program(op.regions[0], {**env, op.var: n})
            elif isinstance(op, task.Phase):
                for family in op.regions[0].ops:
                    kernels = [o for o in family.regions[0].walk() if isinstance(o, tile.Compute)]
                    taken = {v.buffer for o in kernels if o.kernel == "gemm" for v in o.views()}
                    for point in product(*map(range, family.sizes)):
                        own = dict(zip(family.dims, point, strict=True))
                        for name in family.each:
                            own[name] = positions[point[0]]
                        found += body(family.regions[0], {**env, **own}, taken)
        return found

    return program(module.program.body, {})


@pytest.mark.parametrize("positions", [[0], [1], [7], [39], [0, 5, 39], [13, 13, 12]])
@pytest.mark.parametrize("model", ["llama-3h1", "llama-9h3-tied", "qwen2-6h2-tied-bf16"])
def test_what_is_brought_is_what_a_walk_finds(model, positions):
    module = tasks_of(f"tests/data/tiny/{model}", batch=len(positions))

    def brought(stages):
        found = 0
        for stage in stages:
            if isinstance(stage, LoopWork):
                found += stage.count * brought(stage.body)
            elif isinstance(stage, PhaseWork):
                found += sum(t.brought for f in stage.families for t in f.tasks)
        return found

    found = brought(work_of(module, {"pos": positions}))
    assert found == bytes_by_walk(module, positions) > 0


def test_parts_of_a_product_read_their_own_columns():
    """A block that has tasks of one part reads that part of the left side, and all together read
    it once for each part."""
    given = {"passes": "expand-tasks{rows=4,tokens=4,parts=4}", "batch": 2}
    stages = work_of(tasks_of("tests/data/tiny/llama-3h1", **given), {"pos": 3})
    loop = next(stage for stage in stages if isinstance(stage, LoopWork))
    (phase,) = [s for s in loop.body if isinstance(s, PhaseWork) and s.name == "y"]
    assert [family.name for family in phase.families] == [f"y.{n}" for n in range(4)]
    for family in phase.families:
        # 10 of 40 features of two requests, in f32; a norm is none of it.
        assert [n for n, _ in family.read.values()] == [2 * 10 * 4]
        assert len({len(family.tasks) for family in phase.families}) == 1
    whole = work_of(tasks_of("tests/data/tiny/llama-3h1", batch=2), {"pos": 3})
    (loop,) = [stage for stage in whole if isinstance(stage, LoopWork)]
    (usual,) = [s for s in loop.body if isinstance(s, PhaseWork) and s.name == "y"]
    assert phase.bytes == usual.bytes


def test_one_position_stands_for_all_requests():
    module = tasks_of("tests/data/tiny/llama-3h1", batch=3)
    assert work_of(module, {"pos": 9}) == work_of(module, {"pos": [9, 9, 9]})


@pytest.mark.parametrize(("tasks", "blocks"), [(0, 3), (1, 4), (7, 3), (128, 132), (1792, 132)])
def test_shares_are_even_and_contiguous(tasks, blocks):
    shares = [share(tasks, b, blocks) for b in range(blocks)]
    assert [n for own in shares for n in own] == list(range(tasks))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("vectors", "width", "size", "fresh", "waited", "at_once"),
    [
        (1, 4096, 16384, True, 16384, 16384),  # a vector that threads hold
        (1, 14336, 57344, False, 57344, 32768),  # a wider one, in two turns
        (16, 4096, 16 * 16384, True, 2 * 16 * 16384, 16384),  # read for the norm, and again
        (1, 4096, 4 * 16640, False, 4 * 16640, 32768),  # four records of each head
        (16, 4096, 16 * 16640, False, 16 * 16640, 8192),  # one of each
    ],
)
def test_what_blocks_read_of_each_other(vectors, width, size, fresh, waited, at_once):
    read = {"x": (size, False), **({"gain": (2 * width, True)} if fresh else {})}
    family = FamilyWork("f", (), read, 0, vectors, width)
    assert family.waited == {"x": waited}
    assert family.at_once == at_once


def test_tokens_of_a_batch_that_are_neighbours_are_attended_for_at_once():
    """Of seven tokens three are of one request, two of another: its cache comes once for them."""
    passes = "batch-tokens{tokens=7,requests=4},expand-tasks{rows=4,tokens=16}"
    module = tasks_of("tests/data/tiny_cuda/llama-4h2", passes, batch=7)
    told = {"owner": [0, 1, 1, 1, 2, 2, 3], "ahead": [0, 0, 1, 2, 0, 1, 0]}

    def attends(ahead):
        stages = work_of(module, {**told, "ahead": ahead, "pos": [9, 20, 20, 20, 5, 5, 1]})
        loops = [s for s in stages if isinstance(s, LoopWork)]
        phases = [p for p in (loops[0].body if loops else stages) if isinstance(p, PhaseWork)]
        (family,) = (f for p in phases for f in p.families if f.name == "attend")
        return family.tasks

    alone, together = attends([0] * 7), attends(told["ahead"])
    heads = len(alone) // 7
    assert len(together) == 4 * heads
    counts = [{p.tokens for p in one.pieces} for one in together[::heads]]
    assert counts == [{1}, {3}, {2}, {1}]
    brought = [sum(one.brought for one in tasks) for tasks in (alone, together)]
    assert brought[1] * (9 + 3 * 20 + 2 * 5 + 1) == brought[0] * (9 + 20 + 5 + 1)


def test_runs_of_neighbours_are_those_of_the_first_attention():
    """Heads of 16 lanes have eight, those of 128 four: the second family goes token by token."""
    family = """      task.phase {name = %s} {
        task.family {name = %s, dims = [b], sizes = [8], each = [pos, owner, ahead]} {
          %%q_%s = task.need %%v_%s : f32[4, LANES]
          %%s_%s = task.local : f32[4, 16]
          %%k_%s = task.stream %%cache_%s[owner, 0 +: 16] {dim = 1, below = "pos"} : f16[16, LANES]
          tile.gemm %%s_%s, %%q_%s, %%k_%s {accumulate = false, transposed = true}
          %%o_%s = task.local : f32[4, LANES]
          %%w_%s = task.stream %%cache_%s[owner, 0 +: 16] {dim = 1, below = "pos"} : f16[16, LANES]
          tile.gemm %%o_%s, %%s_%s, %%w_%s {accumulate = false, transposed = false}
        }
      }
"""
    text = "".join(
        (family % ((n,) * 16)).replace("LANES", str(m)) for n, m in (("a", 16), ("c", 128))
    )
    module = parsed(f"""module @m level(task) {{
  dims B = 8
  scalars pos = 0..32, owner = 0..2, ahead = 0..7
  buffer %v_a : f32[4, 16]
  buffer %v_c : f32[4, 128]
  buffer %cache_a : f16[3, 48, 16] {{role = state}}
  buffer %cache_c : f16[3, 48, 128] {{role = state}}
  program @decode {{
{text}  }}
}}
""")
    told = {"pos": [20] * 8, "owner": [1] * 8, "ahead": [*range(8)]}
    phases = [s for s in work_of(module, told) if isinstance(s, PhaseWork)]
    assert [len(phase.families[0].tasks) for phase in phases] == [1, 8]
