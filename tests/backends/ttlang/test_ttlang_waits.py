"""Orders of waits that never end on a device, which the maker's simulator lets through."""

from dataclasses import replace

import pytest

from meshc.backends.ttlang.combining import combined
from meshc.backends.ttlang.node_elements import Grid
from meshc.backends.ttlang.operation import (
    Buffer,
    Compute,
    Net,
    Nodes,
    Operation,
    Pipe,
    Pop,
    Push,
    Read,
    Receive,
    Reserve,
    Send,
    Wait,
    When,
    Window,
)
from meshc.backends.ttlang.panels import Panel
from meshc.backends.ttlang.products import Heads, summa, turned
from meshc.backends.ttlang.wait_proof import check_waits
from meshc.ir.mesh import plane_of
from meshc.ir.types import DType, TensorType
from meshc.support.diagnostics import MeshcError

KIND = TensorType(DType.F32, ("L", "E"))
SOURCE = Window("a", "row", "column", 1, 1)


def ring(size, body):
    """Nodes of a line, each of which sends to the next; ``body`` is what the first mover does."""
    pipes = tuple(Pipe((i, 0), ((i + 1) % size,) * 2, (0, 0)) for i in range(size))
    buffers = (Buffer("mine", "a", 1, 1), Buffer("came", "a", 1, 1))
    taken = tuple(
        step for name in ("mine", "came") for step in (Wait(f"{name}_2", name), Pop(f"{name}_2"))
    )
    return Operation(size, 1, ("a", "out"), (Net("ring", pipes),), buffers, (body, taken), ())


BEGIN = (Reserve("one", "mine"), Read("one", SOURCE), Reserve("two", "came"))
END = (Push("one"), Push("two"))
EVEN = Nodes("column % 2 == 0", frozenset({(0, 0), (2, 0)}))


def test_a_ring_whose_nodes_all_send_first_never_ends():
    naive = ring(4, (*BEGIN, Send("one", "ring"), Receive("two", "ring"), *END))
    with pytest.raises(MeshcError, match="ring' never ends") as refusal:
        check_waits(naive, "ring")
    (diagnostic,) = refusal.value.diagnostics
    assert diagnostic.code == "ttlang-waits"
    assert "waits for (1, 0) to post where ring goes" in diagnostic.notes[0]


def test_a_ring_whose_neighbours_take_turns_ends():
    send, receive = Send("one", "ring"), Receive("two", "ring")
    turns = When(EVEN, (send, receive), (receive, send))
    check_waits(ring(4, (*BEGIN, turns, *END)), "ring")


def test_what_nobody_takes_is_seen():
    without = ring(2, (*BEGIN, *END))
    check_waits(without, "ring")
    with pytest.raises(MeshcError, match="leaves behind"):
        check_waits(replace(without, movers=(without.movers[0], ())), "ring")


def panel(height, columns, count, rows=("L",)):
    return Panel(KIND, rows, columns, height, count, 1)


def grid(columns, rows):
    mesh = plane_of(("down", "across"), rows, columns, None)
    return Grid(mesh, {"L": 64, "E": 128})


def product(columns, rows):
    sides = (panel(1, ("E",), rows), panel(columns, ("E",), 1), panel(1, ("E",), 1))
    return summa(grid(columns, rows), *sides, "across", "", Heads(), 1 << 20)


def scores(size, skew="down"):
    sides = (panel(1, ("E",), 2), panel(1, ("E",), 1), panel(1, ("E",), 2))
    heads = Heads(keys=1, share=2)
    return turned(grid(size, size), *sides, "across", skew, heads, 1 << 20)


EMITTED = {
    "summa 1x1": product(1, 1),
    "summa 2x2": product(2, 2),
    "summa 4x2": product(4, 2),
    "summa 2x4": product(2, 4),
    "turned 1x1": scores(1),
    "turned 2x2": scores(2),
    "turned 4x4": scores(4),
    "sum over 4": combined(grid(4, 2), panel(3, ("E",), 2), "across", "sum"),
}


@pytest.mark.parametrize("name", EMITTED)
def test_emitted_operations_end(name):
    check_waits(EMITTED[name], name)


@pytest.mark.parametrize("name", EMITTED)
def test_conditions_say_which_nodes_are_meant(name):
    def of(body):
        for statement in body:
            if isinstance(statement, When):
                yield statement.nodes
                yield from of((*statement.then, *statement.other))
            elif not isinstance(statement, Compute):
                yield from of(getattr(statement, "body", ()))

    operation = EMITTED[name]
    nets = {net.name: {pipe.source for pipe in net.pipes} for net in operation.nets}
    for nodes in of((*operation.movers[0], *operation.movers[1], *operation.compute)):
        net, _, asked = nodes.condition.partition(".")
        if asked == "is_src()":
            assert nets[net] == nodes.members
            continue
        known = {(x, y) for x, y in operation.nodes
                 if eval(nodes.condition, {"column": x, "row": y})}  # fmt: skip
        assert known == nodes.members


def without(body, kind, count=1):
    """``body`` and how often a statement of ``kind``, also in branches, is in it, of which the
    first one is left out."""
    found = []
    for statement in body:
        if count and isinstance(statement, kind):
            count -= 1
            continue
        if isinstance(statement, When):
            then, count = without(statement.then, kind, count)
            other, count = without(statement.other, kind, count)
            statement = replace(statement, then=then, other=other)
        elif hasattr(statement, "body"):
            inner, count = without(statement.body, kind, count)
            statement = replace(statement, body=inner)
        found.append(statement)
    return tuple(found), count


@pytest.mark.parametrize("kind", [Send, Receive, Push, Pop, Compute])
@pytest.mark.parametrize("name", ["summa 2x2", "summa 4x2", "turned 2x2", "sum over 4"])
def test_a_statement_that_is_left_out_is_noticed(name, kind):
    operation = EMITTED[name]
    bodies = [*operation.movers, operation.compute]
    for at, body in enumerate(bodies):
        changed, left = without(body, kind)
        if left:
            continue
        edited = [*bodies[:at], changed, *bodies[at + 1 :]]
        with pytest.raises(MeshcError):
            check_waits(replace(operation, movers=tuple(edited[:2]), compute=edited[2]), name)


def test_a_net_fills_one_buffer():
    body = (*BEGIN, When(EVEN, (Send("one", "ring"),), (Receive("two", "ring"),)),
            When(EVEN, (Receive("two", "ring"),), (Send("one", "ring"),)),
            *END, *BEGIN, When(EVEN, (Send("one", "ring"),), (Receive("one", "ring"),)),
            *END)  # fmt: skip
    with pytest.raises(MeshcError, match="fills two buffers of node"):
        check_waits(ring(2, body), "ring")


def test_each_net_fills_a_block_of_its_own():
    operation = EMITTED["summa 4x2"]
    fewer = tuple(replace(buffer, count=2) for buffer in operation.buffers)
    with pytest.raises(MeshcError, match=r"has 2 blocks on node .*, and 3 nets fill it"):
        check_waits(replace(operation, buffers=fewer), "summa")


def test_a_node_has_32_buffers():
    operation = EMITTED["summa 2x2"]
    more = tuple(Buffer(f"more{i}", "a", 1, 1) for i in range(29))
    with pytest.raises(MeshcError, match="33 dataflow buffers, of which a node has 32"):
        check_waits(replace(operation, buffers=(*operation.buffers, *more)), "summa")
