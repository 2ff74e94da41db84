"""What the verifier refuses: each rule once, and all mistakes of a module at once."""

import pytest

from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.ir.verifier import verify_module
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source


def errors(text):
    """Messages of the verifier, empty for a sound module."""
    module = parse_module(Source("t.meshir", text))
    try:
        verify_module(module)
    except MeshcError as error:
        assert {d.code for d in error.diagnostics} == {"invalid-ir"}
        return [d.message for d in error.diagnostics]
    return []


def graph(body, params="in %x: f32[L, E]", results="f32[L, E]", head=""):
    return (
        f"module @m level(graph) {{\n  dims L = 2, E = 4, F = 3\n{head}"
        f"  func @f({params}) -> ({results}) {{\n{body}\n  }}\n}}\n"
    )


def mesh(body, params="in %x: f32[L, E]<E_x:2>", results="f32[L, E]<E_x:2>"):
    return (
        "module @m level(mesh) {\n  dims L = 2, E = 4\n  mesh y = 2, x = 2\n"
        f"  func @f({params}) -> ({results}) {{\n{body}\n  }}\n}}\n"
    )


def tile(body, head=""):
    return (
        "module @m level(tile) {\n  dims E = 4\n  scalars pos = 0..3\n"
        "  mesh y = 2, x = 2\n  buffer %a : f32[4] {role = in}\n"
        f'  buffer %b : f32[2, 4]\n  channel @c "{{ [y, x] -> [y, x - 1] : x >= 1 }}"\n{head}'
        f"  program @p {{\n{body}\n  }}\n}}\n"
    )


SILU = "%y = graph.silu %x : f32[L, E]\n graph.return %y"


def test_sound_modules_pass():
    assert errors(graph(SILU)) == []
    assert errors(mesh("%y = mesh.silu %x : f32[L, E]<E_x:2>\n mesh.return %y")) == []
    assert errors(tile("tile.silu %a, %a")) == []


