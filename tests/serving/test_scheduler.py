"""Schedules under any arrival order: nothing lost, doubled or out of order, budgets kept, no one
starved, memory given back."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshc.serving.group_counts import ByDoubling, ByLength, Fixed
from meshc.serving.policies import Policy, policy, with_long_prompts
from meshc.serving.requests import Request
from meshc.serving.scheduler import Scheduler
from meshc.support.diagnostics import MeshcError

LAYERS = 12
KV_TOKENS = 6000
REQUESTS = st.lists(
    st.tuples(st.integers(1, 3000), st.integers(1, 12), st.integers(0, 6)), min_size=1, max_size=12
)
CHOICES = [
    policy("chunked"),
    policy("chunked", 64),
    policy("chunked", 8),
    policy("layered"),
    Policy("layered", None, ByLength(100), merged=1500),
    policy("combined", 700, ByLength(64)),
    policy("combined", 1024, ByDoubling(8, 128)),
    policy("combined", 300, Fixed(5)),
    policy("disaggregated", 400),
]
LIMITED = [
    with_long_prompts(policy("chunked", 300), 200),
    with_long_prompts(policy("combined", 700, ByLength(200)), 250, 2),
    with_long_prompts(policy("disaggregated", 400), 150),
]
"""Policies by which short prompts pass long ones."""
ALL = pytest.mark.parametrize(
    "chosen", CHOICES + LIMITED, ids=lambda p: f"{p.name}-{p.chunk}-{p.long_chunk}"
)
POLICIES = pytest.mark.parametrize("chosen", CHOICES, ids=lambda p: f"{p.name}-{p.chunk}")


class Driver:
    """Carries out iterations and writes down who passed which layers, and who got tokens."""

    def __init__(self, chosen, costs=(1.0,) * LAYERS, kv_tokens=KV_TOKENS, most=1024):
        self.scheduler = Scheduler(chosen, costs, kv_tokens, most)
        self.pools = ("prefill", "decode") if chosen.disaggregated else ("all",)
        self.passed, self.tokens, self.iterations, self.firsts = {}, {}, [], []
        self.ended = []

    def round(self):
        """One iteration of each pool; whether there was any."""
        begun = [i for i in (self.scheduler.next(p) for p in self.pools) if i is not None]
        for iteration in begun:
            self.carry_out(iteration)
        return bool(begun)

    def carry_out(self, iteration):
        self.iterations.append(iteration)
        for segment in iteration.prefill.segments if iteration.prefill else ():
            rows = self.passed.setdefault(segment.request.name, [])
            rows.append((segment.start, segment.stop, iteration.prefill.layers))
        progress = self.scheduler.finish(iteration)
        for name in (*progress.first, *iteration.decode):
            self.tokens[name] = self.tokens.get(name, 0) + 1
        self.firsts += progress.first
        self.ended += progress.ended
        if self.scheduler.policy.disaggregated:
            for name in progress.first:
                self.scheduler.join(name)

    def drain(self, limit=20_000):
        for _ in range(limit):
            if not self.round():
                return
        raise AssertionError("requests starve")


def driven(chosen, drawn, **more):
    """All requests of ``drawn`` served; each comes after so many rounds from the one before."""
    driver = Driver(chosen, **more)
    for name, (prompt, output, gap) in enumerate(drawn):
        for _ in range(gap):
            driver.round()
        driver.scheduler.arrive(Request(name, prompt, output))
    driver.drain()
    return driver


@ALL
@given(drawn=REQUESTS)
def test_every_token_passes_every_layer_once_and_in_order(chosen, drawn):
    driver = driven(chosen, drawn)
    for name, (prompt, output, _) in enumerate(drawn):
        done, layer = 0, 0
        for start, stop, layers in driver.passed[name]:
            assert (start, layers.start) == (done, layer) and len(layers) > 0
            layer = layers.stop
            if layer == LAYERS:
                done, layer = stop, 0
        assert (done, layer) == (prompt, 0)
        assert driver.tokens[name] == output
    assert sorted(driver.ended) == list(range(len(drawn)))
    assert driver.scheduler.idle and driver.scheduler.held_tokens == 0


@given(drawn=REQUESTS)
def test_under_layered_prefill_a_prompt_passes_each_layer_once_as_a_whole(drawn):
    driver = driven(policy("layered"), drawn)
    for name, (prompt, _, _) in enumerate(drawn):
        assert all(row[:2] == (0, prompt) for row in driver.passed[name])
        assert [i for *_, layers in driver.passed[name] for i in layers] == list(range(LAYERS))


@ALL
@given(drawn=REQUESTS)
def test_no_iteration_exceeds_its_prefill_budget(chosen, drawn):
    for iteration in driven(chosen, drawn).iterations:
        prefill = iteration.prefill
        if prefill is None:
            continue
        assert all(segment.tokens > 0 for segment in prefill.segments)
        groups = min(LAYERS, chosen.groups(prefill.tokens))
        assert len(prefill.layers) <= ceil(LAYERS / groups)
        if chosen.counts_decodes:
            assert prefill.tokens + len(iteration.decode) <= chosen.chunk
        elif chosen.chunk is not None:
            assert prefill.tokens <= chosen.chunk
        else:
            assert len(prefill.segments) == 1 or prefill.tokens <= chosen.merged


@POLICIES
@given(drawn=REQUESTS)
def test_requests_are_read_in_the_order_of_arrival(chosen, drawn):
    """With the bound on rounds in ``drain``: no request starves."""
    assert driven(chosen, drawn).firsts == list(range(len(drawn)))


@pytest.mark.parametrize("chosen", LIMITED, ids=lambda p: f"{p.name}-{p.long_chunk}")
@given(drawn=REQUESTS)
def test_long_prompts_leave_room_for_those_behind_them(chosen, drawn):
    """Short prompts keep their order and so do long ones, of which an iteration has few tokens."""
    driver = driven(chosen, drawn)
    for iteration in driver.iterations:
        segments = iteration.prefill.segments if iteration.prefill else ()
        long = [s for s in segments if s.request.prompt_tokens - s.start > chosen.long_chunk]
        assert len(long) <= chosen.long_prompts
        assert all(segment.tokens <= chosen.long_chunk for segment in long)
    begun = [s.request for i in driver.iterations if i.prefill for s in i.prefill.segments]
    order = [request.name for request in dict.fromkeys(begun)]
    is_long = [drawn[name][0] > chosen.long_chunk for name in order]
    for kind in (True, False):
        names = [name for name, own in zip(order, is_long, strict=True) if own == kind]
        assert names == sorted(names)


def test_a_short_prompt_is_read_beside_a_long_one_and_passes_one_that_waits():
    driver = Driver(with_long_prompts(policy("chunked", 64), 32))
    for name, prompt in enumerate((1000, 900, 20, 20)):
        driver.scheduler.arrive(Request(name, prompt, 1))
    iteration = driver.scheduler.next()
    read = [(s.request.name, s.start, s.stop) for s in iteration.prefill.segments]
    assert read == [(0, 0, 32), (2, 0, 20), (3, 0, 12)]
    driver.carry_out(iteration)
    assert driver.firsts == [2]
    driver.drain()
    assert driver.firsts == [2, 3, 0, 1]


@pytest.mark.parametrize(
    ("chosen", "chunk", "prompts"),
    [
        (policy("chunked", 64), 64, None),
        (policy("chunked", 64), 0, None),
        (policy("chunked", 64), 8, 0),
        (policy("chunked", 64), None, 2),
        (policy("layered"), 64, None),
    ],
)
def test_limits_that_limit_nothing_are_refused(chosen, chunk, prompts):
    with pytest.raises(MeshcError) as caught:
        with_long_prompts(chosen, chunk, prompts)
    assert caught.value.diagnostics[0].code == "bad-argument"


def test_a_part_of_a_long_prompt_has_as_many_tokens_as_prompts_are_cut_at():
    limited = with_long_prompts(policy("chunked", 64), 6)
    with pytest.raises(MeshcError, match="too short"):
        Scheduler(limited, (1.0,), KV_TOKENS, multiple=8)


@ALL
@given(drawn=REQUESTS)
def test_decoding_never_stalls(chosen, drawn):
    """A request gets a token in every iteration of its pool from its first token to its last."""
    driver = driven(chosen, drawn)
    decoding = [i.decode for i in driver.iterations if i.pool != "prefill"]
    for name, (_, output, _) in enumerate(drawn):
        steps = [n for n, names in enumerate(decoding) if name in names]
        assert len(steps) == output - 1
        assert not steps or steps[-1] - steps[0] == output - 2


@given(drawn=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9), st.integers(0, 4)),
                      min_size=1, max_size=10))  # fmt: skip
def test_with_one_group_and_one_chunk_all_policies_coincide(drawn):
    large = 100_000
    colocated = [
        Policy("chunked", large, Fixed(1)),
        Policy("chunked", large, Fixed(1), counts_decodes=True),
        Policy("layered", None, Fixed(1), merged=large),
        Policy("combined", large, ByLength(large)),
    ]
    first, *others = (list(driven(p, drawn).iterations) for p in colocated)
    assert all(other == first for other in others)


@ALL
@given(drawn=REQUESTS, cancelled=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 60))))
def test_a_cancelled_request_frees_its_memory(chosen, drawn, cancelled):
    driver = Driver(chosen)
    for name, (prompt, output, gap) in enumerate(drawn):
        for _ in range(gap):
            driver.round()
        driver.scheduler.arrive(Request(name, prompt, output))
    for victim, rounds in sorted(cancelled, key=lambda pair: pair[1]):
        for _ in range(rounds):
            driver.round()
        begun = driver.scheduler.next(driver.pools[0])  # cancelled while it is under way
        driver.scheduler.cancel(victim)
        held = driver.scheduler.held_tokens
        if begun is not None:
            driver.carry_out(begun)
        assert driver.scheduler.held_tokens <= held
        tokens, passed = dict(driver.tokens), len(driver.passed.get(victim, ()))
        driver.round()
        assert driver.tokens.get(victim) == tokens.get(victim)
        assert len(driver.passed.get(victim, ())) == passed
    driver.drain()
    victims = {victim for victim, _ in cancelled}
    assert {n for n, (_, output, _) in enumerate(drawn) if n not in victims} <= set(driver.ended)
    assert driver.scheduler.idle and driver.scheduler.held_tokens == 0


@ALL
@given(drawn=REQUESTS)
def test_memory_and_requests_stay_within_their_limits(chosen, drawn):
    driver = Driver(chosen, kv_tokens=3100, most=2)
    for name, (prompt, output, _) in enumerate(drawn):
        driver.scheduler.arrive(Request(name, prompt, output))
    pools = len(driver.pools)
    while driver.round():
        assert driver.scheduler.held_tokens <= 3100 * pools
        assert driver.scheduler.decoding <= 2
    assert len(driver.ended) == len(drawn)


def test_a_request_that_stops_early_leaves():
    driver = Driver(policy("chunked"))
    driver.scheduler.arrive(Request(0, 5, 100))
    driver.scheduler.arrive(Request(1, 5, 3))
    driver.round()
    iteration = driver.scheduler.next()
    progress = driver.scheduler.finish(iteration, stopped={0})
    assert progress.ended == (0,) and driver.scheduler.held_tokens == 8
    driver.drain()
    assert driver.scheduler.idle


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Request(0, KV_TOKENS, 1), "request-too-large"),
        (Request(0, 0, 1), "bad-argument"),
        (Request(0, 1, 0), "bad-argument"),
        (Request(9, 1, 1), "bad-argument"),
    ],
)
def test_requests_that_cannot_be_served_are_refused(request_, code):
    scheduler = Scheduler(policy("chunked"), (1.0,) * LAYERS, KV_TOKENS)
    scheduler.arrive(Request(9, 1, 1))
    with pytest.raises(MeshcError) as caught:
        scheduler.arrive(request_)
    assert caught.value.diagnostics[0].code == code


def test_iterations_are_finished_once_and_in_their_pool():
    scheduler = Scheduler(policy("chunked"), (1.0,) * LAYERS, KV_TOKENS)
    scheduler.arrive(Request(0, 1, 4))
    iteration = scheduler.next()
    for wrong in (lambda: scheduler.next(), lambda: scheduler.next("decode")):
        with pytest.raises(MeshcError, match="bad-argument"):
            wrong()
    scheduler.finish(iteration)
    with pytest.raises(MeshcError, match="not the one under way"):
        scheduler.finish(iteration)
