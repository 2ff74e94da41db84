"""Malformed calls of microkernels, ops and headers: each is one diagnostic with a code, a place and
a help line.

The mark ``«`` stands before the place at which the diagnostic must point.
"""

import pytest

from meshc.ir.kernels import KERNELS
from meshc.ir.parser import parse_module
from meshc.ir.verifier import verify_module
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source

TILE = """module @m level(tile) {
  dims E = 4
  scalars len = 1..8, pos = 0..3
  mesh y = 2, x = 2
  buffer %v4 : f32[4]
  buffer %v5 : f32[5]
  buffer %v3 : f32[3]
  buffer %m24 : f32[2, 4]
  buffer %m45 : f32[4, 5]
  buffer %m25 : f32[2, 5]
  buffer %m35 : f32[3, 5]
  buffer %m54 : f32[5, 4]
  buffer %t224 : f32[2, 2, 4]
  buffer %rows : f32[8, 4]
  buffer %ids : i32[4]
  buffer %state : i32[2]
  channel @c "{ [y, x] -> [y, x - 1] : x >= 1 }"
  program @p {
    HERE
  }
}
"""
GRAPH = """module @m level(graph) {
  dims L = 2, E = 4, F = 3
  func @f(in %x: f32[L, E], in %i: i32[L], weight %w: f32[E, F], weight %g: f32[E]) -> (f32[L, E]) {
    HERE
  }
}
"""
MESH = """module @m level(mesh) {
  dims L = 2, E = 4, F = 4
  mesh y = 2, x = 2
  func @f(in %x: f32[L, E]<E_x:2>, weight %w: f32[E, F]<E_x:2 F_y:2>, weight %g: f32[E]<E_y:2>) -> (f32[L, E]<E_x:2>) {
    HERE
  }
}
"""  # noqa: E501