def test_rows_and_caches_may_have_more_room_than_they_need():
    """Whole chunks of rows, and the last rows of a mesh that keep all that is new."""
    for split in ("L_y%:64", "L_y~:64"):
        kind = f"f32[L, E]<{split}>"
        body = f"%y = mesh.silu %x : {kind}\n mesh.return %y"
        assert errors(mesh(body, params=f"in %x: {kind}", results=kind)) == []


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (graph("%y = graph.silu %x : f32[E, L]\n graph.return %y"), "not those of %x, [L, E]"),
        (graph("%y = graph.silu %x, %x : f32[L, E]\n graph.return %y"), "takes 1 operands, not 2"),
        (graph("%y = graph.add %x : f32[L, E]\n graph.return %y"), "takes 2 operands, not 1"),
        (graph("graph.silu %x\n graph.return %x"), "gives 1 results, not 0"),
        (graph("%y = graph.silu %x : f32[L, E]"), "does not end in a return"),
        (graph("graph.return %x\n graph.return %x"), "is not the last op"),
        (graph("graph.return %x", results="f32[E, L]"), "returns other types"),
        (graph("graph.return %x", params="in %x: f32[L, Z]", results="f32[L, Z]"), "dim Z is not"),
        (graph("graph.return %x", params="in %x: f32[L, L]", results="f32[L, L]"), "occurs twice"),
        (graph("%y = mesh.silu %x : f32[L, E]\n graph.return %y"), "in a module of the graph"),
        (graph(SILU, head="  options dtype = f64\n"), "option dtype is 'f64'"),
        (graph(SILU, head="  scalars pos = 3..0\n"), "the empty range 3..0"),
        (graph(SILU, head="  scalars owner = 0..3\n"), "of which none has its pos"),
        (graph(SILU, head="  scalars pos = 0..3, ahead = 0..3\n"), "of which none has its owner"),
        (graph(SILU, head="  mesh y = 1, x = 1\n"), "others none"),
        (graph("graph.return %x", params="in %x: f32[2]", results="f32[2]"), "the tile level"),
        (
            graph("%y = graph.matmul %x, %x {contract = [F]} : f32[L, E]\n graph.return %y"),
            "not a dim of both sides",
        ),
        (
            graph("%y = graph.append %x, %x {dim = F} : f32[L, E]\n graph.return %y"),
            "'F' is no dim of the cache %x",
        ),
        (
            graph("%y = graph.append %x, %x {dim = L, rows = E} : f32[L, E]\n graph.return %y"),
            "4 rows do not fit a cache of 2",
        ),
        (
            mesh("%y = mesh.append %x, %x {dim = F} : f32[L, E]<E_x:2>\n mesh.return %y"),
            "'F' is no dim of the cache %x",
        ),
        (
            mesh(
                "%y = mesh.append %x, %w {dim = L} : f32[L, E]<E_x:4>\n mesh.return %y",
                params="in %x: f32[L, E]<E_x:2>, in %w: f32[E]<E_x:2>",
            ),
            "gives f32[L, E]<E_x:2>, not f32[L, E]<E_x:4>",
        ),
        (
            mesh(
                "%y = mesh.append %x, %w {dim = L} : f32[L, E]<E_x:2>\n mesh.return %y",
                params="in %x: f32[L, E]<E_x:2>, in %w: f32[E]<E_y:2>",
            ),
            "the new entries %w do not lie where the cache %x has them",
        ),
        (
            mesh(
                "%y = mesh.gemv %x, %w {contract = [E, attention]} : f32[L, F]<+x>\n"
                " mesh.return %y",
                params="in %x: f32[L, E]<E_x:2>, weight %w: f32[E, F]<E_x:2>",
            ),
            "mesh.gemv: contracts attention, not a dim of both sides",
        ),
        (
            mesh(
                "%y = mesh.gemv %x, %w {contract = [E]} : f32[L, E]<E_x:2>\n mesh.return %y",
                params="in %x: f32[L, E]<E_x:2>, weight %w: f32[E, F]<E_x:2>",
            ),
            "mesh.gemv: the dims of %y are not L, F, which are left",
        ),
        (
            mesh(
                "%y = mesh.gemm %x, %w {contract = [E], group = [L], axis = x} : f32[L, E]<E_x:2>\n"
                " mesh.return %y",
                params="in %x: f32[L, E]<E_x:2>, weight %w: f32[E, F]<E_x:2>",
            ),
            "mesh.gemm: 'group' names 1 dims",
        ),
        (
            mesh("%y = mesh.row_max %x {dim = Z} : f32[L]<+x>\n mesh.return %x"),
            "mesh.row_max: does not take [L, E] by 'Z' to [L]",
        ),
        (
            mesh("%y = mesh.square_sum %x {dim = E} : f32[E]<E_x:2>\n mesh.return %x"),
            "mesh.square_sum: does not take [L, E] by 'E' to [E]",
        ),
        (
            mesh(
                "%y = mesh.row_sum %x {dim = E} : f32[L]<+x>\n mesh.return %x",
                params="in %x: f32[L, E]<E_x*2:4>",
                results="f32[L, E]<E_x*2:4>",
            ),
            "mesh.row_sum: several cores have the same part of E",
        ),
        (
            mesh(
                "%y = mesh.gemv %x, %w {contract = [E]} : f32[L, F]<+x>\n mesh.return %x",
                params="in %x: f32[L, E]<E_x*2:4>, weight %w: f32[E, F]<E_x*2:4>",
                results="f32[L, E]<E_x*2:4>",
            ),
            "mesh.gemv: several cores have the same part of E",
        ),
        (
            mesh(
                "%y = mesh.all_gather %x {axis = x, dim = E} : f32[L, E]<>\n mesh.return %x",
                params="in %x: f32[L, E]<E_x*2:4>",
                results="f32[L, E]<E_x*2:4>",
            ),
            "mesh.all_gather: several cores have the same part of E",
        ),
        *(
            (
                mesh(
                    f"%y = mesh.silu %x : f32[L, E]<{split}>\n mesh.return %y",
                    params=f"in %x: f32[L, E]<{split}>",
                    results=f"f32[L, E]<{split}>",
                ),
                f"{split} does not give equal groups of x the same block",
            )
            for split in ("E_x*3:4", "E_x*0:4", "E_x*2%:4", "E_x*2>>y:4")
        ),
        (
            mesh("%y = mesh.mask %x {dim = F} : f32[L, E]<E_x:2>\n mesh.return %y"),
            "mesh.mask: 'F' is no dim of the scores",
        ),
        (
            mesh("%y = mesh.mask %x {dim = E, rows = Z} : f32[L, E]<E_x:2>\n mesh.return %y"),
            "mesh.mask: there is no dim 'Z' of rows",
        ),
        (
            graph(
                "%y = graph.repeat %x {dim = E} : f32[L, E] (%h: f32[L, E]) {\n"
                "%z = graph.silu %h : f32[L, E]\n}\n graph.return %y"
            ),
            "the body does not end in a yield",
        ),
        (
            graph(
                "%y = graph.repeat %x {dim = E} : f32[L, E] (%h: f32[L]) {\n"
                "graph.yield %x\n}\n graph.return %y"
            ),
            "the block does not take",
        ),
        (mesh("mesh.return %x", params="in %x: f32[L, E]"), "has no layout"),
        (mesh("mesh.return %x", params="in %x: f32[L, E]<F_x:2>"), "which is no dim of it"),
        (mesh("mesh.return %x", params="in %x: f32[L, E]<E_x:2 E_y:2>"), "is split twice"),
        (mesh("mesh.return %x", params="in %x: f32[L, E]<E_x:2 +z>"), "there is no axis z"),
        (
            mesh("%y = mesh.all_reduce %x {axis = z} : f32[L, E]<E_x:2>\n mesh.return %y"),
            "there is no axis 'z'",
        ),
        (tile("tile.silu %a"), "takes 2 operands, not 1"),
        (tile("tile.silu %b[5, 0], %b[0, 0]"), "leaves the buffer"),
        (tile("tile.silu %a[3 +: 2], %a[0 +: 2]"), "leaves the buffer"),
        (tile("tile.silu %a[0, 0], %a[0]"), "indexes 2 dims of 1"),
        (tile("tile.silu %a as [5], %b[0]"), "reshapes 4 elements to 5"),
        (tile("tile.silu %b order [0, 0], %b"), "has no permutation"),
        (tile("tile.silu %a[0 +: x], %a"), "an extent of %a[0 +: x] names 'x'"),
        (tile("tile.silu %a[k +: 1], %a[0 +: 1]"), "names 'k', unknown here"),
        (tile('tile.silu %a, %a {when = "q = 0"}'), "the guard names 'q'"),
        (tile('tile.for {var = i, count = "x"} {\n}'), "the count names 'x'"),
        (tile("%t = tile.send @d, %a : token"), "channel @d is not declared"),
        (tile("%t = tile.send %a, %a : token"), "takes a channel and a view"),
        (
            tile("%t = tile.recv @c, %a {combine = mul} : token"),
            "'combine' is 'mul', but it is one of",
        ),
        (tile("%t = tile.send @c, %a : f32[4]"), "gives a token"),
        (tile("tile.wait %a"), "cannot take %a"),
        (tile("tile.for {var = x, count = 2} {\n}"), "tile.for: 'x' is a coordinate of a core"),
        (tile("tile.for {var = rank_y, count = 2} {\n}"), "'rank_y' is a coordinate of a core"),
        (
            tile("", '  port @a in f32[E] : %a {lanes = [y], element = ["y"]}\n'),
            "port @a: 'y' is a coordinate of a core",
        ),
        (
            tile("", '  port @a in f32[E] : %a {lanes = [i], lets = ["x = i"], element = ["i"]}\n'),
            "port @a: 'x' is a coordinate of a core",
        ),
        (tile("", "  scalars x = 0..1\n"), "the header: 'x' is a coordinate of a core"),
        (
            tile("tile.for {var = i, count = 2} {\n%t = tile.send @c, %a : token\n}\ntile.wait %t"),
            "is not defined in this block",
        ),
        (tile("", '  channel @c "{ [y, x] -> [y - 1, x] : y >= 1 }"\n'), "@c is declared twice"),
        (
            tile("", '  port @a in f32[E] : %a {lanes = [i, j], element = ["i"]}\n'),
            "2 lanes for a buffer of 1 dims",
        ),
        (tile("", "  port @a in f32[E] : %a {lanes = [i], element = []}\n"), "0 elements"),
        (
            tile("", '  port @a in f32[E] : %a {lanes = [i], element = ["i + k"]}\n'),
            "'k' is unknown here",
        ),
        (
            tile(
                "",
                '  port @a in f32[E] : %a {lanes = [i], element = ["i"]}\n'
                '  port @a in f16[E] : %a {lanes = [i], element = ["i"]}\n',
            ),
            "is declared for two tensors",
        ),
    ],
)
def test_rule(text, words):
    found = errors(text)
    assert any(words in message for message in found), found


