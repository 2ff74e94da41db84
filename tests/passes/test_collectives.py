"""Collectives as ops of their own, from mesh-level text down to NumPy programs."""

import re
from itertools import combinations

import numpy as np
import pytest
from reduced import crossed

from meshc.analysis.traffic.tracks import ring_track, room_of, tree_tracks
from meshc.backends.meshes import algorithm_settings
from meshc.backends.python import HostFacts, emit, load_program
from meshc.cost.reductions import tree_candidates
from meshc.devices import device
from meshc.interp.mesh import run_mesh
from meshc.interp.tile import TileMachine
from meshc.ir.clone import clone_module
from meshc.ir.core import tensor_type
from meshc.ir.ops import mesh as ops
from meshc.ir.parser import parse_module
from meshc.ir.verifier import verify_module
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.passes.tile.allocate_routes import AllocateRoutes
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.spans import Source
from meshc.verify import check_claims, check_fact

RANDOM = np.random.default_rng(4)
MESHES = ((1, 1), (2, 2), (3, 3), (4, 6), (1, 5), (7, 1), (3, 8))
REDUCTIONS = (
    "pipeline",
    "ring",
    "tree",
    "two_phase",
    "k_tree:1",
    "k_tree:2",
    "k_tree:3",
    "k_tree:4",
)


def parse(text):
    return parse_module(Source("collective.meshir", text))


def collective(rows, columns, given, body, result):
    """A mesh-level module that gives %r for its input %v of type ``given``."""
    n = 2 * rows * columns
    module = parse(f"""module @m level(mesh) holds(padding_safe, partitioned) {{
      dims Y = {rows}, X = {columns}, I = 5, N = {n}, U = {n + 1}
      options phase = main, dtype = f32, accumulate = f32
      mesh y = {rows}, x = {columns}
      func @main(in %v: f32{given}) -> (f32{result}) {{
        {body}
        mesh.return %r
      }}
    }}""")
    module.device = device("ideal")
    verify_module(module)
    check_claims(module)
    return module


def lowered(module, interleave=True, way="auto"):
    settings = algorithm_settings(all_reduce=way)["select-collective"]
    place = "place-interleave" if interleave else 'place-interleave{axes=""}'
    passes = f"{place},{settings},expand-programs,allocate-routes,schedule-tasks,plan-memory"
    return PassManager(parse_pipeline(passes)).run(module)


