"""Conditions in their shortest form hold on the same cores, and are no longer than they were."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshc.analysis.layout.coordinates import coordinate_values
from meshc.analysis.layout.shortest import on_cores
from meshc.ir.affine import Cond, Expr, parse_cond
from meshc.ir.mesh import Axis, Mesh

MESH = Mesh((Axis("y", 7), Axis("x", 12)))
NAMES = ("y", "x", "fold_x", "rank_y")


def held(cond, mesh):
    """The cores of ``mesh`` on which ``cond`` holds, one after the other."""
    found = []
    for at in np.ndindex(*map(mesh.size, mesh.names)):
        here = dict(zip(mesh.names, map(int, at), strict=True))
        known = {name: int(v.evaluate(here)) for name, v in coordinate_values(mesh).items()}
        found.append(bool(cond.evaluate(known)))
    return found


@st.composite
def comparisons(draw):
    place = Expr.var(draw(st.sampled_from(NAMES)))
    if draw(st.booleans()):
        period = draw(st.integers(2, 5))
        place = draw(st.sampled_from((place % period, place // period)))
    compare = draw(st.sampled_from((Cond.eq, Cond.ge, Cond.le)))
    return compare(place, draw(st.integers(-1, 12)))


@st.composite
def conditions(draw):
    clauses = st.lists(comparisons(), min_size=1, max_size=3).map(Cond.all)
    return Cond.any(draw(st.lists(clauses, min_size=1, max_size=3)))


@given(conditions())
def test_it_holds_on_the_same_cores(cond):
    found = on_cores(cond, MESH)
    assert held(found, MESH) == held(cond, MESH)
    assert sum(map(len, found.clauses)) <= sum(map(len, cond.clauses))


@pytest.mark.parametrize(
    ("cond", "shortest"),
    [
        ("x >= 1 and x <= 1", "x = 1"),
        ("x >= 0", "true"),
        ("x <= 11 and y = 2", "y = 2"),
        ("y >= 7", "false"),
        ("y >= 2 and x >= 3 and x <= 3", "x = 3 and y >= 2"),
        ("x = 2 or x = 5 or x = 8 or x = 11", "x mod 3 = 2"),
        ("x >= 0 and x <= 2 and x mod 3 = 2 or x >= 3 and x mod 3 = 2", "x mod 3 = 2"),
        ("x = 0 or x >= 1 and x <= 3", "x <= 3"),
        ("t >= 0 and t <= 0", "t >= 0 and t <= 0"),  # which the run decides
    ],
)
def test_what_the_mesh_decides_is_left_out(cond, shortest):
    assert str(on_cores(parse_cond(cond), MESH)) == shortest


def test_other_names_count_places():
    cond = parse_cond("_t >= 1 and _t <= 1 and y = 0")
    assert (
        str(on_cores(cond, Mesh((Axis("y", 2), Axis("x", 2))), (("_t", 2),))) == "_t >= 1 and y = 0"
    )