CALLS = [
    ("tile.gemm %m25, %m24, «%m35 {accumulate = false, transposed = false}", "k is 4 as in 'a'"),
    ("tile.gemm %m25, %m24, «%m45 {accumulate = false, transposed = true}", "n is 5 as in 'c'"),
    ("tile.gemm %m24, %m24, «%m45 {accumulate = false, transposed = false}", "n is 4 as in 'c'"),
    ("tile.gemm %m25, «%m54, %m45 {accumulate = false, transposed = false}", "m is 2 as in 'c'"),
    ("tile.gemm %m25, «%v4, %m45 {accumulate = false, transposed = false}", "'a' has 1 dim"),
    ("tile.gemm «%v5, %m24, %m45 {accumulate = true, transposed = false}", "'c' has 1 dim"),
    (
        "tile.gemm %t224[:, 0 +: 2, :], %t224, «%t224[0] as [1, 2, 4] "
        "{accumulate = false, transposed = false}",
        "k is 4 as in 'a'",
    ),
    ("tile.copy %v4, «%v5", "dims is 4 as in 'b', not 5"),
    ("tile.copy %m24, «%v4", "'a' has 1 dim"),
    ("tile.copy %v4, «%ids", "elements of i32, not of a float"),
    ("tile.fill «%ids {value = 0.0}", "elements of i32"),
    ("tile.add %m24, %m24, «%v5", "lanes is 4 as in 'c', not 5"),
    ("tile.add %m24, %m24, «%t224", "'b' has 3 dims"),
    ("tile.mul %m24, «%v4, %v4", "'a' has 1 dim"),
    ("tile.div %m24, %m24, «%v4", "rows is 2 as in 'c', not 4"),
    ("tile.exp_sub %m24, %m24, «%v3", "rows is 2 as in 'c', not 3"),
    ("tile.scale %v4, «%v3 {factor = 2.0}", "dims is 4 as in 'b'"),
    ("tile.silu %v4, «%m24", "'a' has 2 dims"),
    ("tile.gelu %v4, «%v5 {form = tanh}", "dims is 4 as in 'b'"),
    ("tile.relu2 %v4, «%v5", "dims is 4 as in 'b'"),
    ("tile.at_least %v5, «%v4 {value = 0.0}", "dims is 5 as in 'b'"),
    ("tile.sigmoid %v4, «%v5", "dims is 4 as in 'b'"),
    (
        "tile.top_k %v4, «%v5 {count = 2, groups = 1, kept_groups = 1, group_top = 1, "
        "normalise = true, biased = false}",
        "n is 4 as in 'gates'",
    ),
    (
        "tile.top_k %m24, %m24, «%v5 {count = 2, groups = 1, kept_groups = 1, group_top = 1, "
        "normalise = true, biased = true}",
        "n is 4 as in 'gates'",
    ),
    (
        "tile.top_k «%v4, %v4 {count = 3, groups = 2, kept_groups = 1, group_top = 1, "
        "normalise = true, biased = false}",
        "3 are chosen of 2 elements",
    ),
    ("tile.row_sum %v4, «%m24", "rows is 4 as in 'b', not 2"),
    ("tile.row_max %v4, «%v4", "'a' has 1 dim"),
    ("tile.square_sum %m24, «%v4", "'a' has 1 dim"),
    ("tile.first_at %v4, «%m24, %v4 {rank = x, block = 4, limit = 4}", "rows is 4 as in 'b'"),
    ("tile.first_at %v4[0 +: 2], %m24, «%v3 {rank = x, block = 4, limit = 4}", "rows is 2"),
    ("tile.first_at «%ids, %m45, %v4 {rank = x, block = 5, limit = 4}", "i32, not of f32"),
    ("tile.first_at «%v4, %m45, %v4 {rank = x, block = 5, limit = 16777217}", "f32 counts to"),
    ("tile.rms_scale %m24, %m24, %v4[0 +: 2], «%v5 {count = 4, eps = 0.0}", "lanes is 4"),
    ("tile.rms_scale %m24, %m24, «%v3, %v4 {count = 4, eps = 0.0}", "rows is 2 as in 'b'"),
    ("tile.inverse_rms %v4, «%v3 {count = 4, eps = 0.0}", "rows is 4 as in 'b'"),
    ("tile.rope «%m25, %m25, %v4[0 +: 2] {position = 0, step = 1}", "5 is not 2*pairs"),
    ("tile.rope %m24, %m24, «%v4 {position = 0, step = 1}", "pairs is 2 as in 'b', not 4"),
    ("tile.rope «%v4, %v4, %v4[0 +: 2] {position = 0, step = 1}", "'b' has 1 dim"),
    ("tile.merge_softmax %v4, «%v5 {count = 1}", "lanes is 4 as in 'a'"),
    ("tile.merge_softmax «%v4, %v4 {count = 2}", "4 lanes are not the values, sums and maxima"),
    (
        "tile.mask_causal «%v4 {query = 0, query_step = 1, key = 0, key_step = 1, limit = 4}",
        "'scores' has 1 dim",
    ),
    ("tile.mask_slots %m24, «%ids", "2 is 2, not 4"),
    ("tile.mask_slots %m24, «%v4[0 +: 2]", "elements of f32, not of i32"),
    ("tile.ring_set «%v4[0 +: 2] {count = 1}", "elements of f32, not of i32"),
    ("tile.ring_grow «%ids", "2 is 2, not 4"),
    ("tile.ring_push %t224, «%v4, %state", "'entry' has 1 dim"),
    ("tile.ring_push %t224, %m24, «%ids", "2 is 2, not 4"),
    ("tile.ring_oldest %v5, «%m24, %state", "lanes is 5 as in 'entry'"),
    ("tile.select_lanes %m24, «%m25 {shift = 1}", "rest is 4 as in 'b', not 5"),
    ("tile.add %rows[0 +: len], %rows[0 +: len], «%rows", "lanes is len as in 'c', not 8"),
    (
        "tile.copy %rows[0 +: len], «%rows[0 +: floor((len + 1)/2)]",
        "not floor((len + 1)/2) (they may differ in some run)",
    ),
]  # fmt: skip

