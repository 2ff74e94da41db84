"""Caches in pages: requests share what they begin with, are put back where pages run out, and get
what they get alone."""

import pytest
from books import CAPACITY, REQUESTS, VOCAB, continued
from drawn_requests import DRAWN, TREE, check_alone, drained
from hypothesis import given
from hypothesis import strategies as st
from paged_books import PAGE, paged_server
from test_engine import CHOICES

from meshc.serving.policies import policy, with_long_prompts
from meshc.serving.replaying import Entry
from meshc.support.diagnostics import MeshcError, fail

LIMITED = with_long_prompts(policy("chunked", 12), 8), with_long_prompts(policy("combined", 9), 4)
POLICIES = pytest.mark.parametrize(
    "chosen", [*CHOICES, *LIMITED], ids=lambda p: f"{p.name}-{p.chunk}-{p.long_chunk}"
)
ALL_PAGES = REQUESTS * CAPACITY // PAGE


@POLICIES
@given(
    drawn=DRAWN,
    stop=st.sampled_from([(), (3,)]),
    cancelled=st.sets(st.integers(0, 8)),
    pages=st.sampled_from([21, 24, 32, ALL_PAGES]),
    prefixes=st.booleans(),
)
def test_each_request_gets_what_it_gets_alone(chosen, drawn, stop, cancelled, pages, prefixes):
    """The engine asserts that pages hold the tokens of who has them, behind all layers."""
    check_alone(paged_server(chosen, pages, prefixes), drawn, stop, cancelled, REQUESTS)


def served(prompts, pages=ALL_PAGES, prefixes=True, most=4, chosen=None):
    """How many tokens each of ``prompts``, one behind the other, is read of."""
    server, found = paged_server(chosen or policy("chunked", 8), pages, prefixes), []
    for name, prompt in enumerate(prompts):
        before = server.engine.read_tokens
        server.submit(name, prompt, most)
        drained(server, {})
        found.append(server.engine.read_tokens - before)
    return found


def test_what_was_read_is_not_read_again():
    prompt = TREE[0][:22]
    other = [*prompt[:13], *((token + 1) % VOCAB for token in prompt[13:])]
    # All but the last token of a prompt are read, in pieces of four tokens.
    assert served([prompt, prompt, other], prefixes=False) == [21, 21, 21]
    assert served([prompt, prompt, other]) == [21, 1, 21 - 12]
    assert served([prompt[:21], prompt[:21], prompt[:20]]) == [20, 0, 3]


def test_a_request_that_is_there_shares_what_it_has_read():
    server, found = paged_server(policy("chunked", 8), ALL_PAGES), {}
    server.submit(0, TREE[0][:22], 9)
    for _ in range(6):
        server.step()
    before = server.engine.read_tokens
    server.submit(1, TREE[0][:26], 9)
    drained(server, found)
    assert server.engine.read_tokens - before == 25 - 20
    assert found[1] == continued(Entry(1, 0.0, tuple(TREE[0][:26]), 9))


def test_two_that_are_read_together_have_the_pages_once():
    server = paged_server(policy("layered"), ALL_PAGES)
    for name in range(2):
        server.submit(name, TREE[0][:22], 4)
    for _ in range(3):
        server.step()
    first, second = (server.engine.tables[place] for place in range(2))
    assert first[:10] == second[:10] and not set(first[10:]) & set(second[10:])
    drained(server, {})


def test_what_was_not_used_for_longest_gives_way():
    prompts = [TREE[0][:24], TREE[1][:24], TREE[0][:24], TREE[2][:24], TREE[0][:24], TREE[1][:24]]
    # A prompt with its answer has 14 pages, 10 of which are whole pieces.
    assert served(prompts, pages=24) == [23, 23, 3, 23, 3, 23]


def test_the_last_one_is_put_back_and_goes_on_with_its_tokens():
    """Two requests of 12 tokens that come to have 31: eleven pages are enough for one of them."""
    server, found, drawn = paged_server(policy("chunked", 8), 17), {}, []
    prompts = [TREE[0][:12], TREE[1][:12]]

    def choose(name):
        def taken(logits):
            drawn.append(name)
            return int(logits.argmax())

        return taken

    put_back = []
    for name, prompt in enumerate(prompts):
        server.submit(name, prompt, 20, (), choose(name))
    while not server.idle:
        record = server.step()
        put_back += record.put_back
        for who, tokens in record.tokens.items():
            found.setdefault(who, []).extend(tokens)
        assert not set(record.put_back) & {*record.tokens, *record.first}
    assert set(put_back) == {1}
    for name, prompt in enumerate(prompts):
        assert found[name] == continued(Entry(name, 0.0, tuple(prompt), 20))
        assert drawn.count(name) == 20  # nothing is drawn twice


def test_a_request_that_can_never_fit_is_refused():
    server = paged_server(policy("chunked", 8), 10)
    server.submit(0, TREE[0][:12], 9)  # the last token is not kept
    with pytest.raises(MeshcError, match=r"request-too-large.*may come to hold 22 tokens"):
        server.submit(1, TREE[0][:12], 10)
    drained(server, {})


def test_a_failing_engine_leaves_nothing_behind():
    server = paged_server(policy("chunked", 8), ALL_PAGES)
    server.submit(0, TREE[0][:22], 4)
    drained(server, {})
    inner, server.engine.step = server.engine.step, lambda tokens: fail("cuda-fault", "no more")
    server.submit(1, TREE[0][:22], 4)
    with pytest.raises(MeshcError, match="no more"):
        server.step()
    assert server.idle and server.free == REQUESTS and server.scheduler.held_tokens == 0
    server.engine.step, before = inner, server.engine.read_tokens
    server.submit(2, TREE[0][:22], 4)
    drained(server, {})
    assert server.engine.read_tokens - before == 21
