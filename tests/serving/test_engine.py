"""Serving on an engine that keeps books: every token is read once by every layer in order, nothing
stalls, and each request gets what it gets alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshc.serving.engine import Server
from meshc.serving.groups import ByLength, Fixed
from meshc.serving.policies import Policy, policy
from meshc.serving.replaying import Entry, replayed
from meshc.serving.scheduler import Scheduler
from meshc.support.diagnostics import MeshcError

LAYERS, REQUESTS, CAPACITY, VOCAB, MULTIPLE = 5, 3, 64, 11, 4
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


class Books:
    """An engine whose layers write down the tokens that pass them. A row is a token and the number
    of layers that it has passed; a token's successor depends on all tokens before it."""

    requests, capacity, vocab = REQUESTS, CAPACITY, VOCAB

    def __init__(self):
        self.layers = [[[] for _ in range(LAYERS)] for _ in range(REQUESTS)]
        self.steps = []

    def embedded(self, ids):
        return np.array([[token, 0] for token in ids])

    def read(self, request, rows, position, layers):
        assert position % MULTIPLE == 0 and len(rows) > 0
        assert (rows[:, 1] == layers.start).all()
        for layer in layers:
            cache = self.layers[request][layer]
            del cache[position:]  # those of a request before
            assert len(cache) == position
            cache += rows[:, 0].tolist()
        return np.stack([rows[:, 0], np.full(len(rows), layers.stop)], 1)

    def step(self, tokens):
        assert 0 < len(tokens) <= REQUESTS
        self.steps.append(tuple(tokens))
        logits = {}
        for request, (token, position) in tokens.items():
            for cache in self.layers[request]:
                if position == 0:
                    cache.clear()
                assert len(cache) == position
                cache.append(token)
            logits[request] = one_hot(successor(self.layers[request][0]))
        return logits


def one_hot(token):
    return np.eye(VOCAB)[token]


def successor(tokens):
    """The token behind ``tokens``."""
    found = 1
    for token in tokens:
        found = (found * 7 + token + 3) % 1009
    return found % VOCAB


def continued(entry):
    """What a request gets alone."""
    tokens = list(entry.prompt)
    for _ in range(entry.most):
        tokens.append(successor(tokens))
        if tokens[-1] in entry.stop:
            break
    return tokens[len(entry.prompt) :]


def entries_of(drawn, stop=()):
    random, now, found = np.random.default_rng(len(drawn)), 0.0, []
    for name, (length, most, gap) in enumerate(drawn):
        now += gap
        prompt = tuple(random.integers(0, VOCAB, length).tolist())
        found.append(Entry(name, now, prompt, most, stop))
    return found


def server_of(chosen):
    scheduler = Scheduler(chosen, (1.0,) * LAYERS, REQUESTS * (CAPACITY + 1), REQUESTS, MULTIPLE)
    return Server(Books(), scheduler)


@POLICIES
@given(drawn=ARRIVALS, stop=st.sampled_from([(), (3,), (0, 5)]))
@settings(max_examples=60, deadline=None)
def test_each_request_gets_what_it_gets_alone(chosen, drawn, stop):
    entries, server = entries_of(drawn, stop), server_of(chosen)
    found = replayed(server, entries, 1.0)
    assert found == {entry.name: continued(entry) for entry in entries}
    assert server.idle and server.free == REQUESTS and not server.jobs
    assert server.scheduler.held_tokens == 0


@POLICIES
@given(drawn=ARRIVALS)
@settings(max_examples=60, deadline=None)
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
@settings(max_examples=60, deadline=None)
def test_a_cancelled_request_leaves_at_once_and_disturbs_nobody(chosen, drawn, cancelled):
    entries, server = entries_of(drawn), server_of(chosen)
    found = {entry.name: [] for entry in entries}
    for entry in entries:
        server.submit(entry.name, entry.prompt, entry.most)

    def step():
        record = server.step()
        for name, token in record.tokens.items() if record else ():
            found[name].append(token)

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
@settings(max_examples=40, deadline=None)
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