def test_all_mistakes_at_once():
    text = graph(
        "%y = graph.silu %x : f32[E, L]\n"
        "%z = graph.add %x : f32[L, E]\n"
        "%w = graph.rms_norm %x, %x {dim = F} : f32[L, E]\n"
    )
    assert len(errors(text)) == 4


def test_place_of_a_mistake():
    module = parse_module(Source("t.meshir", graph("%y = graph.silu %x : f32[L]\n")))
    with pytest.raises(MeshcError) as error:
        verify_module(module)
    assert error.value.diagnostics[0].span.line == 4


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("seq = inf", "no whole number from 1"),
        ("seq = 0", "no whole number from 1"),
        ("seq = true", "no whole number from 1"),
        ("row_dim = L", "such as: rows dim = L, capacity = S; compile again"),
        ("capacity = 8", "such as: rows dim = L, capacity = S; compile again"),
        ('paired = "wq,wk"', "such as: paired wq = D, wk = D"),
        ('head_dims = "H G D S L"', "such as: attention query = H, key = G, lane = D, keys = S"),
        ('grid = "4x4"', "a setting of passes: partition{grid=24x24} or --mesh 24x24"),
        ("align = host", "a setting of passes: partition{align=host} or --align host"),
        ("gemm = cannon", "a setting of passes: partition{gemm=transposed}, select-gemm"),
        ("result = roots", "a setting of passes: partition{result=roots}"),
        ("all_reduce = ring", "a setting of passes: select-collective{algo=k_tree,k=2}"),
        ("phase = 3", "no text"),
        ("dtype = f64", "no element type"),
    ],
)
def test_options_are_what_passes_read(option, words):
    text = graph(SILU, head=f"  options {option}\n")
    with pytest.raises(MeshcError) as caught:
        verify_module(parse_module(Source("t.meshir", text)))
    (found,) = caught.value.diagnostics
    assert words in found.message
    assert found.span.line == 3


