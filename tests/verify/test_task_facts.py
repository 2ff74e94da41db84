"""Facts of the task level: they hold of a program written by hand, and not of changed ones."""

from __future__ import annotations

import re

import pytest

import meshc
from meshc.verify import FACTS, check_fact

PROGRAM = """module @m level(task) {
  dims E = 8, layers = 3
  scalars pos = 0..7
  buffer %x : f32[2, 8] {role = in}
  buffer %w : f32[3, 8, 8] {role = weight}
  buffer %cache : f32[2, 8, 4] {role = state}
  buffer %stream : f32[4, 2, 8]
  buffer %half : f32[3, 2, 4]
  buffer %result : f32[2, 8] {role = out}
  program @decode {
    task.phase {name = begin} {
      task.family {name = begin, dims = [g], sizes = [2]} {
        %rows = task.stream %x[:, 4*g +: 4] : f32[2, 4]
        task.give %stream[0, :, 4*g +: 4], %rows
      }
    }
    tile.for {var = layer, count = 3} {
      task.phase {name = attend} {
        task.family {name = attend, dims = [b], sizes = [2], each = [pos]} {
          %mine = task.need %stream[layer, b, 0 +: 4] : f32[4]
          %old = task.stream %cache[b, 0 +: 8] {dim = 1, below = "pos"} : f32[8, 4]
          task.give %cache[b, pos], %mine {when = "layer = 0"}
          task.give %half[layer, b], %mine
        }
      }
      task.phase {name = product} {
        task.family {name = product, dims = [g], sizes = [4]} {
          %own = task.need %stream[layer, :, 2*g +: 2] : f32[2, 2]
          %halves = task.need %half[layer] : f32[2, 4]
          %tile = task.stream %w[layer, 2*g +: 2, 0 +: 4] : f32[2, 4]
          %sum = task.local : f32[2, 2]
          tile.gemm %sum, %halves, %tile {accumulate = false, transposed = true}
          tile.add %sum, %sum, %own
          task.give %stream[layer + 1, :, 2*g +: 2], %sum
        }
      }
    }
    task.phase {name = end} {
      task.family {name = end, dims = [g], sizes = [8]} {
        %last = task.need %stream[3, :, g +: 1] : f32[2, 1]
        task.give %result[:, g +: 1], %last
      }
    }
  }
}
"""

CODES = {
    "within_bounds": "task-bounds",
    "one_giver": "two-givers",
    "given_before": "not-given",
    "streams_free": "stream-written",
    "ordered": "not-ordered",
    "not_overwritten": "overwritten",
}

CHANGES = {
    "needs behind the end": (
        "within_bounds",
        (
            "%own = task.need %stream[layer, :, 2*g +: 2]",
            "%own = task.need %stream[layer, :, 2*g + 1 +: 2]",
        ),
        r"leaves %stream : f32\[4, 2, 8\]",
    ),
    "a layer too far": (
        "within_bounds",
        ("task.give %stream[layer + 1,", "task.give %stream[layer + 2,"),
        r"@product \(layer=2, g=0, .*has %stream\[4, 0, 0\]",
    ),
    "a stream below the first token": (
        "within_bounds",
        ("%cache[b, 0 +: 8]", "%cache[b, pos - 1 +: 8]"),
        r"has %cache\[0, -1, 0\]",
    ),
    "two tasks give a lane": (
        "one_giver",
        ("task.give %stream[0, :, 4*g +: 4], %rows", "task.give %stream[0, :, 3*g +: 4], %rows"),
        r"%stream\[0, 0, 3\] is given twice, by @begin \(g=0.* and by @begin \(g=1",
    ),
    "two families give an element": (
        "one_giver",
        ("task.give %stream[layer + 1,", "task.give %stream[layer,"),
        "is given twice",
    ),
    "rounds of the layers give the same": (
        "one_giver",
        ("task.give %half[layer, b], %mine", "task.give %half[0, b], %mine"),
        r"%half\[0, 0, 0\] is given twice, by @attend \(layer=0, .* and by @attend \(layer=1",
    ),
    "every layer gives the cache": (
        "one_giver",
        ('%mine {when = "layer = 0"}', '%mine {when = "layer <= 1"}'),
        r"%cache\[0, .* is given twice",
    ),
    "nobody gives a lane": (
        "given_before",
        ("name = begin, dims = [g], sizes = [2]", "name = begin, dims = [g], sizes = [1]"),
        r"%stream\[0, 0, 4\], which nobody gives",
    ),
    "given in the same phase": (
        "given_before",
        ("%mine = task.need %stream[layer, b, 0 +: 4]", "%mine = task.need %half[layer, b]"),
        "which no earlier phase gives",
    ),
    "given by a later round": (
        "given_before",
        ("%own = task.need %stream[layer,", "%own = task.need %stream[layer + 1,"),
        r"%stream\[1, 0, 0\], which no earlier phase gives",
    ),
    "given where a guard holds": (
        "given_before",
        (
            "task.give %half[layer, b], %mine",
            'task.give %half[layer, b], %mine {when = "pos <= 5"}',
        ),
        r"%half\[0, 0, 0\], which nobody gives",
    ),
    "a stream of what this step stores": (
        "streams_free",
        ('{dim = 1, below = "pos"}', '{dim = 1, below = "pos + 1"}'),
        r"brings %cache\[0, 0, 0\], which @attend \(layer=0, b=0",
    ),
    "a stream of all": (
        "streams_free",
        (' {dim = 1, below = "pos"}', ""),
        "in the same run",
    ),
}


