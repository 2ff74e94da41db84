"""Memory that keeps what requests begin with: by hand, by properties, and beside single tokens."""

from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshc.cost.serving_iterations import IterationCost
from meshc.devices import device
from meshc.driver.served_shapes import served_model
from meshc.serving.lengths import Common
from meshc.serving.policies import policy
from meshc.serving.prefixes import PrefixMemory
from meshc.serving.requests import Request
from meshc.serving.scheduler import Scheduler
from meshc.serving.simulator import Arrival, Simulator

QWEN = served_model("qwen3-30b-a3b")
COST = IterationCost(QWEN, device("h100x2"), 2)
HALF = IterationCost(QWEN, device("h100x2"), 1)
LAYERS = range(48)


def run(arrivals, name="chunked", room=100_000):
    chosen = policy(name)
    costs = {"prefill": HALF, "decode": HALF} if chosen.disaggregated else {"all": COST}
    scheduler = Scheduler(chosen, COST.layer_costs(), room, prefixes=True)
    return Simulator(scheduler, costs, arrivals).run()


def talk(name, start, prompt, answer, prefix="a", tokens=None):
    return Arrival(start, Request(name, prompt, answer, prefix, tokens or prompt + answer))


def test_what_is_known_is_not_read():
    """The second turn begins with the first one's prompt and answer, but for its last token."""
    found = run([talk(0, 0.0, 700, 3), talk(1, 50.0, 900, 2)])
    first, second = found.trips
    assert (first.known_tokens, second.known_tokens) == (0, 702)
    seconds = COST.iteration(0, 0, [(702, 900)], LAYERS, heads=1).seconds
    assert second.first - second.arrived == pytest.approx(seconds)
    assert found.prefill_tokens == [512, 188, 198] and found.evicted_tokens == 0


def test_prompts_that_come_at_once_are_read_each():
    """What nobody has read yet nobody shares."""
    found = run([talk(0, 0.0, 400, 2), talk(1, 0.0, 400, 2), talk(2, 40.0, 400, 2)])
    assert [trip.known_tokens for trip in found.trips] == [0, 0, 399]


def test_others_begin_with_their_own():
    found = run([talk(0, 0.0, 400, 2, "a"), talk(1, 40.0, 400, 2, "b"), talk(2, 80.0, 400, 2, "")])
    assert [trip.known_tokens for trip in found.trips] == [0, 0, 0]


def test_the_prefix_that_was_used_longest_ago_gives_way_from_its_end():
    """Room for 1000 tokens: two prefixes of 401 tokens stay, the third takes of the first."""
    arrivals = [talk(n, 40.0 * n, 400, 2, prefix) for n, prefix in enumerate("abcba")]
    found = run(arrivals, room=1000)
    # c takes 204 of a for its 402; b knows 399 of its 402 and takes 2 more of a, which knows 195
    # of its own then and takes 204 of c, used longest ago.
    assert [trip.known_tokens for trip in found.trips] == [0, 0, 0, 399, 195]
    assert found.evicted_tokens == 204 + 2 + 204


@pytest.mark.parametrize("name", ["layered", "combined", "disaggregated"])
def test_every_policy_knows_prefixes(name):
    found = run([talk(0, 0.0, 700, 3, tokens=600), talk(1, 50.0, 900, 2, tokens=800)], name)
    assert [trip.known_tokens for trip in found.trips] == [0, 600]


def test_all_prompts_may_begin_alike():
    assert Common(tokens=100).of(70) == ("all", 70) and Common(tokens=100).of(700) == ("all", 100)
    assert Common(share=0.3).of(70) == ("all", 21) and Common().of(70) == ("", 0)