def test_options_of_others_are_kept():
    assert errors(graph(SILU, head="  options theirs = inf\n")) == []


@pytest.mark.parametrize(
    ("route", "words"),
    [
        ("{ [y, x] -> [y] : x >= 1 }", "gives 2 coordinates, not 1"),
        ("{ [y] -> [y - 1] : y >= 1 }", "a route maps [y, x], not"),
        ("{ [x, y] -> [x, y - 1] : y >= 1 }", "a route maps [y, x], not"),
        ("{ [y, x] -> [y - 1, x - 1] : x >= 1 }", "stays in its row or in its column"),
        ("{ [y, x] -> [y - 1, x] : x >= 1; [y, x] -> [y, x - 1] : x = 0 }", "stays in its row"),
        ("{ [y, x] -> [y, x - n] : x >= 1 }", "'n' is unknown here"),
        ("{ [y, x] -> [y, _x] : x = 0 and _x >= 1 }", "of a multicast"),
    ],
)
def test_routes_lead_along_a_line(route, words):
    text = tile("tile.silu %a, %a").replace("{ [y, x] -> [y, x - 1] : x >= 1 }", route)
    (message,) = errors(text)
    assert words in message


def rounds(body, head="for {var = q, count = 2, each = [pos]}"):
    return tile(f"tile.{head} {{\n{body}\n}}")


ROPE = 'tile.rope %b[q] as [1, 4], %b[q] as [1, 4], %a[0 +: 2] {position = "pos", step = 1}'