OPS = [
    (TILE, "«tile.rms_scale %m24, %m24, %v3, %v4 {count = 0, eps = 0.0}", "'count' is 0, but"),
    (TILE, "«tile.inverse_rms %v4, %v4 {count = 4, eps = -1.0}", "'eps' is -1.0, but it is at"),
    (TILE, "«tile.gelu %v4, %v4 {form = sigmoid}", "'form' is 'sigmoid', but it is one of erf"),
    (TILE, "«tile.ring_drop %state {capacity = 0}", "'capacity' is 0, but"),
    (TILE, "«tile.copy %v4", "takes 2 operands, not 1"),
    (TILE, "«tile.sweep {rank = \"x\", count = 0} {\n}", "'count' is 0, but it is at least 1"),
    (TILE, "%t = «tile.recv @c, %v4 {combine = mul} : token", "'combine' is 'mul', but"),
    (TILE, "«tile.copy %v4, %v4[1 +: 4]", "leaves the buffer"),
    (TILE, "«tile.copy %v4[0 +: 0], %v5[0 +: 0]", "%v4[0 +: 0] has an extent of 0"),
    (TILE, "«tile.silu %v4 as [-2, -2], %v4", "has an extent of -2"),
    (TILE, "«tile.for {var = i, count = -3} {\n}", "the count is -3"),
    (TILE, "«tile.silu %v4 as [2, 3], %v4 as [2, 3]", "reshapes 4 elements to 6"),
    (TILE, "«tile.for {var = x, count = 2} {\n}", "'x' is a coordinate of a core"),
    (TILE, "«tile.for {var = And, count = 2} {\n}", "'And' cannot be a name"),
    (
        MESH,
        "%y = «mesh.rms_scale %x, %x, %x {dim = E} : f32[L, E]<E_x:2>",
        "of squares over 'E', which they have",
    ),
    (GRAPH, "%y = «graph.add %x, %w : f32[L, E]", "cannot spread [E, F] over [L, E]"),
    (GRAPH, "%y = «graph.add %x, %i : f32[L, E]", "ids are no numbers"),
    (GRAPH, "%y = «graph.join_tokens %x, %g {of = L} : f32[L, E]", "differ in one dim"),
    (GRAPH, "%y = «graph.silu %x : f32[E, L]", "are not those of %x, [L, E]"),
    (GRAPH, "%y = «graph.gelu %x {form = fast} : f32[L, E]", "'form' is 'fast', but"),
    (GRAPH, "%y = «graph.rms_norm %x, %g {dim = F} : f32[L, E]", "'F' is no dim"),
    (GRAPH, "%y = «graph.rms_norm %x, %g {dim = E, also = [F]} : f32[L, E]", "'F' is no dim"),
    (GRAPH, "%y = «graph.rms_norm %x, %g {dim = E, also = [E]} : f32[L, E]", "twice: E, E"),
    (GRAPH, "%y = «graph.rms_norm %x, %g {dim = E, eps = -1.0} : f32[L, E]", "'eps' is -1.0"),
    (GRAPH, "%y = «graph.softmax %x {dim = E, mask = windowed} : f32[L, E]", "'mask' is"),
    (GRAPH, "%y = «graph.rope %x {dim = E, rows = L, style = spiral} : f32[L, E]", "'style' is"),
    (GRAPH, "%y = «graph.matmul %x, %w {contract = [F]} : f32[L, F]", "not a dim of both sides"),
    (
        GRAPH,
        "%y = «graph.matmul %x, %w {contract = [E], group = [E, F]} : f32[L]",
        "'group' names E: heads of the left side",
    ),
    (
        GRAPH,
        "%y = «graph.matmul %x, %w {contract = [E], group = [L, L]} : f32[L, F]",
        "'group' names L: heads of the left side",
    ),
    (GRAPH, "%y = «graph.softmax %x {dim = f32} : f32[L, E]", "no dim 'f32' of %x"),
    (GRAPH, "%y = «graph.softmax %x {dim = E, mask = causal, rows = Q} : f32[L, E]", "no dim 'Q'"),
    (GRAPH, "%y = «graph.top_k %x {dim = F, count = 1} : f32[L, E]", "'F' is no dim of the scores"),
    (GRAPH, "%y = «graph.top_k %x {dim = E, count = 9} : f32[L, E]", "9 are chosen of"),
    (GRAPH, "%y = «graph.top_k %x, %x {dim = E, count = 1} : f32[L, E]", "a number for each E"),
    (GRAPH, "%y = «graph.arg_max %x {dim = F} : f32[L]", "no dim 'F' of %x"),
    (GRAPH, "%y = «graph.arg_max %i {dim = L} : f32[]", "elements of type i32"),
    (GRAPH, "%y = «graph.arg_max %x {dim = E} : f16[L]", "gives f32[L], not f16[L]"),
    (GRAPH, "%y = «graph.draw %x, %g, %i {dim = F} : f32[L]", "no dim 'F' of %x"),
    (GRAPH, "%y = «graph.draw %x, %i, %i {dim = E} : f32[L]", "%i are not 4 of f32 for each"),
    (GRAPH, "%y = «graph.draw %x, %g, %i {dim = L} : f32[E]", "%i are not 4 of i32 for each"),
    (GRAPH, "%y = «graph.draw %x, %x, %i {dim = L} : f32[E]", "%x has other dims than what is"),
    (MESH, "%y = «mesh.first_at %x, %g {dim = E} : f32[L]<+x>", "E of %g does not lie as"),
    (MESH, "%y = «mesh.first_at %x, %x {dim = E} : f32[L]<+x>", "do not have the dims of %y"),
    (MESH, "%y = «mesh.first_at %x, %x {dim = F} : f32[L]<+x>", "by 'F'"),
    (GRAPH, "%y = «graph.embed %i, %g {dim = F} : f32[L]", "'F' is no dim of the table"),
    (GRAPH, "%y = «graph.embed %x, %w {dim = F} : f32[L, E]", "token ids are i32, not f32"),
    (GRAPH, "%y = «graph.append %x, %w {dim = L, rows = F} : f32[L, E]", "3 rows do not fit"),
    (GRAPH, "%y = «graph.append %x, %w {dim = E, rows = F} : f32[L, E]", "not have the dims of"),
    (GRAPH, "«graph.return %w", "returns other types than it declares"),
    (GRAPH, "%y = «mesh.silu %x : f32[L, E]", "in a module of the graph level"),
    (MESH, "%y = «mesh.top_k %x {dim = E, count = 1} : f32[L, E]<E_x:2>", "a core has some only"),
    (MESH, "%y = «mesh.add %x, %g : f32[L, E]<E_x:2>", "E of %g does not lie as that of %x"),
    (MESH, "%y = «mesh.silu %x : f32[L, E]<L_y:1>", "L of %y does not lie as that of %x"),
    (MESH, "%y = «mesh.row_sum %x {dim = L} : f32[E]<E_x:1>", "E of %y does not lie as that"),
    (MESH, "%y = «mesh.gemv %x, %w {contract = [E]} : f32[L, F]<F_y:1 +x>", "F of %y does not lie"),
    (MESH, "%y = «mesh.gemv %x, %g {contract = [E]} : f32[L]<+x>", "E of %g does not lie"),
    (MESH, "%y = «mesh.gemm %x, %w {contract = [E], axis = x} : f32[L, F]<F_y:2>", "over another"),
    (MESH, "%y = «mesh.gemm %x, %w {contract = [E]} : f32[L, F]<F_y:2>", "names no axis"),
    (MESH, "%y = «mesh.shift %x {axis = x, dim = E} : f32[L, E]<E_x:4>", "E of %y does not lie"),
    (MESH, "%y = «mesh.all_reduce %x {axis = z} : f32[L, E]<E_x:2>", "there is no axis 'z'"),
    (MESH, "%y = «mesh.all_reduce %x {axis = y} : f32[L, E]<E_x:2>", "must stand as '+'"),
    (MESH, "%y = «mesh.all_reduce %x {axis = y, algo = bus} : f32[L, E]<E_x:2>", "'algo' is 'bus'"),
    (MESH, "%y = «mesh.mask %x {dim = E, kind = random} : f32[L, E]<E_x:2>", "'kind' is 'random'"),
    (MESH, "%y = «mesh.rms_scale %x, %x, %x {dim = Q} : f32[L, E]<E_x:2>", "'Q' is no dim of"),
    (MESH, "%y = «mesh.rms_scale %x, %x, %x {dim = E} : f32[L, E]<E_x:2>", "which they have"),
    (MESH, "%y = «mesh.relayout %w : f32[L, F]<F_y:2 +x>", "keeps its dims, E, F"),
    (MESH, "«%y = mesh.silu %x : f32[L, E]", "has no layout"),
    (MESH, "«%y = mesh.silu %x : f32[L, E]<E_z:2>", "there is no axis z"),
    (MESH, "«%y = mesh.silu %x : f32[L, E]<E_x:5>", "keeps more lanes than E has, 4"),
]  # fmt: skip

