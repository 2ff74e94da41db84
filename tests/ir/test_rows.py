"""Rows and attention in the header: text, mistakes, and what a graph without them is given."""

import pytest
from compared_modules import first_difference

from meshc.backends.cuda.packing.matrix_rows import interleaved
from meshc.devices import device
from meshc.frontend.language import elaborate, parse_model
from meshc.ir.affine import Expr, parse_expr
from meshc.ir.clone import clone_module
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.ir.rows import Attention, Paired, Rows
from meshc.ir.verifier import verify_module
from meshc.passes.manager import PassManager
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source

SECTIONS = "  rows dim = L, capacity = S\n  attention query = H, key = G, lane = D, keys = S\n"


def attending(head="", scores="", heads=", group = [H, G]"):
    """A decode step of grouped heads; ``head`` goes into its header."""
    keys = "G" if heads else "H"
    cache = f"f32[S, {keys}, D]"
    return (
        "module @m level(graph) {\n  dims L = 1, S = 6, H = 4, G = 2, D = 8, E = 3\n"
        f"  scalars pos = 0..5\n{head}"
        f"  func @f(in %q: f32[L, H, D], in %k: f32[L, {keys}, D], state %c: {cache}) "
        f"-> (f32[L, H, D], {cache}) {{\n"
        f"    %n = graph.append %c, %k {{dim = S, rows = L}} : {cache}\n"
        f"    %s = graph.matmul %q, %n {{contract = [D]{heads}}} : f32[L, H, S]\n"
        f"{scores}"
        "    %p = graph.softmax %s {dim = S, mask = causal, rows = L} : f32[L, H, S]\n"
        f"    %o = graph.matmul %p, %n {{contract = [S]{heads}}} : f32[L, H, D]\n"
        "    graph.return %o, %n\n  }\n}\n"
    )


def parse(text):
    return parse_module(Source("t.meshir", text))


def refused(make, *arguments):
    """The only error of ``make``."""
    with pytest.raises(MeshcError) as caught:
        make(*arguments)
    (found,) = caught.value.diagnostics
    return found


def test_sections_are_printed_and_read_back():
    module = parse(attending(SECTIONS))
    assert module.rows == Rows("L", "S")
    assert module.attention == (Attention("H", "G", "D", "S"),)
    assert (module.row_dim, module.capacity) == ("L", 6)
    assert SECTIONS in print_module(module)
    assert first_difference(module, clone_module(module)) is None
    verify_module(module)


def test_keys_without_heads_and_several_kinds_are_read_back():
    lines = "  rows dim = L, capacity = L\n  attention lane = L, keys = L\n"
    lines += "  attention query = L, lane = L, keys = L\n"
    text = f"module @m level(tile) {{\n  dims L = 1\n{lines}  program @p {{\n  }}\n}}\n"
    module = parse(text)
    assert module.attention == (Attention("", "", "L", "L"), Attention("L", "", "L", "L"))
    assert lines in print_module(module)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("head", "words", "line"),
    [
        ("  rows dim = L\n", "rows does not say its capacity", 4),
        ("  rows dim = 1, capacity = S\n", "'dim' of rows is no name of a dim", 4),
        ("  rows dim = L, capacity = S, cores = S\n", "rows has no 'cores'; there are dim", 4),
        ("  rows dim = L, capacity = S\n" * 2, "the header says its rows twice", 5),
        ("  attention query = H, key = G, lane = D\n", "attention does not say its keys", 4),
        ("  paired k = 3\n", "what is paired of 'k' is no name of a dim", 4),
        ("  paired k = [D, D]\n", "what is paired of 'k' is no name of a dim", 4),
        ("  attention key = G, lane = D, keys = S\n", "names no query heads", 4),
    ],
)
def test_mistakes_in_the_text(head, words, line):
    found = refused(parse, attending(head))
    assert found.code == "bad-meshir"
    assert words in found.message
    assert found.span.line == line