class Tokens:
    """The same of single tokens: a set of those that lie in caches, in the order of last use."""

    def __init__(self, capacity):
        self.capacity, self.shared, self.held = capacity, OrderedDict(), {}

    def known(self, r):
        count = 0
        while count < min(r.prefix_tokens, r.prompt_tokens - 1) and (
            count in self.shared.get(r.prefix, ())
        ):
            count += 1
        return count

    def used(self):
        own = sum(len(private) for _, private, _ in self.held.values())
        return own + sum(map(len, self.shared.values()))

    def pinned(self, prefix):
        return max((s for r, _, s in self.held.values() if r.prefix == prefix), default=0)

    def hold(self, r, tokens):
        known = self.known(r)
        spare = sum(len(have) - max(self.pinned(p), known if p == r.prefix else 0)
                    for p, have in self.shared.items())  # fmt: skip
        if self.used() - spare + tokens - known > self.capacity:
            return False
        self.held[r.name] = r, set(range(known, tokens)), known
        if r.prefix in self.shared:
            self.shared.move_to_end(r.prefix)
        while self.used() > self.capacity:
            prefix = next(p for p, have in self.shared.items() if len(have) > self.pinned(p))
            self.shared[prefix].discard(len(self.shared[prefix]) - 1)
        return True

    def give(self, name, tokens):
        r, private, uses = self.held[name]
        have = self.shared.setdefault(r.prefix, set())
        more = {t for t in private if len(have) <= t < min(r.prefix_tokens, tokens)}
        have |= more
        if more:
            uses = min(r.prefix_tokens, tokens)
            self.shared.move_to_end(r.prefix)
        self.held[name] = r, private - more, uses

    def free(self, name, tokens):
        if tokens and self.held[name][0].prefix:
            self.give(name, tokens)
        r, _, _ = self.held.pop(name)
        if r.prefix in self.shared:
            self.shared.move_to_end(r.prefix)
        self.shared = OrderedDict((p, have) for p, have in self.shared.items() if have)


requests = st.tuples(
    st.integers(1, 30), st.integers(1, 10), st.sampled_from(["", "a", "b", "c"]), st.integers(1, 50)
)


@settings(max_examples=150, deadline=None)
@given(st.lists(requests, min_size=1, max_size=25), st.integers(40, 120), st.randoms())
def test_memory_is_that_of_single_tokens(drawn, capacity, random):
    """Requests come, are read and leave in any order; both have the same room and know the same."""
    memory, tokens, inside = PrefixMemory(capacity), Tokens(capacity), []
    for name, (prompt, answer, prefix, shared) in enumerate(drawn):
        own = Request(name, prompt, answer, prefix, shared if prefix else 0)
        while True:
            assert memory.known(own) == tokens.known(own)
            fits = memory.fits(own, own.tokens)
            assert fits == tokens.hold(own, own.tokens)
            if fits:
                break
            leaving = inside.pop(random.randrange(len(inside)))
            end(memory, tokens, leaving)
        memory.hold(own, own.tokens)
        inside.append([own, False])
        assert memory.used == tokens.used() <= capacity
        for one in inside:
            if not one[1] and random.random() < 0.5:
                one[1] = True
                memory.read(one[0].name)
                if one[0].prefix:
                    tokens.give(one[0].name, one[0].prompt_tokens)
        assert memory.used == tokens.used()
    while inside:
        end(memory, tokens, inside.pop())
    assert memory.used == tokens.used() and not memory.held


def end(memory, tokens, leaving):
    own, has_read = leaving
    memory.free(own.name)
    tokens.free(own.name, own.tokens - 1 if has_read else 0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(requests, min_size=1, max_size=20),
    st.sampled_from(["chunked", "layered", "combined", "disaggregated"]),
)
def test_every_request_is_served_and_reads_what_is_not_known(drawn, name):
    arrivals = [
        Arrival(0.01 * n, Request(n, *lengths, prefix, shared if prefix else 0))
        for n, (*lengths, prefix, shared) in enumerate(drawn)
    ]
    found = run(arrivals, name, room=45)
    assert all(trip.last < float("inf") for trip in found.trips)
    prompts = sum(trip.prompt_tokens - trip.known_tokens for trip in found.trips)
    if name != "layered" and name != "combined":
        assert sum(found.prefill_tokens) == prompts
