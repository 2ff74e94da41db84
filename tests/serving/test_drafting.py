"""Drafts: whatever is guessed, requests get the tokens that they get without."""

import numpy as np
import pytest
from books import REQUESTS, VOCAB, continued, successor
from drawn_requests import DRAWN, TREE, check_alone, drained
from hypothesis import given
from hypothesis import strategies as st
from paged_books import paged_server
from test_pages import ALL_PAGES, POLICIES

from meshc.serving.drafting import Repeats
from meshc.serving.policies import policy
from meshc.serving.replaying import Entry
from meshc.serving.sampling import Sampler, Sampling


class Guessing:
    """Guesses the next ``right`` tokens of a text, and behind them others, some of which are
    none."""

    def __init__(self, right, wrong=()):
        self.right, self.wrong, self.gone = right, wrong, []

    def draft(self, texts):
        found = {}
        for name, (text, most) in texts.items():
            assert most > 0
            own = list(text)
            for _ in range(self.right):
                own.append(successor(own))
            found[name] = [*own[len(text) :], *self.wrong][:most]
        return found

    def leave(self, name):
        self.gone.append(name)


@POLICIES
@given(
    drawn=DRAWN,
    stop=st.sampled_from([(), (3,)]),
    cancelled=st.sets(st.integers(0, 8)),
    pages=st.sampled_from([21, 24, 32, ALL_PAGES]),
    right=st.integers(0, 4),
    wrong=st.lists(st.integers(-1, VOCAB), max_size=3),
)
def test_each_request_gets_what_it_gets_without_drafts(
    chosen, drawn, stop, cancelled, pages, right, wrong
):
    drafter = Guessing(right, wrong)
    check_alone(paged_server(chosen, pages, True, drafter), drawn, stop, cancelled, REQUESTS)


@POLICIES
@given(drawn=DRAWN, pages=st.sampled_from([21, ALL_PAGES]))
def test_repeats_change_no_token(chosen, drawn, pages):
    server = paged_server(chosen, pages, True, Repeats())
    check_alone(server, drawn, (), set(), REQUESTS)
    assert server.guesses.accepted <= server.guesses.drafted


@pytest.mark.parametrize(("right", "launches"), [(0, 21), (1, 11), (3, 6), (9, 6)])
def test_right_drafts_save_steps(right, launches):
    """21 tokens: one behind the prompt, then up to four in each step."""
    server, found = paged_server(policy("chunked", 8), ALL_PAGES, True, Guessing(right)), {}
    server.submit(0, TREE[0][:9], 21)
    records = []
    while not server.idle:
        records.append(server.step())
    got = [record for record in records if record.tokens]
    assert len(got) == launches and got[0].first == (0,) and got[-1].ended == (0,)
    found = [token for record in got for token in record.tokens[0]]
    assert found == continued(Entry(0, 0.0, tuple(TREE[0][:9]), 21))
    assert server.guesses.accepted == server.guesses.drafted
    assert server.guesses.accepted == 21 - launches


def test_wrong_drafts_are_counted_and_cost_no_step():
    wrong = Guessing(1, [VOCAB, 0, 0])
    server = paged_server(policy("chunked", 8), ALL_PAGES, True, wrong)
    server.submit(0, TREE[0][:9], 8)
    drained(server, {})
    # What is no token ends a draft, so each has one that is right.
    assert server.guesses.drafted == server.guesses.accepted > 0
    assert wrong.gone == [0]


def test_one_that_is_put_back_repeats_its_tokens_by_several():
    prompts = [TREE[0][:12], TREE[1][:12]]
    server, found, back = paged_server(policy("chunked", 8), 17, True, Guessing(0)), {}, []
    for name, prompt in enumerate(prompts):
        server.submit(name, prompt, 20)
    repeated = 0
    while not server.idle:
        before = {name: job.steps for name, job in server.jobs.items()}
        record = server.step()
        back += record.put_back
        for name, job in server.jobs.items():
            repeated += name in before and job.steps - before[name] > 1
        for who, tokens in record.tokens.items():
            found.setdefault(who, []).extend(tokens)
    assert set(back) == {1} and repeated
    for name, prompt in enumerate(prompts):
        assert found[name] == continued(Entry(name, 0.0, tuple(prompt), 20))


def test_tokens_are_drawn_as_without_drafts():
    """A sampler is asked once for each token, in their order, so its numbers are the same."""
    for seed in range(20):
        found = []
        for drafter in (None, Guessing(0, [1, 2, 3]), Guessing(2), Repeats(1)):
            server, own = paged_server(policy("chunked", 8), ALL_PAGES, True, drafter), {}
            inner, random = server.engine.step, np.random.default_rng(seed)
            noise = random.standard_normal((64, VOCAB)).astype(np.float32)
            server.engine.step = lambda tokens, inner=inner, noise=noise: {
                r: 3 * row.astype(np.float32) + noise[tokens[r][1]]
                for r, row in inner(tokens).items()
            }
            server.submit(0, TREE[0][:9], 24, (2,), Sampler(Sampling(0.9, 6), seed))
            drained(server, own)
            found.append(own[0])
        assert found[0] == found[1] == found[2] == found[3]


def test_repeats_follow_the_latest_place_of_the_longest_run():
    drafter = Repeats(2)

    def drafted(text, most=4):
        return drafter.draft({0: (text, most)})[0]

    assert drafted([1, 2, 3]) == []
    assert drafted([1, 2, 3, 1]) == [2, 3, 1]
    assert drafted([1, 2, 3, 1, 2], 2) == [3, 1]
    assert drafted([1, 2, 3, 1, 2, 5, 2]) == [5, 2]
    assert drafted([1, 2, 3, 1, 2, 5, 2, 1, 2], 1) == [5]
    drafter.leave(0)
    assert drafted([7]) == []