def check(module, expected, folder, way="auto"):
    """The mesh level, the tile level and the emitted program agree with ``expected``."""
    (param,) = module.function.params
    shape = tensor_type(param.value).shape(module.dims)
    v = RANDOM.standard_normal(shape).astype(np.float32)
    wanted = expected(v)
    (at_mesh,) = run_mesh(clone_module(module), {"v": v})
    np.testing.assert_allclose(at_mesh, wanted, rtol=1e-5, atol=1e-5)
    # Each executor with one of the orders of cores.
    for interleave, executor in ((True, ("early", "round-robin")), (False, ("late", "random(1)"))):
        tile = lowered(clone_module(module), interleave, way)
        check_claims(tile)
        machine = TileMachine(tile, *executor)
        machine.load("v", v)
        (got,) = machine.run().values()
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    for path, text in emit({"main": tile}, HostFacts("test")).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    (got,) = load_program(folder).load({}).run({"v": v}).values()
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def block(extent, parts):
    return -(-extent // parts)


@pytest.mark.parametrize(("mesh", "algo"), crossed(MESHES, REDUCTIONS, times=2))
def test_all_reduce_along_rows(mesh, algo, tmp_path):
    rows, columns = mesh
    body = """%s = mesh.row_sum %v {dim = X} : f32[Y, I]<Y_y:1 +x>
        %r = mesh.all_reduce %s {axis = x} : f32[Y, I]<Y_y:1>"""
    given = "[Y, I, X]<Y_y:1 X_x:1>"
    module = collective(rows, columns, given, body, "[Y, I]<Y_y:1>")
    check(module, lambda v: v.sum(2), tmp_path, algo)


MERGED = """%m = mesh.row_max %v {dim = X} : f32[Y, I]<Y_y:1 +x>
        %w = mesh.exp_sub %v, %m : f32[Y, I, X]<Y_y:1 X_x:1>
        %l = mesh.row_sum %w {dim = X} : f32[Y, I]<Y_y:1 +x>
        %p = mesh.mul %w, %v : f32[Y, I, X]<Y_y:1 X_x:1>
        %o = mesh.row_sum %p {dim = X} : f32[Y, I]<Y_y:1 +x>
        %a, %b, %c = mesh.all_reduce %o, %l, %m {axis = x, reduce = softmax} : f32[Y, I]<Y_y:1>,
          f32[Y, I]<Y_y:1>, f32[Y, I]<Y_y:1>
        %r = mesh.div %a, %b : f32[Y, I]<Y_y:1>"""


@pytest.mark.parametrize(
    ("mesh", "algo"), crossed(MESHES, ["pipeline", "two_phase", "tree", "k_tree:3", "ring"])
)
def test_softmaxes_are_merged(mesh, algo, tmp_path):
    """By trees alone: where rings are asked for, the others take them."""
    rows, columns = mesh
    module = collective(rows, columns, "[Y, I, X]<Y_y:1 X_x:1>", MERGED, "[Y, I]<Y_y:1>")

    def weighted(v):
        weights = np.exp(v - v.max(2, keepdims=True))
        return (weights * v).sum(2) / weights.sum(2)

    check(module, weighted, tmp_path, algo)


@pytest.mark.parametrize(
    ("operands", "reduce", "words"),
    [
        ("%l", "softmax", "takes values, sums and maxima"),
        ("%o, %t, %m", "softmax", "takes values, sums and maxima"),
        ("%o, %l, %m", "mean", "'reduce' is 'mean', but it is one of sum, max"),
    ],
)
def test_what_no_softmax_is_made_of(operands, reduce, words):
    """Too few operands, sums of fewer rows than maxima, and what no reduction is."""
    body, _, _ = MERGED.partition("%a, %b")
    body += "%t = mesh.row_sum %l {dim = I} : f32[Y]<Y_y:1 +x>\n"
    kinds = [
        "f32[Y]<Y_y:1>" if name == "%t" else "f32[Y, I]<Y_y:1>" for name in operands.split(", ")
    ]
    names = ", ".join(["%r", "%b", "%c"][: len(kinds)])
    body += f"{names} = mesh.all_reduce {operands} {{axis = x, reduce = {reduce}}} : "
    with pytest.raises(MeshcError, match=words):
        given = "[Y, I, X]<Y_y:1 X_x:1>"
        collective(2, 3, given, body + ", ".join(kinds), "[Y, I]<Y_y:1>")


def test_no_ring_merges_softmaxes():
    body = MERGED.replace("reduce = softmax", "reduce = softmax, algo = ring")
    module = collective(2, 3, "[Y, I, X]<Y_y:1 X_x:1>", body, "[Y, I]<Y_y:1>")
    module.holds = module.holds | {"collectives_selected"}
    with pytest.raises(MeshcError, match="algo 'ring'"):
        check_claims(module)


@pytest.mark.parametrize(("mesh", "algo"), crossed(MESHES, ["ring", "two_phase"]))
def test_all_reduce_along_both(mesh, algo, tmp_path):
    rows, columns = mesh
    body = """%s = mesh.row_sum %v {dim = X} : f32[I, Y]<Y_y:1 +x>
        %t = mesh.all_reduce %s {axis = x} : f32[I, Y]<Y_y:1>
        %p = mesh.row_sum %t {dim = Y} : f32[I]<+y>
        %r = mesh.all_reduce %p {axis = y} : f32[I]<>"""
    module = collective(rows, columns, "[I, Y, X]<Y_y:1 X_x:1>", body, "[I]<>")
    check(module, lambda v: v.sum((1, 2)), tmp_path, algo)


@pytest.mark.parametrize(
    ("mesh", "algo"), crossed(MESHES, ["pipeline", "two_phase", "tree", "ring"])
)
def test_reduce_to_one_core_and_broadcast_from_it(mesh, algo, tmp_path):
    """The second reduction is done by the roots of the first; the broadcasts go back."""
    rows, columns = mesh
    reduce = """%s = mesh.row_sum %v {dim = X} : f32[I, Y]<Y_y:1 +x>
        %t = mesh.reduce %s {axis = x} : f32[I, Y]<Y_y:1 @x>
        %p = mesh.row_sum %t {dim = Y} : f32[I]<+y @x>
        """
    given = "[I, Y, X]<Y_y:1 X_x:1>"
    root = reduce + "%r = mesh.reduce %p {axis = y} : f32[I]<@x @y>"
    module = collective(rows, columns, given, root, "[I]<@x @y>")
    check(module, lambda v: v.sum((1, 2)), tmp_path / "root", algo)
    back = (
        reduce
        + """%q = mesh.reduce %p {axis = y} : f32[I]<@x @y>
        %b = mesh.broadcast %q {axis = y} : f32[I]<@x>
        %r = mesh.broadcast %b {axis = x} : f32[I]<>"""
    )
    module = collective(rows, columns, given, back, "[I]<>")
    check(module, lambda v: v.sum((1, 2)), tmp_path / "all", algo)


@pytest.mark.parametrize(("mesh", "axis", "dim"), crossed(MESHES, ["x", "y"], ["N", "U"]))
def test_parts_come_together_and_go_apart(mesh, axis, dim, tmp_path):
    """Also when the extent does not divide, so that parts are padded."""
    rows, columns = mesh
    size = columns if axis == "x" else rows
    n = 2 * rows * columns + (dim == "U")
    split = f"{dim}_{axis}:{block(n, size)}"
    given = f"[I, {dim}]<{split}>"
    gather = f"%r = mesh.gather %v {{axis = {axis}, dim = {dim}}} : f32[I, {dim}]<@{axis}>"
    module = collective(rows, columns, given, gather, f"[I, {dim}]<@{axis}>")
    check(module, lambda v: v, tmp_path / "gather")
    there = gather.replace("%r", "%g")
    back = f"{there}\n%r = mesh.scatter %g {{axis = {axis}, dim = {dim}}} : f32{given}"
    check(collective(rows, columns, given, back, given), lambda v: v, tmp_path / "scatter")
    every = f"%r = mesh.all_gather %v {{axis = {axis}, dim = {dim}}} : f32[I, {dim}]<>"
    module = collective(rows, columns, given, every, f"[I, {dim}]<>")
    check(module, lambda v: v, tmp_path / "all_gather")


@pytest.mark.parametrize(("rows", "columns"), MESHES)
def test_reduce_scatter(rows, columns, tmp_path):
    """Of five elements, so that most meshes have cores without any."""
    given = "[Y, I, X]<Y_y:1 X_x:1>"
    result = f"[Y, I]<Y_y:1 I_x:{block(5, columns)}>"
    body = f"""%s = mesh.row_sum %v {{dim = X}} : f32[Y, I]<Y_y:1 +x>
        %r = mesh.reduce_scatter %s {{axis = x, dim = I}} : f32{result}"""
    check(collective(rows, columns, given, body, result), lambda v: v.sum(2), tmp_path)


@pytest.mark.parametrize(("mesh", "by"), crossed(MESHES, [1, -1, 2, 3, 7, 0], times=2))
def test_shift_goes_the_shorter_way(mesh, by, tmp_path):
    rows, columns = mesh
    given = f"[I, N]<N_y:{2 * columns}>"
    body = f"%r = mesh.shift %v {{axis = y, dim = N, by = {by}}} : f32{given}"

    def shifted(v):
        return np.roll(v, -by * 2 * columns, axis=1)

    check(collective(rows, columns, given, body, given), shifted, tmp_path)


@pytest.mark.parametrize("op", ["row_sum", "square_sum"])
@pytest.mark.parametrize("dim", ["I", "X", "Y"])
def test_reductions_of_any_dim(op, dim, tmp_path):
    """Dims before the last one too: the mesh level names the dim, the kernel takes the trailing."""
    rest = [d for d in ("I", "X", "Y") if d != dim]
    body = f"%r = mesh.{op} %v {{dim = {dim}}} : f32[{', '.join(rest)}]<>"
    module = collective(3, 4, "[I, X, Y]<>", body, f"[{', '.join(rest)}]<>")
    place = ("I", "X", "Y").index(dim)
    meaning = {
        "row_sum": lambda v: v.sum(place),
        "square_sum": lambda v: (v * v).sum(place),
    }
    check(module, meaning[op], tmp_path)


def test_an_uneven_shift_is_refused():
    given = "[I, U]<U_y:5>"
    body = f"%r = mesh.shift %v {{axis = y, dim = U}} : f32{given}"
    with pytest.raises(MeshcError, match="U has 13 elements on 3 cores") as error:
        lowered(collective(3, 2, given, body, given))
    assert error.value.diagnostics[0].code == "uneven-shift"


@pytest.mark.parametrize(
    ("body", "result", "words"),
    [
        ("%r = mesh.broadcast %v {axis = y} : f32[I, N]<N_y:4>", "[I, N]<N_y:4>", "stand as '@'"),
        (
            "%r = mesh.gather %v {axis = x, dim = N} : f32[I, N]<@x>",
            "[I, N]<@x>",
            "stand as '/' and the result as '@'",
        ),
        ("%r = mesh.gather %v {axis = y, dim = J} : f32[I, N]<@y>", "[I, N]<@y>", "with dim 'J'"),
        ("%r = mesh.shift %v {axis = z, dim = N} : f32[I, N]<N_y:4>", "[I, N]<N_y:4>", "no axis"),
    ],
)
def test_a_collective_that_does_not_fit_its_layouts_is_refused(body, result, words):
    with pytest.raises(MeshcError, match=words):
        collective(3, 2, "[I, N]<N_y:4>", body, result)


def test_an_unknown_way_to_reduce_is_refused():
    body = """%s = mesh.row_sum %v {dim = X} : f32[Y, I]<Y_y:1 +x>
        %r = mesh.all_reduce %s {axis = x} : f32[Y, I]<Y_y:1>"""
    for way in ("butterfly", "k_tree:9"):
        module = collective(2, 2, "[Y, I, X]<Y_y:1 X_x:1>", body, "[Y, I]<Y_y:1>")
        with pytest.raises(MeshcError, match="no collective"):
            lowered(module, way=way)


ALGORITHMS = {
    (1, 9): ("[9]", "[3, 3]", "[2, 5]", "[2, 2, 3]", "ring"),
    (2, 8): ("[8]", "[3, 3]", "[4, 2]", "[2, 2, 2]", "ring"),
}


def written(way):
    return "algo = ring" if way == "ring" else f"algo = k_tree, groups = {way}"


@pytest.mark.parametrize(("rows", "columns"), [(2, 8), pytest.param(1, 9, marks=pytest.mark.slow)])
def test_two_algorithms_on_one_axis(rows, columns, tmp_path):
    """Three sums in turn over one axis, the second by another algorithm: what they share of
    channels carries the messages of both in order."""
    steps = "place-interleave,expand-programs,allocate-routes,schedule-tasks,plan-memory"
    # Each two, now one and now the other first.
    every = enumerate(combinations(ALGORITHMS[rows, columns], 2))
    for place, (first, second) in ((n, two[:: 1 - n % 2 * 2]) for n, two in every):
        module = collective(
            rows,
            columns,
            "[Y, I, X]<Y_y:1 X_x:1>",
            f"""%s = mesh.row_sum %v {{dim = X}} : f32[Y, I]<Y_y:1 +x>
            %a = mesh.all_reduce %s {{axis = x, {written(first)}}} : f32[Y, I]<Y_y:1>
            %d = mesh.exp_sub %v, %a : f32[Y, I, X]<Y_y:1 X_x:1>
            %t = mesh.row_sum %d {{dim = X}} : f32[Y, I]<Y_y:1 +x>
            %b = mesh.all_reduce %t {{axis = x, {written(second)}}} : f32[Y, I]<Y_y:1>
            %p = mesh.row_max %d {{dim = X}} : f32[Y, I]<Y_y:1 +x>
            %c = mesh.all_reduce %p {{axis = x, reduce = max, {written(first)}}} : f32[Y, I]<Y_y:1>
            %r = mesh.div %c, %b : f32[Y, I]<Y_y:1>""",
            "[Y, I]<Y_y:1>",
        )
        check_fact(module, "collectives_selected")
        module.holds.add("collectives_selected")
        v = RANDOM.uniform(-0.2, 0.2, (rows, 5, columns)).astype(np.float32)
        d = np.exp(v - v.sum(2, keepdims=True))
        wanted = d.max(2) / d.sum(2)
        tile = PassManager(parse_pipeline(steps)).run(module)
        check_claims(tile)
        for executor in (("early", "round-robin"), ("late", "random(1)")):
            machine = TileMachine(tile, *executor)
            machine.load("v", v)
            (got,) = machine.run().values()
            np.testing.assert_allclose(got, wanted, rtol=1e-5)
        emitted = tmp_path / str(place)
        for path, text in emit({"main": tile}, HostFacts("test")).items():
            (emitted / path).parent.mkdir(parents=True, exist_ok=True)
            (emitted / path).write_text(text, encoding="utf-8")
        (got,) = load_program(emitted).load({}).run({"v": v}).values()
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
        names = {channel.name for channel in tile.channels}
        strides = {f"chain_x_{s}" for way in (first, second) for s in strides_of(way)}
        assert {name for name in names if name.startswith("chain")} == strides


def strides_of(way):
    groups = [] if way == "ring" else list(map(int, way[1:-1].split(",")))
    return [int(np.prod(groups[:phase])) for phase in range(len(groups))]


def test_the_room_that_is_counted_is_what_routes_then_take():
    """Queues are as many as counted, and colors, but for chains of a single message, which take one
    for the two that are counted."""
    for (queues, colors), (taken_queues, taken_colors) in map(counted_and_taken, range(14)):
        assert taken_queues == queues
        assert colors - 2 <= taken_colors <= colors


def counted_and_taken(seed):
    """Queues and colors of three reductions by random algorithms, before and after expansion."""
    drawn = np.random.default_rng(seed)
    columns, segments = ((12, 3), (12, 1), (8, 2), (16, 4), (10, 2))[seed % 5]
    inner = columns // segments
    module = parse(f"""module @m level(mesh) holds(padding_safe, partitioned, placed) {{
      dims L = 1, E = 6, H = {columns}, D = {inner}, G = {segments}
      options phase = main, dtype = f32, accumulate = f32
      mesh y = 6 interleaved, x = {columns} interleaved (xh = {segments}, xd = {inner} interleaved)
      func @main(in %v: f32[E]<E_y:1>, in %w: f32[H]<H_x:1>, in %u: f32[G, D]<G_xh:1 D_xd:1>)
          -> (f32[]<>, f32[]<>, f32[G]<G_xh:1>) {{
        %a = mesh.row_sum %v {{dim = E}} : f32[]<+y>
        %b = mesh.all_reduce %a {{axis = y}} : f32[]<>
        %c = mesh.row_sum %w {{dim = H}} : f32[]<+x>
        %d = mesh.all_reduce %c {{axis = x}} : f32[]<>
        %e = mesh.row_sum %u {{dim = D}} : f32[G]<G_xh:1 +xd>
        %f = mesh.all_reduce %e {{axis = xd}} : f32[G]<G_xh:1>
        mesh.return %b, %d, %f
      }}
    }}""")
    module.device = device("ideal")
    check_claims(module)
    mesh, tracks = module.the_mesh(), frozenset()
    for op in module.walk():
        if isinstance(op, ops.AllReduce):
            size = mesh.size(op.axis)
            split = segments if op.axis == "x" else 1
            choices = [*tree_candidates(size, split), "ring"]
            way = choices[drawn.integers(len(choices))]
            op.algo, op.groups = ("ring", ()) if way == "ring" else ("k_tree", way)
            ring = frozenset({ring_track(mesh, op.axis)})
            mine = ring if way == "ring" else tree_tracks(mesh, op.axis, way, everywhere=True)
            tracks |= mine
    module.holds.add("collectives_selected")
    tile = PassManager(parse_pipeline("expand-programs,allocate-routes")).run(module)
    taken = len({channel.queue for channel in tile.channels}), colors_used(tile)
    return room_of(mesh, tracks), taken


def colors_used(module):
    report = Diagnostics()
    AllocateRoutes().run(clone_module(module), report)
    (remark,) = report.messages
    return int(re.search(r"take (\d+) colors", remark.message)[1])