def module(*changes):
    text = PROGRAM
    for before, after in changes:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return meshc.parse(text)


PASSES = "place-tasks{blocks=3},meet,fold-scratch"

PLACED_CHANGES = {
    "a meeting is missing": (
        "ordered",
        ("      task.meet\n      task.phase {name = product", "      task.phase {name = product"),
        r"@product: task.need %half\[layer\] may run before @attend \(layer=0, b=\d",
    ),
    "what carries is not waited for": (
        "ordered",
        ("      task.meet\n      task.phase {name = attend", "      task.phase {name = attend"),
        r"may run before @(product|begin)",
    ),
    "too few versions": (
        "not_overwritten",
        ("buffer %stream : f32[4, 2, 8] {kept = 2}", "buffer %stream : f32[4, 2, 8] {kept = 1}"),
        r"may find %stream\[\d, 0, 0\], given by @product",
    ),
    "overwritten before it is read": (
        "not_overwritten",
        ("      task.meet\n      task.phase {name = attend", "      task.phase {name = attend"),
        r"may find %half\[1, 0, 0\], given by @attend \(layer=1",
    ),
}


OF_CLUSTERS = {
    "of another cluster": (2, 1, "[1, 2]", r"of another cluster, in whose memory @attend"),
    "two in one place": (1, 3, "[1, 1]", r"%half\[0, 0, 0\], .* have one place in the memory"),
}


def in_clusters(groups, cluster, place):
    """The placed program, its tasks in so many groups, and what attends leaves in clusters."""
    text = placed().replace("blocks = 3", f"blocks = 3, cluster = {cluster}, groups = {groups}")
    text = re.sub(r"(dims = \[(\w)\], sizes = \[\d\])", r"\1, grouped = \2", text)
    before = "buffer %half : f32[3, 2, 4] {kept = 1}"
    assert text.count(before) == 1, text
    return meshc.parse(text.replace(before, before.replace("}", f", cluster = {place}}}")))


@pytest.mark.parametrize("name", OF_CLUSTERS)
def test_memory_of_clusters(name):
    """Both requests attend, and all products need what they leave."""
    check_fact(in_clusters(1, 3, "[1, 2]"), "in_cluster")
    groups, cluster, place, words = OF_CLUSTERS[name]
    with pytest.raises(meshc.MeshcError, match=words) as caught:
        check_fact(in_clusters(groups, cluster, place), "in_cluster")
    assert [d.code for d in caught.value.diagnostics] == ["outside-cluster"]


def placed():
    """The program as it is placed, with meetings, and folded."""
    return meshc.print_module(meshc.PassManager(meshc.parse_pipeline(PASSES)).run(claimed()))


def claimed():
    facts = "given_before, one_giver, streams_free, within_bounds"
    return meshc.parse(PROGRAM.replace("level(task)", f"level(task) holds({facts})"))


@pytest.mark.parametrize("name", PLACED_CHANGES)
def test_placed_program_changed(name):
    fact, (before, after), words = PLACED_CHANGES[name]
    text = placed()
    assert text.count(before) == 1, text
    text = re.sub(r" holds\(.*?\)", "", text.replace(before, after))
    with pytest.raises(meshc.MeshcError, match=words) as caught:
        check_fact(meshc.parse(text), fact)
    assert [d.code for d in caught.value.diagnostics] == [CODES[fact]]