@pytest.mark.parametrize(
    ("old", "new", "words", "line"),
    [
        ("dim = L, capacity = S", "dim = L, capacity = Z", "rows: Z is no dim", 4),
        ("lane = D", "lane = Z", "attention: Z is no dim", 5),
        ("query = H, key = G", "query = E, key = G", "the 2 heads of G do not divide the 3", 5),
        ("keys = S", "keys = E", "its keys are E, but the capacity of rows is S", 5),
        (SECTIONS, SECTIONS + SECTIONS[29:], "the same one is recorded twice", 5),
        ("  rows dim = L, capacity = S\n", "", "the header says no rows", 4),
    ],
)
def test_mistakes_that_the_verifier_finds(old, new, words, line):
    head = "module @m level(tile) {\n  dims L = 1, S = 6, H = 4, G = 2, D = 8, E = 3\n"
    head += "  mesh y = 1, x = 1\n"
    text = f"{head}{SECTIONS.replace(old, new)}  program @p {{\n  }}\n}}\n"
    with pytest.raises(MeshcError) as caught:
        verify_module(parse(text))
    found = [d for d in caught.value.diagnostics if words in d.message]
    assert found, [d.message for d in caught.value.diagnostics]
    assert found[0].code == "invalid-ir"
    assert found[0].span.line == line


PAIRED = """module @m level(graph) {
  dims L = 1, E = 4, D = 8, F = 3
  rows dim = L, capacity = L
  paired w = D, v = [D, 4]
  func @f(in %x: f32[L, E], weight %w: f32[E, D], weight %v: f32[D, F]) -> (f32[L, F]) {
    %y = graph.matmul %x, %w {contract = [E]} : f32[L, D]
    %z = graph.matmul %y, %v {contract = [D]} : f32[L, F]
    graph.return %z
  }
}
"""


def test_weights_whose_lanes_are_paired():
    module = parse(PAIRED)
    verify_module(module)
    assert module.paired == {"w": Paired("D"), "v": Paired("D", 4)}
    assert print_module(clone_module(module)) == PAIRED
    clone_module(module).paired.clear()
    assert print_module(module) == PAIRED


@pytest.mark.parametrize(
    ("paired", "words"),
    [
        ("x = E", "paired: there is no weight 'x'"),
        ("v = E", "paired: E is no dim of 'v' with an even number of lanes"),
        ("v = F", "paired: F is no dim of 'v' with an even number of lanes"),
        ("v = [D, 10]", "paired: D of 'v' has no runs of 10 lanes"),
        ("v = [D, 3]", "paired: D of 'v' has no runs of 3 lanes"),
        ("v = [D, -4]", "paired: D of 'v' has no runs of -4 lanes"),
    ],
)
def test_mistakes_in_pairs(paired, words):
    found = refused(verify_module, parse(PAIRED.replace("w = D, v = [D, 4]", paired)))
    assert (found.message, found.span.line) == (words, 4)


@pytest.mark.parametrize(("lanes", "run"), [(8, 0), (8, 4), (12, 4), (8, 6), (128, 96), (6, 4)])
def test_pairs_are_a_half_of_their_run_apart(lanes, run):
    """Those that turn are pairs i, i + n/2 in their order, and each lane is taken once."""
    taken = [Paired("D", run).element(lane, lanes) for lane in range(lanes)]
    half = (run or lanes) // 2
    assert taken[: 2 * half] == [lane for i in range(half) for lane in (i, i + half)]
    assert sorted(taken) == list(range(lanes))
    assert interleaved(lanes, run).tolist() == taken
    text = str(Paired("D", run).element(Expr.var("i"), lanes))
    assert [parse_expr(text).evaluate({"i": lane}) for lane in range(lanes)] == taken


@pytest.mark.parametrize(("lanes", "run"), [(8, 3), (8, 10), (7, 0), (14, 4), (15, 8)])
def test_runs_that_are_none(lanes, run):
    assert not Paired("D", run).fits(lanes)


def test_a_weight_that_is_dropped_is_paired_no_more():
    unused = "weight %v: f32[D, F], weight %u: f32[E, D]"
    text = PAIRED.replace("weight %v: f32[D, F]", unused).replace("[D, 4]\n", "[D, 4], u = D\n")
    module = PassManager(pipeline_to("graph")).run(parse(text))
    assert module.paired == {"w": Paired("D"), "v": Paired("D", 4)}


def test_a_graph_must_say_what_it_shows():
    other = SECTIONS.replace("lane = D", "lane = E")
    found = refused(verify_module, parse(attending(other)))
    wanted = "graph.matmul: the header does not say attention query = H, key = G, lane = D, keys"
    assert wanted in found.message
    assert found.span.line == 8
    module = parse(attending())
    module.rows = Rows("L", "L")
    module.attention = ()
    with pytest.raises(MeshcError) as caught:
        verify_module(module)
    messages = [d.message for d in caught.value.diagnostics]
    assert "its rows have dim = L, capacity = S, but the header says dim = L, c" in messages[0]


