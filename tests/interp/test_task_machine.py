"""Tasks in random orders: what they need puts them in order, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

import meshc
from meshc.interp.task_orders import Order
from meshc.interp.tasks import TaskMachine

TEXT = """module @sums level(task) {
  dims E = 6
  buffer %x : f32[6] {role = in}
  buffer %a : f32[6]
  buffer %b : f32[6]
  buffer %y : f32[6] {role = out}
  port @x in f32[E] : %x {lanes = [i], element = [i]}
  port @y out f32[E] : %y {lanes = [i], element = [i]}
  program @decode {
    task.phase {name = one} {
      task.family {name = one, dims = [g], sizes = [3]} {
        %v = task.stream %x[2*g +: 2] : f32[2]
        %w = task.local : f32[2]
        tile.scale %w, %v {factor = 2.0}
        task.give %a[2*g +: 2], %w
      }
    }
    task.phase {name = two} {
      task.family {name = two, dims = [g], sizes = [6]} {
        %all = task.need %a : f32[6]
        %own = task.need %a[g +: 1] : f32[1]
        %sum = task.local : f32[1]
        tile.row_sum %sum, %all as [1, 6]
        tile.add %sum, %sum, %own
        task.give %b[g +: 1], %sum
      }
    }
    task.phase {name = three} {
      task.family {name = three, dims = [g], sizes = [6]} {
        %given = task.need %b[5 - g +: 1] : f32[1]
        task.give %y[g +: 1], %given
      }
    }
  }
}
"""

X = np.arange(1.0, 7.0, dtype=np.float32)
WANTED = (2 * X.sum() + 2 * X)[::-1]


def run(text=TEXT, order=None):
    machine = TaskMachine(meshc.parse(text), order)
    machine.load("x", X)
    return machine.run()["y"]


def test_in_the_order_of_the_text():
    assert (run() == WANTED).all()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("first", ["", "one", "two", "three"])
def test_in_random_orders(seed, first):
    assert (run(order=Order(seed, first)) == WANTED).all()


@pytest.mark.parametrize(("needer", "giver"), [("two", "one"), ("three", "two")])
def test_an_edge_that_is_left_out_shows(needer, giver):
    """Tasks that run as soon as they may read what is not there yet."""
    order = Order(1, needer, frozenset({(needer, giver)}))
    with pytest.raises(meshc.MeshcError, match="unset memory"):
        run(order=order)


def test_what_is_forgotten_shows():
    """A need whose region is too small leaves a value that holds nothing."""
    lines = "%part = task.need %a[0 +: 5] : f32[5]", "%all = task.local : f32[6]"
    copied = "\n".join([*lines, "tile.copy %all[0 +: 5], %part"])
    text = TEXT.replace("%all = task.need %a : f32[6]", copied)
    with pytest.raises(meshc.MeshcError, match="unset memory"):
        run(text)


def test_a_circle():
    text = TEXT.replace(
        "%v = task.stream %x[2*g +: 2]",
        "%z = task.need %b : f32[6]\n        %v = task.stream %x[2*g +: 2]",
    )
    with pytest.raises(meshc.MeshcError, match="in a circle"):
        run(text, Order(0))
    with pytest.raises(meshc.MeshcError, match="in a circle"):
        run(text, Order(0, "three"))


def test_a_family_that_is_not_there():
    with pytest.raises(meshc.MeshcError, match="no family 'four'"):
        run(order=Order(0, "four"))


def test_a_region_outside_of_its_buffer():
    text = TEXT.replace("task.need %b[5 - g +: 1]", "task.need %b[6 - g +: 1]")
    with pytest.raises(meshc.MeshcError, match=r"index 6 is outside 0 \.\. 5"):
        run(text)


def test_tokens_that_a_stream_leaves_out_are_zero():
    text = """module @m level(task) {
  dims S = 4, D = 2
  scalars pos = 0..3
  buffer %new : f16[2] {role = in}
  buffer %cache : f16[4, 2] {role = state}
  buffer %y : f32[4, 2] {role = out}
  port @new in f16[D] : %new {lanes = [i], element = [i]}
  port @y out f32[S, D] : %y {lanes = [t, i], element = [t, i]}
  program @decode {
    task.phase {name = one} {
      task.family {name = one, dims = [], sizes = []} {
        %row = task.stream %new : f16[2]
        %old = task.stream %cache[:, :] {dim = 0, below = "pos"} : f16[4, 2]
        task.give %cache[pos], %row
        task.give %y, %old
      }
    }
  }
}
"""
    machine = TaskMachine(meshc.parse(text))
    found = []
    for pos in range(4):
        machine.load("new", np.array([pos + 1.0, 1.0009765625 * (pos + 1) + 2**-12]))
        found.append(machine.run({"pos": pos})["y"])
    # Each step sees the tokens before its own, rounded as the cache holds them.
    assert (found[0] == 0).all()
    assert found[3][:3, 0].tolist() == [1.0, 2.0, 3.0] and (found[3][3] == 0).all()
    assert (found[3] == found[3].astype(np.float16)).all()