TAGGED_CHANGES = {
    "a meeting by tags is missing": (
        "ordered",
        ("task.meet {kind = tags}\n      task.phase {name = product", "task.phase {name = product"),
        r"@product: task.need %half\[layer\] may run before @attend",
    ),
    "words without tags": (
        "ordered",
        ("%half : f32[3, 2, 4] {kept = 2, tags = 2}", "%half : f32[3, 2, 4] {kept = 2}"),
        r"@product: task.need %half\[layer\] may run before @attend",
    ),
    "a word that keeps an old tag": (
        "ordered",
        ("%half[layer, b], %mine", '%half[layer, b], %mine {when = "pos >= 1"}'),
        r"%half has tags, but a run need not give %half\[0, 0, 0\]",
    ),
    "a version that nobody gives": (
        "ordered",
        ("%half : f32[3, 2, 4] {kept = 2, tags = 2}", "%half : f32[4, 2, 4] {kept = 2, tags = 2}"),
        r"a run need not give %half\[3, 0, 0\]",
    ),
    "too few versions": (
        "not_overwritten",
        ("%half : f32[3, 2, 4] {kept = 2, tags = 2}", "%half : f32[3, 2, 4] {kept = 1, tags = 2}"),
        r"may find %half\[1, 0, 0\], given by @attend \(layer=1",
    ),
}


def tagged():
    """The program by tags. Two blocks have a task of each phase; of those of ``attend`` and of
    ``product`` each task waits for all in front of it, so two versions are enough."""
    passes = "place-tasks{blocks=2},meet{kind=tags},fold-scratch"
    return meshc.print_module(meshc.PassManager(meshc.parse_pipeline(passes)).run(claimed()))


def test_tags_order_tasks():
    text = tagged()
    assert text.count("task.meet {kind = tags}") == text.count("task.meet") == 2
    for fact in TASK_FACTS:
        check_fact(meshc.parse(text), fact)


@pytest.mark.parametrize("name", TAGGED_CHANGES)
def test_tagged_program_changed(name):
    fact, (before, after), words = TAGGED_CHANGES[name]
    text = tagged()
    assert text.count(before) == 1, text
    text = re.sub(r" holds\(.*?\)", "", text.replace(before, after))
    with pytest.raises(meshc.MeshcError, match=words) as caught:
        check_fact(meshc.parse(text), fact)
    assert [d.code for d in caught.value.diagnostics] == [CODES[fact]]


def test_blocks_meet_where_they_must():
    """Behind the begin, twice in a layer, and in front of the end."""
    assert placed().count("task.meet") == 3
    text = placed().replace("blocks = 3", "blocks = 1")
    alone = meshc.PassManager(meshc.parse_pipeline("meet")).run(meshc.parse(text))
    assert "task.meet" not in meshc.print_module(alone)


TASK_FACTS = [name for name, fact in FACTS.items() if fact.levels == ("task",)]


@pytest.mark.parametrize("fact", TASK_FACTS)
def test_holds(fact):
    check_fact(meshc.parse(placed()), fact)


@pytest.mark.every_case
@pytest.mark.parametrize("name", CHANGES)
def test_does_not_hold(name):
    fact, change, words = CHANGES[name]
    with pytest.raises(meshc.MeshcError, match=words) as caught:
        check_fact(module(change), fact)
    assert [d.code for d in caught.value.diagnostics] == [CODES[fact]]


def test_every_fact_can_fail():
    changed = [*CHANGES.values(), *PLACED_CHANGES.values()]
    assert {fact for fact, *_ in changed} | {"in_cluster"} == {*TASK_FACTS}


def test_requests_have_positions_of_their_own():
    """What one request stores at its position is streamed by no other; by the same one, it is."""
    other = ("%old = task.stream %cache[b, 0 +: 8]", "%old = task.stream %cache[1 - b, 0 +: 8]")
    with pytest.raises(meshc.MeshcError, match="in the same run"):
        check_fact(module(other), "streams_free")
    check_fact(module(), "streams_free")


def test_claims_of_a_text_are_checked():
    text = PROGRAM.replace("level(task)", "level(task) holds(one_giver)")
    meshc.parse(text)
    wrong = text.replace("task.give %half[layer, b]", "task.give %half[0, b]")
    with pytest.raises(meshc.MeshcError, match="given twice"):
        meshc.parse(wrong)
