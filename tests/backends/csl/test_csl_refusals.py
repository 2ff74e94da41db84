"""A program that takes more than a device has is refused, and the letter of PLMR is named."""

import pytest
from csl_runs import PRODUCT, emit, tile_text
from csl_texts import chain, exchange, tile_program

from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.plmr import LETTERS, letter_of

COLORS = '{send_color = "0", recv_color = "0", queue = 2, output_queue = 2}'
DIAGONAL = f'  channel @ring_x "{{ [y, x] -> [y + 1, x - 1] : x >= 1 and y = 0 }}" {COLORS}\n'
SLOTS = "  buffer %d : f32[2, 4500]\n"


def chains(count):
    """As many channels between neighbours."""
    names = [f"chain_x_1_{n}" for n in range(count)]
    return names, "".join(map(chain, names))


def many_at_once(count):
    names, header = chains(count)
    return "".join(exchange(name, n, wait=False) for n, name in enumerate(names)), header


def many_in_turn(count):
    names, header = chains(count)
    return "".join(exchange(name, n) for n, name in enumerate(names)), header


def one_after_the_other(count):
    body = "".join(exchange("chain_x_1", n, view="[0 +: 1]", wait=False) for n in range(count))
    return body, chain()


def overlapping():
    first = exchange("chain_x_1", 1, wait=False)
    second = exchange("chain_x_1", 2, sends="x >= 2", gets="x = 1", view="[0 +: 2]")
    return first + second + "    tile.wait %s1, %r1\n", chain()


def diagonal():
    return exchange("ring_x", sends="x >= 1 and y = 0", gets="x <= 1 and y = 1"), DIAGONAL


EMITTED = {
    "queues": ("csl-queues", "R", many_at_once(5)),
    "tasks": ("csl-tasks", "R", one_after_the_other(14)),
    "one queue for two": ("csl-overlap", "R", overlapping()),
    "a route around a corner": ("csl-route", "R", diagonal()),
    "scratch": ("csl-memory-full", "M", ('    tile.rotate %d {by = "x"}\n', SLOTS)),
    "colors": ("too-many-routes", "R", many_in_turn(11)),
    "input queues": ("too-many-routes", "R", many_in_turn(7)),
}


@pytest.mark.every_case
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("name", EMITTED)
def test_refused_programs_name_the_letter(name, arch):
    code, letter, (body, header) = EMITTED[name]
    rows = 2 if "y" in header.partition(" : ")[2] else 1
    with pytest.raises(MeshcError) as caught:
        emit({"main": tile_text(tile_program(body, header, rows=rows), arch)})
    (found,) = caught.value.diagnostics
    assert (found.code, letter_of(found)) == (code, letter)
    assert LETTERS[letter] in found.render()


COMPILED = {
    "memory": ("does-not-fit", "M", 700, {"mesh": "4x4"}),
    "a mesh larger than the wafer": ("mesh-too-large", "P", 8, {"mesh": "2000x2"}),
}


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("name", COMPILED)
def test_refused_models_name_the_letter(name, arch, tmp_path):
    code, letter, n, options = COMPILED[name]
    source = tmp_path / "program.mesh"
    source.write_text(PRODUCT.format(m=n, k=n, n=n, accumulate="f32"))
    report = Diagnostics()
    request = CompileRequest(target="csl", device=arch, **options)
    with pytest.raises(MeshcError) as caught:
        compile_loaded(load_any(str(source), report), request, (), report)
    (found,) = caught.value.diagnostics
    assert (found.code, letter_of(found)) == (code, letter)


def test_programs_of_several_requests_are_refused():
    """A loop whose rounds have positions of their own, and a phase that is told its request."""
    loop = "tile.for {var = q, count = 2, each = [pos]} {\n tile.silu %d[q], %d[q]\n}"
    for body, scalars in ((loop, "pos = 0..3"), ("tile.silu %d, %d", "request = 0..1")):
        text = tile_program(body, SLOTS).replace("  mesh ", f"  scalars {scalars}\n  mesh ", 1)
        with pytest.raises(MeshcError) as caught:
            emit({"main": tile_text(text, "wse2")})
        assert [d.code for d in caught.value.diagnostics] == ["unsupported-batch"]
