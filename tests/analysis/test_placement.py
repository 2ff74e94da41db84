"""INTERLEAVE for every size: one cycle, two hops, inverse steps; colors never meet at a router."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from straight_routes import Route, color_mismatch, shared_router

from meshc.analysis.layout import placement
from meshc.analysis.proofs import isl
from meshc.ir.affine import AffineMap, Cond, Expr, Piecewise, parse_cond, parse_map

P = Expr.var("p")


def table(function, n):
    return [int(function.evaluate({"p": p})) for p in range(n)]


def walk(n):
    step, place, seen = table(placement.ring_step(n), n), 0, []
    for _ in range(n):
        seen.append(place)
        place = step[place]
    return seen, place


def check_ring(n):
    seen, end = walk(n)
    assert sorted(seen) == list(range(n)) and end == 0
    down, up = table(placement.ring_step(n), n), table(placement.ring_step(n, 1), n)
    hops = [abs(p - down[p]) for p in range(n)]
    assert max(hops) == min(n - 1, 2)
    assert [up[down[p]] for p in range(n)] == list(range(n))
    rank, core = table(placement.ring_rank(n), n), table(placement.ring_core(n), n)
    assert [core[r] for r in rank] == list(range(n))
    assert all(rank[down[p]] == (rank[p] - 1) % n for p in range(n))


@pytest.mark.parametrize("n", range(1, 41))
def test_every_small_ring(n):
    check_ring(n)


@given(st.integers(1, 1000))
def test_any_ring_to_a_thousand(n):
    check_ring(n)


def collisions(pairs, colors):
    routers = [set(range(min(a, b), max(a, b) + 1)) for a, b in pairs]
    return [
        (pairs[i], pairs[j])
        for i in range(len(pairs))
        for j in range(i)
        if colors[i] == colors[j] and routers[i] & routers[j]
    ]


@pytest.mark.parametrize("n", range(1, 41))
def test_ring_colors_by_brute_force(n):
    coloring = placement.ring_coloring(n)
    down = table(placement.ring_step(n), n)
    send, recv = table(coloring.send, n), table(coloring.recv, n)
    assert collisions(list(enumerate(down)), send) == []
    assert all(recv[down[p]] == send[p] for p in range(n))
    assert set(send) <= set(range(coloring.count)) and coloring.count <= 3


def test_fewer_colors_do_not_do():
    """Three is the least for a ring, two for a chain: brute force over all colorings."""
    for n in (3, 4, 5, 6, 7):
        pairs = list(enumerate(table(placement.ring_step(n), n)))
        every = np.indices((2,) * n).reshape(n, -1).T
        assert all(collisions(pairs, list(colors)) for colors in every)


@pytest.mark.parametrize("n", range(2, 41))
@pytest.mark.parametrize("stride", [1, 2, 3, 7])
def test_chain_colors_by_brute_force(n, stride):
    coloring = placement.chain_coloring(stride)
    pairs = [(p, p - stride) for p in range(stride, n, stride)]
    send, recv = table(coloring.send, n), table(coloring.recv, n)
    assert collisions(pairs, [send[p] for p, _ in pairs]) == []
    assert all(recv[t] == send[p] for p, t in pairs)


def on_axis(function, axis, n):
    return function.substitute({"p": Expr.var(axis) % n})


def ring_map(n, axis="x", step=-1):
    """Rings of ``n`` cores along ``axis``, one after the other, as a map over ``[y, x]``."""
    here, place = Expr.var(axis), Expr.var(axis) % n
    pieces = []
    for cond, value in placement.ring_step(n, step).pieces:
        along = here - place + value.substitute({"p": place})
        outputs = (along, Expr.var("x")) if axis == "y" else (Expr.var("y"), along)
        pieces.append((outputs, cond.substitute({"p": place})))
    return AffineMap.of(("y", "x"), pieces)


@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize(("n", "rings"), [(1, 4), (2, 3), (3, 2), (360, 2), (719, 1), (720, 1)])
def test_rings_proved_at_any_size(axis, n, rings):
    size = {"x": 5, "y": 5, axis: n * rings}
    scope = isl.Scope(parse_cond(f"0 <= y < {size['y']} and 0 <= x < {size['x']}"))
    ring = ring_map(n, axis)
    assert isl.unmapped_point(ring, Cond.true(), scope) is None
    assert isl.image_mismatch(ring, Cond.true(), Cond.true(), scope) is None
    assert isl.two_sources(ring, scope) is None and isl.two_targets(ring, scope) is None
    coloring = placement.ring_coloring(n)
    route = Route(ring, on_axis(coloring.send, axis, n))
    assert shared_router(route, None, scope) is None
    assert color_mismatch(route, on_axis(coloring.recv, axis, n), scope) is None


def test_the_two_directions_are_inverse_at_720():
    scope = isl.Scope(parse_cond("0 <= y < 720 and 0 <= x < 720"))
    up, far = ring_map(720, step=1), Expr.var("_x")
    pieces = placement.ring_step(720).substitute({"p": far}).pieces
    inside = Cond.between(0, far, 720)
    inverse = [
        ((Expr.var("y"), far), cond & inside & Cond.eq(value, Expr.var("x")))
        for cond, value in pieces
    ]
    assert isl.map_mismatch(up, AffineMap.of(("y", "x"), inverse), scope) is None
    assert isl.map_mismatch(ring_map(720), up, scope) is not None


@pytest.mark.parametrize("stride", [1, 27, 90])
def test_chains_proved_at_720(stride):
    scope = isl.Scope(parse_cond("0 <= y < 720 and 0 <= x < 720"))
    route = parse_map(f"{{ [y, x] -> [y, x - {stride}] : x mod {stride} = 0 and x >= {stride} }}")
    coloring = placement.chain_coloring(stride)
    send = coloring.send.substitute({"p": Expr.var("x")})
    assert shared_router(Route(route, send), None, scope) is None
    recv = coloring.recv.substitute({"p": Expr.var("x")})
    assert color_mismatch(Route(route, send), recv, scope) is None


def test_a_conflict_names_router_and_messages():
    scope = isl.Scope(parse_cond("0 <= y < 3 and 0 <= x < 9"))
    route = Route(parse_map("{ [y, x] -> [y, x - 2] : x >= 2 }"), Piecewise.single(4))
    found = shared_router(route, None, scope)
    assert found.color == 4 and found.first["y"] == found.second["y"] == found.router["y"]
    low, high = found.first["x"], found.second["x"]
    assert low < high and high - 2 <= found.router["x"] <= low


def test_pass_through_routers_count():
    scope = isl.Scope(parse_cond("0 <= y < 4 and 0 <= x < 9"))
    long = Route(parse_map("{ [y, x] -> [y, x + 8] : x = 0 }"), Piecewise.single(1))
    short = Route(parse_map("{ [y, x] -> [y - 1, x] : x = 4 and y >= 1 }"), Piecewise.single(1))
    found = shared_router(long, short, scope)
    assert found is not None and found.router["x"] == 4
    other = Route(short.map, Piecewise.single(2))
    assert shared_router(long, other, scope) is None


def test_order_of_a_bent_route():
    scope = isl.Scope(parse_cond("0 <= y < 4 and 0 <= x < 4"))
    bent = parse_map("{ [y, x] -> [3, 3] : x = 0 and y = 0 }")
    probe = Route(parse_map("{ [y, x] -> [y, x] : x = 3 and y = 0 }"), Piecewise.single(0))
    x_first = Route(bent, Piecewise.single(0))
    y_first = Route(bent, Piecewise.single(0), ("y", "x"))
    assert shared_router(x_first, probe, scope) is not None
    assert shared_router(y_first, probe, scope) is None


def test_a_multicast_does_not_conflict_with_itself():
    scope = isl.Scope(parse_cond("0 <= y < 2 and 0 <= x < 8"))
    cast = Route(
        parse_map("{ [y, x] -> [y, _x] : x = 0 and 1 <= _x < 8 }"),
        placement.multicast_coloring().send,
    )
    assert shared_router(cast, None, scope) is None
    assert color_mismatch(cast, placement.multicast_coloring().recv, scope) is None


def test_a_color_may_be_missing_or_differ():
    scope = isl.Scope(parse_cond("0 <= y < 1 and 0 <= x < 4"))
    shift = parse_map("{ [y, x] -> [y, x - 1] : x >= 1 }")
    partial = Piecewise.of([(Cond.le(Expr.var("x"), 2), 0)])
    found = color_mismatch(Route(shift, partial), Piecewise.single(0), scope)
    assert found is not None and found.source == {"y": 0, "x": 3}
    assert color_mismatch(Route(shift, Piecewise.single(1)), Piecewise.single(0), scope) is not None