HEADERS = [
    (TILE, ("dims E = 4", "«dims E = 0"), "dim E has the extent 0"),
    (TILE, ("scalars len = 1..8,", "«scalars len = 9..8,"), "scalar len has the empty range 9..8"),
    (TILE, ("scalars len = 1..8,", "«scalars len = 1..8, x = 0..1,"), "'x' is a coordinate"),
    (TILE, ("scalars len = 1..8,", "«scalars len = 1..8, N = 0..1,"), "'N' cannot be a name"),
    (TILE, ("buffer %v4 : f32[4]", "buffer «%v4 : f32[0]"), "an extent that is no positive number"),
    (TILE, ("channel @c", 'channel «@c "{ [y, x] -> [y] : x >= 1 }"\n  channel @d'), "gives 2"),
    (TILE, ("-> [y, x - 1]", "-> [y - 1, x - 1]"), "stays in its row or in its column"),
    (
        TILE,
        ("program", 'port «@q in f32[E] : %v4 {lanes = [i, j], element = ["i"]}\n  program'),
        "2 lanes for a buffer of 1 dims",
    ),
    (
        TILE,
        ("program", 'port «@q in f32[E] : %v4 {lanes = [i], element = ["k"]}\n  program'),
        "'k' is unknown here",
    ),
    (TILE, ("program", "port «@q in f32[E] : %v4 {lanes = [i]}\n  program"), "0 elements for"),
    (
        TILE,
        ("program", 'port «@q out f32[E] : %v4 {lanes = [i], element = ["i"]}\n  program'),
        "%v4 is scratch, which others may lie over",
    ),
    (GRAPH, ("weight %g: f32[E]", "weight «%g: f32[H]"), "dim H is not declared"),
    (GRAPH, ("weight %g: f32[E]", "weight «%g: f32[E, E]"), "dim E occurs twice"),
    (GRAPH, ("weight %g: f32[E]", "weight «%g: f32[E]<E_x:2>"), "a layout at the graph level"),
    (GRAPH, ("  dims", "  «mesh y = 2, x = 2\n  dims"), "others none"),
    (GRAPH, ("  dims", "  «rows dim = Q, capacity = Q\n  dims"), "Q"),
    (GRAPH, ("F = 3\n", "F = 3\n  «ranks count = 0\n"), "cannot be 0, but 1 to"),
    (GRAPH, ("F = 3\n", "F = 3\n  «ranks count = 4000000000000\n"), "but 1 to"),
    (
        GRAPH,
        (
            "E = 4, F = 3\n",
            "E = 4, F = 9000000000000\n  «ranks count = 2\n  part dim = E, whole = F\n",
        ),
        "2 parts of E do not hold each element of F",
    ),
    (MESH, ("  mesh y = 2, x = 2\n", ""), "modules of the mesh and tile levels have a mesh"),
    (MESH, ("weight %g: f32[E]<E_y:2>", "weight «%g: f32[E]<E_y:2 E_x:2>"), "is split twice"),
    (MESH, ("weight %g: f32[E]<E_y:2>", "weight «%g: f32[E]<L_y:2>"), "which is no dim of it"),
    (MESH, ("weight %g: f32[E]<E_y:2>", "weight «%g: f32[E]<E_y:0>"), "keeps no lane"),
]


