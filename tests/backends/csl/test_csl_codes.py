"""What the CSL back end refuses, and with which words."""

from dataclasses import replace

import pytest
from csl_runs import emit, tile_text
from csl_texts import chain, exchange, tile_program

from meshc.devices import device
from meshc.ir.affine import Cond, parse_expr
from meshc.ir.ops import graph
from meshc.ir.parser import parse_module
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source

COPY = "    tile.copy %b, %a\n"


def refused(module):
    with pytest.raises(MeshcError) as caught:
        emit({"main": module})
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


def refused_text(body, header="", arch="wse2", **options):
    return refused(tile_text(tile_program(body, header, **options), arch))


def test_device():
    module = tile_text(tile_program(COPY), "wse2")
    module.device = device("ideal")
    assert refused(module).code == "csl-device"


def test_kernels():
    mask = "query = 0, query_step = 1, key = 0, key_step = 0, limit = 4"
    found = refused_text(f"    tile.mask_causal %b as [2, 2] {{{mask}}}\n")
    assert found.code == "csl-kernel"
    assert "a key_step of 1 or more" in found.message


@pytest.mark.parametrize(
    ("extent", "problem"), [("pos", "may be 0"), ("t + 1", "depends on more than the scalars")]
)
def test_extents(extent, problem):
    copy = f"      tile.copy %b[0 +: {extent}], %a[0 +: {extent}]\n"
    found = refused_text("    tile.for {var = t, count = 2} {\n" + copy + "    }\n")
    assert found.code == "csl-extent" and problem in found.message


MIXED_PRODUCT = """\
    tile.gemm %h as [2, 2], %a as [2, 2], %b as [2, 2] {accumulate = false, transposed = true}
"""


@pytest.mark.parametrize(
    ("body", "dtype"),
    [(COPY, "i32"), ("    tile.add %n, %n, %n\n", "f32"), (MIXED_PRODUCT, "f32"), (COPY, "bf16")],
    ids=["copies of integers", "sum of integers", "wide factors", "two formats of 16 bits"],
)
def test_element_types(body, dtype):
    header = "  buffer %h : f16[4]\n  buffer %n : i32[4]\n"
    assert refused_text(body, header, dtype=dtype).code == "csl-dtype"


@pytest.mark.parametrize(
    "body",
    [
        "    tile.copy %d, %e order [4, 3, 2, 1, 0]\n",
        "    tile.copy %f, %g[0 +: 3, 0 +: 2] as [2, 3]\n",
    ],
    ids=["five dims", "uneven"],
)
def test_views(body):
    buffers = {"d": "2, 2, 2, 2, 2", "e": "2, 2, 2, 2, 2", "f": "2, 3", "g": "3, 4"}
    header = "".join(f"  buffer %{name} : f32[{shape}]\n" for name, shape in buffers.items())
    assert refused_text(body, header).code == "csl-view"


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_queues(arch):
    """Channels on which a core sends and receives at once, more than it has queues."""
    names = [f"chain_x_1_{n}" for n in range(5)]
    body = "".join(exchange(name, n, wait=False) for n, name in enumerate(names))
    found = refused_text(body, "".join(map(chain, names)), arch)
    assert found.code == "csl-queues"
    assert any("R of PLMR" in note for note in found.notes)


def test_tasks():
    """Messages on one channel, each of which starts the next by a task of its own."""
    body = "".join(exchange("chain_x_1", n, view="[0 +: 1]", wait=False) for n in range(14))
    found = refused_text(body, chain())
    assert found.code == "csl-tasks"
    assert any("R of PLMR" in note for note in found.notes)


def test_memory():
    """Scratch counts: a buffer that fits, but not with a place to put one of its slots."""
    body = '    tile.rotate %d {by = "x"}\n'
    found = refused_text(body, "  buffer %d : f32[2, 4500]\n")
    assert found.code == "csl-memory-full"
    assert any("M of PLMR" in note for note in found.notes)


