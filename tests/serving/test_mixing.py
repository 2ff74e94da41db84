"""Tokens of prompts are read in the steps of requests that go on, each of which gets what it gets
alone."""

from books import CAPACITY, REQUESTS, continued
from drawn_requests import DRAWN, TREE, check_alone, drained
from hypothesis import given
from hypothesis import strategies as st
from paged_books import PAGE, paged_server

from meshc.serving.policies import policy
from meshc.serving.replaying import Entry

ALL_PAGES = REQUESTS * CAPACITY // PAGE


@given(
    chunk=st.integers(2, 20),
    drawn=DRAWN,
    stop=st.sampled_from([(), (3,)]),
    cancelled=st.sets(st.integers(0, 8)),
    pages=st.sampled_from([36, 48, ALL_PAGES]),
    prefixes=st.booleans(),
)
def test_each_request_gets_what_it_gets_alone(chunk, drawn, stop, cancelled, pages, prefixes):
    """The engine asserts that nothing of a step is taken for what is cached before it."""
    server = paged_server(policy("chunked", chunk), pages, prefixes, mixes=True)
    check_alone(server, drawn, stop, cancelled, REQUESTS)


def test_an_iteration_is_one_step():
    server, found = paged_server(policy("chunked", 9), ALL_PAGES, mixes=True), {}
    server.submit(0, TREE[0][:4], 9)
    server.submit(1, TREE[1][:20], 3)
    drained(server, found)
    assert found[1] == continued(Entry(1, 0.0, tuple(TREE[1][:20]), 3))
    assert server.engine.steps == []
    assert server.engine.mixed[:4] == [{0: 4, 1: 5}, {0: 1, 1: 8}, {0: 1, 1: 7}, {0: 1, 1: 1}]


def test_a_conversation_goes_on_from_what_was_answered():
    server, found = paged_server(policy("chunked", 9), ALL_PAGES, mixes=True), {}
    server.submit(0, TREE[0][:6], 8)
    drained(server, found)
    text = [*TREE[0][:6], *found[0], *TREE[1][:5]]
    before = len(server.engine.mixed)
    server.submit(1, text, 2)
    drained(server, found)
    assert found[1] == continued(Entry(1, 0.0, tuple(text), 2))
    # Of 6 + 8 tokens the last one has not been read, and pages have two.
    assert sum(sum(read.values()) for read in server.engine.mixed[before:]) == len(text) - 12 + 1
