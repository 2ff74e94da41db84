"""Serving on an engine that keeps books: every token is read once by every layer in order, nothing
stalls, and each request gets what it gets alone."""

import numpy as np
import pytest
from books import CAPACITY, LAYERS, MULTIPLE, REQUESTS, VOCAB, continued, server_of
from hypothesis import given
from hypothesis import strategies as st

from meshc.serving.group_counts import ByLength, Fixed
from meshc.serving.policies import Policy, policy
from meshc.serving.replaying import Entry, replayed
from meshc.support.diagnostics import MeshcError, fail

CHOICES = [
    policy("chunked", 8),
    policy("chunked", 4),
    policy("layered", groups=Fixed(3)),
    Policy("layered", None, ByLength(8), merged=24),
    policy("combined", 12, Fixed(2)),
    policy("combined", 9, ByLength(3)),
]
POLICIES = pytest.mark.parametrize("chosen", CHOICES, ids=lambda p: f"{p.name}-{p.chunk}")
ARRIVALS = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=8
)


def entries_of(drawn, stop=()):
    random, now, found = np.random.default_rng(len(drawn)), 0.0, []
    for name, (length, most, gap) in enumerate(drawn):
        now += gap
        prompt = tuple(random.integers(0, VOCAB, length).tolist())
        found.append(Entry(name, now, prompt, most, stop))
    return found


@POLICIES
@given(drawn=ARRIVALS, stop=st.sampled_from([(), (3,), (0, 5)]))
def test_each_request_gets_what_it_gets_alone(chosen, drawn, stop):
    entries, server = entries_of(drawn, stop), server_of(chosen)
    found = replayed(server, entries, 1.0)
    assert found == {entry.name: continued(entry) for entry in entries}
    assert server.idle and server.free == REQUESTS and not server.jobs
    assert server.scheduler.held_tokens == 0


@POLICIES
@given(drawn=ARRIVALS)
def test_a_decode_waits_for_no_more_than_the_prefill_of_its_iteration(chosen, drawn):
    """Between two tokens of a request there is one iteration, whose prefill keeps its budget."""
    entries, records = entries_of(drawn), []
    replayed(server_of(chosen), entries, 1.0, lambda record, _: records.append(record))
    for entry in entries:
        got = [n for n, record in enumerate(records) if entry.name in record.tokens]
        assert got == list(range(got[0], got[0] + entry.most))
    for record in records:
        tokens = sum(stop - start for _, start, stop in record.segments)
        if record.layers is None:
            continue
        groups = min(LAYERS, chosen.groups(tokens))
        assert record.layers[1] - record.layers[0] <= -(-LAYERS // groups)
        if chosen.counts_decodes:
            assert tokens + len(record.decode) <= chosen.chunk
        elif chosen.chunk is not None:
            assert tokens <= chosen.chunk


@POLICIES
@given(drawn=ARRIVALS, cancelled=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9))))
def test_a_cancelled_request_leaves_at_once_and_disturbs_nobody(chosen, drawn, cancelled):
    entries, server = entries_of(drawn), server_of(chosen)
    found = {entry.name: [] for entry in entries}
    for entry in entries:
        server.submit(entry.name, entry.prompt, entry.most)

    def step():
        record = server.step()
        for name, tokens in record.tokens.items() if record else ():
            found[name] += tokens

    for victim, rounds in cancelled:
        for _ in range(rounds):
            step()
        server.cancel(victim)
        assert not server.scheduler.knows(victim) and victim not in server.jobs
    while not server.idle:
        step()
    assert server.free == REQUESTS and server.scheduler.held_tokens == 0
    for entry in entries:
        wanted = continued(entry)
        if entry.name in {victim for victim, _ in cancelled}:
            wanted = wanted[: len(found[entry.name])]
        assert found[entry.name] == wanted


@given(drawn=ARRIVALS)
def test_with_one_group_and_one_chunk_all_policies_run_the_same_iterations(drawn):
    runs = []
    for chosen in (
        Policy("chunked", 1000, Fixed(1)),
        Policy("layered", None, Fixed(1), merged=1000),
        Policy("combined", 1000, ByLength(1000)),
    ):
        records = []
        replayed(server_of(chosen), entries_of(drawn), 1.0, lambda r, _, to=records: to.append(r))
        runs.append(records)
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize(
    ("prompt", "most", "code"),
    [
        ((1,) * CAPACITY, 2, "request-too-large"),
        ((1,), CAPACITY + 1, "request-too-large"),
        ((1, VOCAB), 2, "bad-argument"),
        ((1, -1), 2, "bad-argument"),
        ((), 2, "bad-argument"),
        ((1,), 0, "bad-argument"),
    ],
)
def test_requests_that_cannot_be_served_are_refused_and_leave_nothing(prompt, most, code):
    server = server_of(policy("chunked", 8))
    with pytest.raises(MeshcError) as caught:
        server.submit(0, prompt, most)
    assert caught.value.diagnostics[0].code == code
    assert server.idle and not server.jobs and server.step() is None


def test_a_request_that_fills_its_caches_is_served():
    server = server_of(policy("chunked", 8))
    entry = Entry(0, 0.0, (1,) * CAPACITY, 1)
    assert replayed(server, [entry], 1.0)[0] == continued(entry)


def test_chunks_shorter_than_what_prompts_are_cut_at_are_refused():
    with pytest.raises(MeshcError, match="too short"):
        server_of(policy("chunked", MULTIPLE - 1))


def test_a_request_that_gets_no_token_is_given_up_alone():
    server, good = server_of(policy("chunked", 8)), Entry(1, 0.0, (1, 2, 3), 5)

    def choose(logits):
        fail("run-refused", "the logits have no largest number")

    server.submit(0, (4, 5), 5, (), choose)
    server.submit(1, good.prompt, good.most)
    first = server.step()
    assert (first.failed, first.first) == ({0: "the logits have no largest number"}, (1,))
    assert 0 not in first.tokens and 0 not in first.ended and 0 not in server.jobs
    found = [first.tokens[1]]
    while not server.idle:
        found.append(server.step().tokens[1])
    assert found == [(token,) for token in continued(good)]
    assert server.free == REQUESTS and server.scheduler.held_tokens == 0


def test_where_the_engine_fails_all_requests_are_given_up_and_others_served_after():
    server = server_of(policy("chunked", 8))
    for name in range(4):
        server.submit(name, (1, 2, 3), 5)
    server.step()
    good, server.engine.step = server.engine.step, None
    with pytest.raises(TypeError):
        server.step()
    assert server.idle and server.free == REQUESTS and server.scheduler.held_tokens == 0
    server.engine.step = good
    entry = Entry(9, 0.0, (4, 5), 6)
    assert replayed(server, [entry], 1.0)[9] == continued(entry)