def test_overlap():
    first = exchange("chain_x_1", 1, wait=False)
    second = exchange("chain_x_1", 2, sends="x >= 2", gets="x = 1", view="[0 +: 2]")
    body = first + second + "    tile.wait %s1, %r1\n"
    assert refused_text(body, chain()).code == "csl-overlap"


GUARDED_WAIT = exchange("chain_x_1", wait=False) + '    tile.wait %s1, %r1 {when = "x = 0"}\n'


def test_waits():
    assert refused_text(GUARDED_WAIT, chain()).code == "csl-wait"


def test_routes():
    colors = '{send_color = "0", recv_color = "0", queue = 2, output_queue = 2}'
    diagonal = f'  channel @ring_x "{{ [y, x] -> [y + 1, x - 1] : x >= 1 and y = 0 }}" {colors}\n'
    body = exchange("ring_x", sends="x >= 1 and y = 0", gets="x <= 1 and y = 1")
    assert refused_text(body, diagonal, rows=2).code == "csl-route"


def test_routes_without_colors():
    module = tile_text(tile_program(exchange("chain_x_1"), chain()), "wse2")
    module.channels[0].send_color = ""
    assert refused(module).code == "csl-route"


def regions(count=2, body=COPY, header="", origins=""):
    """The code of what is wrong with a program of several regions of 3 x 1 cores."""
    text = tile_program(body, header, mesh={"regions": count})
    return refused(tile_text(text.replace("x = 3\n", f"x = 3{origins}\n"), "wse2")).code


def test_regions_that_lie_apart_or_on_each_other():
    assert regions(origins=", origins = [[0, 0], [6, 0]]") == "regions-apart"
    assert regions(3, origins=", origins = [[0, 0], [3, 0], [0, 0]]") == "csl-regions"


def test_messages_between_regions_that_cross_no_edge():
    to = chain("over").replace(
        "[y, x] -> [y, x - 1] : x >= 1", "[r, y, x] -> [r + 1, y, x] : r = 0"
    )
    body = exchange("over", sends="r = 0", gets="r = 1")
    to = to.strip() + ' {send_color = "0", recv_color = "0", queue = 2, output_queue = 2}\n'
    text = tile_program(body, f"  {to}", mesh={"regions": 2})
    module = parse_module(Source("tile.meshir", text))
    module.device = device("wse2")
    assert refused(module).code == "csl-route"


def test_ops_of_other_levels():
    module = tile_text(tile_program(COPY), "wse2")
    module.program.body.ops.append(graph.Return([], []))
    assert refused(module).code == "csl-op"


@pytest.mark.parametrize("name", ["a b", "../a", 'a"', "a\n", "9", "", "é", "a" * 101])
def test_names_of_ports(name):
    module = tile_text(tile_program(COPY), "wse2")
    module.ports[0].name = name
    assert refused(module).code == "csl-port-name"


@pytest.mark.parametrize("place", ["element", "lets", "where"])
def test_ports_that_depend_on_the_run(place):
    module = tile_text(tile_program(COPY), "wse2")
    value = parse_expr("i + pos")
    changes = {"element": (value,) * 3, "lets": (("k", value),), "where": Cond.eq(value, 0)}
    module.ports[0] = replace(module.ports[0], **{place: changes[place]})
    found = refused(module)
    assert found.code == "unsupported-port"
    assert "'pos'" in found.message


@pytest.mark.parametrize("name", ["state", "help", "class", "a b", "x;y"])
def test_names_of_scalars(name):
    module = tile_text(tile_program(COPY), "wse2")
    module.scalars = {name: (0, 2)}
    assert refused(module).code == "csl-port-name"


@pytest.mark.parametrize("name", ["fn", "param", "row"])
def test_names_of_axes(name):
    module = tile_text(tile_program(COPY), "wse2")
    axes = tuple(replace(axis, name=name) for axis in module.mesh.axes[-1:])
    module.mesh = replace(module.mesh, axes=(*module.mesh.axes[:-1], *axes))
    assert refused(module).code == "csl-axis-name"