def test_rounds_of_a_loop_may_have_scalars_of_their_own():
    assert errors(rounds(ROPE)) == []
    module = parse_module(Source("t.meshir", rounds(ROPE)))
    (loop,) = module.program.body.ops
    assert loop.each == ("pos",)
    text = print_module(module)
    assert "tile.for {var = q, count = 2, each = [pos]} {" in text
    assert print_module(parse_module(Source("again", text))) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (rounds(ROPE, "for {var = q, count = 2, each = [len]}"), "'len' as each, which is no"),
        (rounds(ROPE, 'for {var = q, count = "pos", each = [pos]}'), "but the count pos"),
        (rounds(f"tile.for {{var = p, count = 2, each = [pos]}} {{\n{ROPE}\n}}"), "loop that does"),
        (
            tile(f"tile.for {{var = q, count = 2, each = [pos]}} {{\n{ROPE}\n}}\n"
                 f"tile.for {{var = q, count = 1, each = [pos]}} {{\n{ROPE}\n}}"),
            "has 2 of 'pos', another loop 1",
        ),
        (
            tile(f"tile.for {{var = q, count = 2, each = [pos]}} {{\n{ROPE}\n}}\n"
                 'tile.silu %a, %a {when = "pos = 0"}'),
            "names 'pos', unknown here",
        ),
        (
            tile(
                f"tile.for {{var = q, count = 2, each = [pos]}} {{\n{ROPE}\n}}",
                '  port @x in f32[E] : %a {lanes = [i], element = ["i + pos"]}\n',
            ),
            "'pos' is unknown here",
        ),
        (
            tile(
                f"tile.for {{var = q, count = 2, each = [pos]}} {{\n{ROPE}\n}}",
                '  channel @d "{ [y, x] -> [y, x - 1] : x >= 1 and pos = 0 }"\n',
            ),
            "'pos' is unknown here",
        ),
    ],
)  # fmt: skip
def test_scalars_of_rounds_have_no_value_elsewhere(text, words):
    assert any(words in message for message in errors(text)), errors(text)


LAYERS = """\
module @m level(graph) {
  dims N = 3, L = 2, S = 4, E = 4
  scalars len = 1..2, first = 0..2, count = 0..3
  func @f(in %%x: f32[L, E], weight %%w: f32[N, E], state %%c: f32[N, S, E]) -> (f32[L, E], f32[N, S, E]) {
    %%y, %%d = graph.repeat %%x, %%w, %%c {dim = N, rounds = %s} : f32[L, E], f32[N, S, E] (%%h: f32[L, E], %%v: f32[E], %%k: f32[S, E]) {
      %%r = graph.rms_norm %%h, %%v {dim = E} : f32[L, E]
      %%g = graph.append %%k, %%r {dim = S, rows = L} : f32[S, E]
      %%o = graph.scale %%g {factor = 2.0} : f32[S, E]
      graph.yield %%r, %s
    }
    graph.return %%y, %%d
  }
}
"""  # noqa: E501


def test_loops_may_run_some_of_their_layers():
    text = LAYERS % ("[first, count]", "%g")
    assert errors(text) == []
    assert (
        print_module(parse_module(Source("t.meshir", text))).count("rounds = [first, count]") == 1
    )


@pytest.mark.parametrize(
    ("rounds", "kept", "words"),
    [
        ("[first]", "%g", "rounds are no two run-time scalars"),
        ("[first, many]", "%g", "rounds are no two run-time scalars"),
        ("[first, count, len]", "%g", "rounds are no two run-time scalars"),
        ("[first, count]", "%o", "continues no stack"),
    ],
)
def test_what_a_run_leaves_out_must_be_known(rounds, kept, words):
    assert any(words in message for message in errors(LAYERS % (rounds, kept)))


def test_a_scalar_may_be_a_multiple():
    body = "    graph.return %x"
    text = graph(body, head="  scalars pos = 0..12 by 4\n")
    assert errors(text) == [] and "pos = 0..12 by 4" in print_module(
        parse_module(Source("t.meshir", text))
    )
    for wrong in ("pos = 2..12 by 4", "pos = 0..12 by 0"):
        found = errors(graph(body, head=f"  scalars {wrong}\n"))
        assert any("is no multiple" in message for message in found)
