"""The joint choice of algorithms against one that tries everything, with its own counting."""

import random
from dataclasses import replace
from itertools import product
from math import inf

import pytest

from meshc.analysis.traffic.tracks import Track, receivers, ring_track, room_of
from meshc.cost.reductions import TREES
from meshc.cost.routing_demand import Demand, Reduced
from meshc.cost.sharing import Sharing
from meshc.cost.track_sets import ANY, Algorithms, largest_sets
from meshc.devices import device
from meshc.ir.mesh import plane_of

PLANES = ((3, 4, None), (8, 6, None), (4, 12, 3), (5, 8, 2), (9, 18, 2), (16, 16, 4), (2, 10, 1))


def drawn_sharing(drawn):
    rows, columns, segments = drawn.choice(PLANES)
    mesh = plane_of(("y", "x"), rows, columns, segments)
    base = device(drawn.choice(["wse2", "ideal"]))
    free = (drawn.choice([None, *range(1, 9)]), drawn.choice([None, *range(3, 22)]))
    return Sharing(mesh, base, Algorithms(rooted=drawn.random() < 0.5), *free)


def drawn_demand(drawn, sharing):
    axes = [axis for axis in sharing.mesh.ranked if sharing.mesh.size(axis) > 1]
    found = {}
    for _ in range(drawn.randint(1, 4)):
        words = drawn.choice([1, 3, 20, 300, 4000])
        axis = drawn.choice(axes)
        part = drawn.choice([0, -(-words // sharing.mesh.size(axis))])
        everywhere = not sharing.algorithms.rooted or drawn.random() < 0.5
        found[Reduced(axis, words, part, everywhere)] = drawn.choice([1, 2, 32])
    rings = {ring_track(sharing.mesh, a) for a in axes if drawn.random() < 0.2}
    return Demand(found, frozenset(rings))


def drawn_algorithms(drawn, rooted):
    algo, k = drawn.choice(["auto", "folded", "ring", *TREES]), drawn.randint(0, 3)
    return Algorithms(algo, k, rooted, drawn.random() < 0.7, drawn.random() < 0.7)


def fewest_queues(mesh, tracks):
    """By trying: each track into any queue in which it meets none."""
    cores = [(y, x) for y in range(mesh.rows) for x in range(mesh.columns)]
    ends = []
    for track in tracks:
        bits = receivers(mesh, track)
        down = mesh.whole(track.axis) == mesh.down
        on = ((y, x) for y, x in cores if bits >> (y if down else x) & 1)
        ends.append(sum(1 << y * mesh.columns + x for y, x in on))
    best = len(ends)

    def put(at, queues):
        nonlocal best
        if len(queues) >= best:
            return
        if at == len(ends):
            best = len(queues)
            return
        for number, queue in enumerate(queues):
            if not queue & ends[at]:
                put(at + 1, [*queues[:number], queue | ends[at], *queues[number + 1 :]])
        put(at + 1, [*queues, ends[at]])

    put(0, [])
    return best


def by_trying(sharing, demand):
    """The fewest cycles of any algorithms whose channels fit."""
    needs, best = list(demand.reductions), inf
    room = {}
    for taken in product(*(sharing.options(need) for need in needs)):
        cycles = sum(o.way.cycles * demand.reductions[n] for n, o in zip(needs, taken, strict=True))
        tracks = demand.tracks.union(*(option.tracks for option in taken))
        if cycles >= best:
            continue
        if tracks not in room:
            colors = room_of(sharing.mesh, tracks)[1]
            room[tracks] = fewest_queues(sharing.mesh, tracks), colors
        limits = (sharing.inputs, sharing.colors)
        if all(m is None or n <= m for n, m in zip(room[tracks], limits, strict=True)):
            best = cycles
    return best


def judge(seeds, forced=False):
    """How the choices of so many cases come out, each the cheapest; ``forced`` draws which
    algorithms there are, too."""
    outcomes = {"best": 0, "dearer than alone": 0, "nothing fits": 0}
    for seed in seeds:
        drawn = random.Random(seed)
        sharing = drawn_sharing(drawn)
        demand = drawn_demand(drawn, sharing)
        if forced:
            algorithms = drawn_algorithms(drawn, sharing.algorithms.rooted)
            sharing = replace(sharing, algorithms=algorithms, _rows={})
        choice, wanted = sharing.cheapest(demand), by_trying(sharing, demand)
        if choice is None:
            assert wanted == inf, seed
            outcomes["nothing fits"] += 1
            continue
        assert choice.cost.total == pytest.approx(wanted, rel=1e-12), seed
        alone = sum(
            min(option.way.cycles for option in sharing.options(need)) * times
            for need, times in demand.reductions.items()
        )
        outcomes["dearer than alone" if choice.cost.total > alone * 1.001 else "best"] += 1
    return outcomes


def test_the_joint_choice_is_the_cheapest_that_fits():
    outcomes = judge(range(60))
    assert min(outcomes.values()) >= 5, outcomes


def test_the_joint_choice_is_the_cheapest_of_the_algorithms_that_are_asked_for():
    outcomes = judge(range(60), forced=True)
    assert min(outcomes["best"], outcomes["nothing fits"]) >= 20, outcomes


@pytest.mark.slow
@pytest.mark.parametrize("forced", [False, True])
def test_the_joint_choice_is_the_cheapest_that_fits_in_many_cases(forced):
    print(judge(range(3000), forced))


def test_what_is_chosen_fits():
    for seed in range(100):
        drawn = random.Random(seed)
        sharing = drawn_sharing(drawn)
        choice = sharing.cheapest(drawn_demand(drawn, sharing))
        if choice is not None:
            assert sharing.inputs is None or choice.inputs <= sharing.inputs
            assert sharing.colors is None or choice.colors <= sharing.colors


def test_largest_sets_fit_and_nothing_can_be_added():
    mesh = plane_of(("y", "x"), 9, 12, 3)
    sets = largest_sets(mesh, ANY, 6, 21)
    everything = frozenset().union(*sets)
    for tracks in sets:
        queues, colors = room_of(mesh, tracks)
        assert queues <= 6 and colors <= 21
        assert not any(tracks < other for other in sets)
    assert len(largest_sets(mesh, ANY, None, None)) == 1
    assert largest_sets(mesh, ANY, None, None)[0] >= everything


def test_two_algorithms_on_one_axis_share_chains():
    """One word goes through a tree, many through one chain of the same stride."""
    mesh = plane_of(("y", "x"), 1, 64, None)
    sharing = Sharing(mesh, device("wse2"), ANY, 3, None)
    few, many = Reduced("x", 1, 0), Reduced("x", 4000, 0)
    choice = sharing.cheapest(Demand({few: 32, many: 1}))
    assert choice.ways[few].groups == (8, 8)
    assert choice.ways[many].groups == (64,)
    assert choice.inputs == 3


def test_a_folded_tree_may_stand_beside_plain_chains_of_its_axis():
    """Few words are halved on their way to the middle; the multicast from there is not shared."""
    mesh = plane_of(("y", "x"), 1, 16, None)
    sharing = Sharing(mesh, device("wse2"), ANY, 4, None)
    few, many = Reduced("x", 1, 0), Reduced("x", 4000, 0)
    choice = sharing.cheapest(Demand({few: 1, many: 1}))
    ways = [(choice.ways[each].algo, choice.ways[each].groups) for each in (few, many)]
    assert ways == [("folded", (8,)), ("k_tree", (16,))]


def test_a_sum_for_first_cores_alone_takes_a_plain_tree_where_others_are_folded():
    mesh = plane_of(("y", "x"), 1, 16, None)
    sharing = Sharing(mesh, device("wse2"), Algorithms("folded", rooted=True), 6, 21)
    everywhere, rooted = Reduced("x", 100, 0), Reduced("x", 100, 0, everywhere=False)
    choice = sharing.cheapest(Demand({everywhere: 1, rooted: 1}))
    assert choice.ways[everywhere].algo == "folded"
    assert choice.ways[rooted].algo == "k_tree"


def test_a_reduction_whose_words_belong_together_takes_no_ring():
    mesh = plane_of(("y", "x"), 1, 4, None)
    sharing = Sharing(mesh, device("ideal"), ANY, None, None)
    taken = {
        part: sharing.cheapest(Demand({Reduced("x", 40000, part): 1}))
        .ways[Reduced("x", 40000, part)]
        .algo
        for part in (0, 10000)
    }
    assert taken == {0: "k_tree", 10000: "ring"}


def test_a_track_is_shared_by_segments_where_its_stride_divides_them():
    mesh = plane_of(("y", "x"), 1, 12, 2)
    assert receivers(mesh, Track("cast", "xd")) == 0b111110111110
    assert receivers(mesh, Track("chain", "xd", 4)) == 0b000001000001
    assert receivers(mesh, Track("chain", "x", 4)) == 0b000000010001
