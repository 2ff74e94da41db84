"""Conditions on which of many places in a row a core has."""

import random

import pytest

from meshc.analysis.traffic.handovers import handovers
from meshc.analysis.traffic.runs import among
from meshc.ir.affine import Expr
from meshc.ir.mesh import plane_of
from meshc.passes.mesh.split_regions import Places
from meshc.support.diagnostics import MeshcError


def places_of(condition, count):
    return [n for n in range(count) if condition.evaluate({"r": n})]


def drawn(seed):
    """Numbers that come back every so many, within bounds."""
    random_ = random.Random(seed)
    count, period = random_.randrange(40, 900), random_.randrange(2, 40)
    inside = {n for n in range(period) if random_.random() < 0.4} or {0}
    first, last = sorted(random_.sample(range(count), 2))
    return count, [n for n in range(first, last + 1) if n % period in inside] or [first]


@pytest.mark.parametrize("seed", range(40))
def test_a_condition_holds_where_it_is_to(seed):
    count, numbers = drawn(seed)
    condition = among(Expr.var("r"), numbers, count)
    assert places_of(condition, count) == numbers
    assert len(condition.clauses) <= 32


def test_what_never_comes_back_is_refused():
    numbers = [n * n for n in range(60)]
    with pytest.raises(MeshcError, match="changes at 59 places of 'r', which has 3600") as caught:
        among(Expr.var("r"), numbers, 3600)
    assert caught.value.diagnostics[0].code == "too-many-turns"


@pytest.mark.parametrize(("across", "count"), [(1, 700), (2, 600), (3, 500), (15, 285)])
def test_regions_in_rows_take_few_conditions_however_many(across, count):
    origins = Places(across, count, 4, 3).first(count)
    mesh = plane_of(("y", "x"), 3, 4, None).in_regions("r", origins, count)
    left, reached = [], []
    for handover in handovers(mesh):
        leaves, arrives = handover.leaves(mesh), handover.arrives(mesh)
        assert len(leaves.clauses) <= 2 and len(arrives.clauses) <= 2
        assert places_of(leaves, count) == [*handover.regions]
        left += places_of(leaves, count)
        reached += places_of(arrives, count)
    assert sorted(left) == [*range(count - 1)] and sorted(reached) == [*range(1, count)]