@pytest.mark.parametrize(
    "between",
    [
        "",
        "    %t = graph.scale %s {factor = 0.5} : f32[L, H, S]\n",
        "    %u = graph.transpose %s {dims = [H, L, S]} : f32[H, L, S]\n"
        "    %t = graph.transpose %u {dims = [L, H, S]} : f32[L, H, S]\n",
    ],
)
def test_a_graph_without_the_sections_gets_them(between):
    text = attending(scores=between)
    if between:
        text = text.replace("softmax %s", "softmax %t")
    assert SECTIONS in print_module(parse(text))


def test_heads_of_their_own_are_one_dim():
    module = parse(attending(heads=""))
    assert module.attention == (Attention("H", "H", "D", "S"),)


def test_scores_that_no_softmax_reads_are_no_attention():
    text = attending().replace("softmax %s {dim = S, mask = causal, rows = L}", "silu %s")
    module = parse(text)
    assert (module.rows, module.attention) == (Rows("L", "S"), ())


@pytest.mark.parametrize(
    ("params", "rows"),
    [
        ("in %x: f32[L, E]", Rows("L", "L")),
        ("in %x: f32[B, L, E]", Rows("L", "L")),
        ("in %x: i32[B, L]", Rows("L", "L")),
        ("in %x: f32[B, E]", Rows("B", "B")),
        ("in %x: f32[E]", None),
        ("weight %w: f32[L, E], in %x: f32[E]", None),
    ],
)
def test_rows_of_a_graph_without_caches(params, rows):
    text = f"module @m level(graph) {{\n  dims B = 1, L = 2, E = 4\n  func @f({params}) -> () {{\n"
    assert parse(text + "    graph.return\n  }\n}\n").rows == rows


ONE = """model m(E=8, H=4, G=2, D=4) {
  weights f32  accumulate f32
  heads H share G
  param wq[E, H, D], wk[E, G, D], wv[E, G, D], wo[H, D, E]
  main(x[B, L, E]) -> [B, L, E] {
    k = append(cache.k, x @ wk)
    v = append(cache.v, x @ wv)
    s = softmax((x @ wq) @ transpose(k) / sqrt(D), mask = causal)
    y = x + (s @ v) @ wo
    return y
  }
}"""
SECOND = """    l = append(cache.l, y @ uk)
    w = append(cache.w, y @ uv)
    t = softmax((y @ uq) @ transpose(l) / sqrt(C), mask = causal)
    return y + (t @ w) @ uo
"""
TWO = ONE.replace("D=4)", "D=4, M=2, C=6)").replace("    return y\n", SECOND)
TWO = TWO.replace(
    "wo[H, D, E]\n", "wo[H, D, E], uq[E, M, C], uk[E, M, C], uv[E, M, C], uo[M, C, E]\n"
)
FLAT = ONE.replace("  heads H share G\n", "").replace("G, D]", "D]").replace("H, D]", "D]")
FLAT = FLAT.replace("wo[H, D, E]", "wo[D, E]").replace("G=2, ", "")

LAID_OUT = {"partition": "partition{grid=2x2}"}


def made(text, phase):
    module = elaborate(parse_model(Source("m.mesh", text)), phase, seq=6)
    module.options["dtype"] = "f32"
    module.device = device("ideal")
    verify_module(module)
    return module


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_frontend_records_them(phase):
    module = made(ONE, phase)
    assert module.rows == Rows("L", "S")
    assert module.attention == (Attention("H", "G", "D", "S"),)
    for level in ("graph", "mesh", "tile"):
        lowered = PassManager(pipeline_to(level, LAID_OUT)).run(made(ONE, phase))
        assert (lowered.rows, lowered.attention) == (module.rows, module.attention)
        assert SECTIONS in print_module(lowered)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        (
            TWO,
            "attention of query = M, key = M, lane = C, keys = S beside one of query = H, key = G, "
            "lane = D, keys = S has no distributed form yet",
            12,
        ),
        (FLAT, "attention without a head dim has no distributed form yet", 7),
    ],
)
def test_what_no_mesh_computes_is_refused_at_its_product(text, words, line, phase):
    found = refused(PassManager(pipeline_to("mesh", LAID_OUT)).run, made(text, phase))
    assert (found.code, found.message, found.span.line) == ("unsupported-op", words, line)