def found(text):
    """The marked place, and the diagnostics of the rest."""
    before, mark, _ = text.partition("«")
    place = (before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1) if mark else None
    with pytest.raises(MeshcError) as caught:
        verify_module(parse_module(Source("m.meshir", text.replace("«", ""))))
    return place, caught.value.diagnostics


def check(text, code, words):
    """One diagnostic has the code, the words, the place and a help line."""
    place, diagnostics = found(text)
    assert any(words in d.message for d in diagnostics), diagnostics
    match = next(d for d in diagnostics if words in d.message)
    assert match.code == code
    assert match.help
    assert match.span is not None
    assert place in (None, (match.span.line, match.span.column)), match.render()
    return match


@pytest.mark.every_case
@pytest.mark.parametrize(("call", "words"), CALLS, ids=[words for _, words in CALLS])
def test_call_of_a_microkernel(call, words):
    match = check(TILE.replace("HERE", call), "kernel-views", words)
    kernel = KERNELS[call.replace("«", "").split()[0].removeprefix("tile.")]
    assert match.message.startswith(f"tile.{kernel.name}: ")
    # All operands with their shapes, and the declaration.
    assert all(f"{o.name} " in match.notes[0] for o in kernel.operands)
    assert f"tile.{kernel.name} " in match.help


