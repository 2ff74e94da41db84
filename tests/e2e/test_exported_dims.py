"""Axes of programs of torch.export as named dims, and the text that they end in."""

import numpy as np
import pytest

from meshc.frontend.language import parse_model
from meshc.support.spans import Source
from meshc.torch.exported.followed_dims import Apart, Dim, extent, regrouped, settled, unite
from meshc.torch.exported.statements import Param, Statement, model_text


def dims(*extents):
    return [Dim(one) for one in extents]


def test_axes_that_end_within_a_dim_cut_it():
    batch, rows, features = dims(1, 7, 48)
    axes = regrouped([batch, rows, features], [1, 7, 6, 8])
    assert axes[:2] == ((batch,), (rows,))
    assert [extent(axis) for axis in axes[2:]] == [6, 8]
    assert settled([features]) == (*axes[2], *axes[3])
    assert regrouped([dim for axis in axes for dim in axis], [7, 48])[1] == settled([features])


@pytest.mark.parametrize("sizes", [[7, 9, 5], [8, 42], [7, 48, 2], [7]])
def test_axes_that_do_not_fit_are_refused(sizes):
    with pytest.raises(Apart):
        regrouped(dims(7, 48), sizes)


def test_dims_that_are_added_are_the_same():
    (whole,), parts = dims(48), dims(6, 8)
    unite([whole], parts)
    assert settled([whole]) == tuple(parts)
    other = dims(48)
    unite(other, [whole])
    assert settled(other) == tuple(parts)
    with pytest.raises(Apart):
        unite(dims(5), parts)
    with pytest.raises(Apart):
        unite([Dim(8, "B")], [Dim(8, "L")])


def test_a_tensor_has_no_name_twice():
    """Two features of one extent are one dim of the text, but where a param has both."""
    batch, rows, width = Dim(1, "B"), Dim(4, "L"), Dim(6, "E")
    first, second, third = dims(6, 6, 6)
    given = Statement("hidden", (), (batch, rows, width), "hidden")
    values = np.arange(36, dtype=np.float32)

    def product(of, name, before, behind):
        param = Param(name, (before, behind), values)
        return Statement("{} @ {}", (of, param), (batch, rows, behind), "p")

    y = product(given, "a.weight", width, first)
    v = product(product(y, "a.weight", first, second), "9", second, third)
    unused = Statement("silu({})", (v,), v.dims, "a")
    found = model_text("m", "A test.", given, [v], "f32")
    assert unused.text not in found.text and "silu" not in found.text
    for line in ("param a_weight[E, F]", "param a_weight_2[F, F2]", "param w_9[F2, F]"):
        assert line in found.text
    assert found.weights["w_9"].shape == (6, 6)
    assert parse_model(Source("m.mesh", found.text)).name == "m"
