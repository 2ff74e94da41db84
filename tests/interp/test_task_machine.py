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


def run(text=TEXT, order=None, x=X):
    machine = TaskMachine(meshc.parse(text), order)
    machine.load("x", x)
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
    with pytest.raises(meshc.MeshcError, match="in a circle: @one -> @two -> @one"):
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


TAGGED = TEXT.replace("= one} {", "= one, blocks = 3} {", 1)
for _name in ("two", "three"):
    _phase = f"task.phase {{name = {_name}"
    TAGGED = TAGGED.replace(f"{_phase}}}", f"task.meet {{kind = tags}}\n{_phase}, blocks = 3}}")
for _name in ("%a", "%b"):
    _buffer = f"buffer {_name} : f32[6]"
    TAGGED = TAGGED.replace(_buffer, f"{_buffer} {{tags = 2}}")


@pytest.mark.parametrize("seed", range(8))
def test_blocks_wait_for_tags(seed):
    """In run after run, until tags of two bits have come round twice."""
    machine = TaskMachine(meshc.parse(TAGGED), Order(seed, blocks=True))
    for run in range(8):
        machine.load("x", X + run)
        twice = 2 * (X + run)
        assert (machine.run()["y"] == (twice.sum() + twice)[::-1]).all()


@pytest.mark.parametrize("changed", ["%a", "%b"])
def test_words_without_tags_show(changed):
    text = TAGGED.replace(f"{changed} : f32[6] {{tags = 2}}", f"{changed} : f32[6]")
    with pytest.raises(meshc.MeshcError, match="unset memory"):
        for seed in range(8):
            run(text, Order(seed, blocks=True))


@pytest.mark.parametrize("passed", [0, 1])
def test_a_meeting_by_tags_that_is_passed_shows(passed):
    with pytest.raises(meshc.MeshcError, match="unset memory"):
        for seed in range(8):
            run(TAGGED, Order(seed, blocks=True, passed=frozenset({passed})))


def test_words_that_nobody_gives_are_waited_for():
    given = "task.give %a[2*g +: 2], %w"
    text = TAGGED.replace(given, f'{given} {{when = "g <= 1"}}')
    with pytest.raises(meshc.MeshcError, match="tags never come"):
        run(text, Order(0, blocks=True))


def test_a_version_that_was_written_over_is_waited_for():
    """The second value in a word has another tag than the first, which its reader waits for."""
    text = """module @m level(task) {
  dims E = 2
  buffer %x : f32[2] {role = in}
  buffer %a : f32[2, 1] {kept = 1, tags = 4}
  buffer %y : f32[2] {role = out}
  port @x in f32[E] : %x {lanes = [i], element = [i]}
  port @y out f32[E] : %y {lanes = [i], element = [i]}
  program @decode {
    task.phase {name = one, blocks = 2} {
      task.family {name = one, dims = [g], sizes = [1]} {
        %v = task.stream %x[0 +: 1] : f32[1]
        task.give %a[0], %v
        task.give %a[1], %v
      }
    }
    task.meet {kind = tags}
    task.phase {name = two, blocks = 2} {
      task.family {name = two, dims = [g], sizes = [2]} {
        %v_1 = task.need %a[g] : f32[1]
        task.give %y[g +: 1], %v_1
      }
    }
  }
}
"""
    with pytest.raises(meshc.MeshcError, match="tags never come"):
        run(text, Order(0, blocks=True), X[:2])
    apart = text.replace("kept = 1, ", "kept = 2, ")
    assert (run(apart, Order(0, blocks=True), X[:2]) == X[0]).all()


def test_tags_take_bits_of_their_values():
    """To the nearest of the values that are left, of two the even one; none becomes infinite."""
    text = """module @m level(task) {
  dims E = 6
  buffer %x : f32[6] {role = in}
  buffer %a : f32[6] {tags = 4}
  buffer %y : f32[6] {role = out}
  port @x in f32[E] : %x {lanes = [i], element = [i]}
  port @y out f32[E] : %y {lanes = [i], element = [i]}
  program @decode {
    task.phase {name = one} {
      task.family {name = one, dims = [], sizes = []} {
        %v = task.stream %x : f32[6]
        task.give %a, %v
      }
    }
    task.phase {name = two} {
      task.family {name = two, dims = [], sizes = []} {
        %w = task.need %a : f32[6]
        task.give %y, %w
      }
    }
  }
}
"""
    most = float(np.finfo(np.float32).max)
    given = [1 + 2.0**-20, 1 + 3 * 2.0**-20, 1 + 2.0**-19 + 2.0**-23, -most, -np.inf, 2.0**-149]
    wanted = [1, 1 + 2.0**-18, 1 + 2.0**-19, -most * (1 - 15 * 2.0**-24), -np.inf, 0]
    found = run(text, x=np.array(given, np.float32))
    assert found.tolist() == np.array(wanted, np.float32).tolist()


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