@pytest.mark.every_case
@pytest.mark.parametrize(("module", "line", "words"), OPS, ids=[words for *_, words in OPS])
def test_op(module, line, words):
    check(module.replace("HERE", line), "invalid-ir", words)


@pytest.mark.every_case
@pytest.mark.parametrize(("module", "edit", "words"), HEADERS, ids=[words for *_, words in HEADERS])
def test_header(module, edit, words):
    sound = {TILE: "", GRAPH: "graph.return %x", MESH: "mesh.return %x"}[module]
    text = module.replace("HERE", sound)
    assert text.replace(*edit) != text
    verify_module(parse_module(Source("m.meshir", text)))
    check(text.replace(*edit), "invalid-ir", words)


def test_heads_are_not_padded():
    """Lanes come in pairs, so that an odd dim may have one of padding, but no core keeps a head
    that is none."""
    header = "rows dim = L, capacity = F\n  attention query = G, key = G, lane = E, keys = F"
    text = MESH.replace("HERE", "mesh.return %x").replace("F = 4\n", f"F = 4, G = 1\n  {header}\n")
    text = text.replace("weight %g: f32[E]<E_y:2>", "weight «%g: f32[G]<G_y:2>")
    check(text, "invalid-ir", "%g: G_y:2 keeps more lanes than G has, 1")
    verify_module(parse_module(Source("m.meshir", text.replace("«", "").replace("G_y:2", "G_y:1"))))


SHARING = """module @m level(mesh) {
  dims L = 1, S = 4, H = 4, G = 2, D = 2
  rows dim = L, capacity = S
  attention query = H, key = G, lane = D, keys = S
  mesh y = 1, x = 1
  func @f(in %q: f32[L, H, D]<>, in %k: f32[S, G, D]<>) -> (f32[L, H, S]<>) {
    %p = «mesh.gemv %q, %k {contract = [D], group = [H, G]} : f32[L, H, S]<>
    mesh.return %p
  }
}
"""


def test_heads_that_share_others_are_those_of_the_header():
    """Tiles of queries and keys are those of the header's heads, whatever a product says."""
    verify_module(parse_module(Source("m.meshir", SHARING.replace("«", ""))))
    other = SHARING.replace("query = H", "query = S")
    check(other, "invalid-ir", "the header does not say that heads H share heads G")


@pytest.mark.parametrize(
    ("sums", "result", "mistake"),
    [("f32", "f16", "%p is f16, but sums are f32"), ("f16", "f32", "%p is f32, but sums are f16")],
)
def test_sums_have_the_type_that_the_header_says(sums, result, mistake):
    options = f"options dtype = f16, accumulate = {sums}"
    text = SHARING.replace("f32", "f16").replace("  mesh y", f"  {options}\n  mesh y")
    product, kind = "group = [H, G]} : ", "[L, H, S]<>\n    mesh.return"
    typed = text.replace(f"{product}f16{kind}", f"{product}{result}{kind}")
    check(typed.replace("-> (f16", f"-> ({result}"), "invalid-ir", mistake)
    right = typed.replace(f"{product}{result}", f"{product}{sums}").replace("«", "")
    verify_module(parse_module(Source("m.meshir", right.replace("-> (f16", f"-> ({sums}"))))


def test_there_are_many():
    assert len(CALLS) + len(OPS) + len(HEADERS) >= 60
