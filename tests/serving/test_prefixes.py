"""What prompts begin with alike is read once, and every request gets what it gets alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from books import CAPACITY, LAYERS, MULTIPLE, REQUESTS, VOCAB, Books, continued
from drawn_requests import DRAWN, TREE, check_alone
from hypothesis import given
from hypothesis import strategies as st
from served import Served
from test_engine import CHOICES

from meshc.driver import CompileRequest, load_any
from meshc.driver.serving import ServeRequest, opened_service
from meshc.serving.engine import Server
from meshc.serving.policies import policy
from meshc.serving.replaying import Entry, replayed
from meshc.serving.scheduler import Scheduler
from meshc.support.diagnostics import Diagnostics

TINY = Path(__file__).parents[1] / "data"
POLICIES = pytest.mark.parametrize("chosen", CHOICES, ids=lambda p: f"{p.name}-{p.chunk}")
"""What prompts begin with; one goes on as another one's answer would."""


class CountingBooks(Books):
    """Books that know how many tokens their first layer has read."""

    def __init__(self):
        super().__init__()
        self.read_tokens = 0

    def read(self, request, rows, position, layers):
        self.read_tokens += len(rows) if layers.start == 0 else 0
        return super().read(request, rows, position, layers)


def server_of(chosen, prefixes=True):
    scheduler = Scheduler(chosen, (1.0,) * LAYERS, REQUESTS * (CAPACITY + 1), REQUESTS, MULTIPLE)
    return Server(CountingBooks(), scheduler, prefixes)


@POLICIES
@given(drawn=DRAWN, stop=st.sampled_from([(), (3,)]), cancelled=st.sets(st.integers(0, 8)))
def test_each_request_gets_what_it_gets_alone(chosen, drawn, stop, cancelled):
    """The engine asserts that tokens come to caches that hold all before them."""
    check_alone(server_of(chosen), drawn, stop, cancelled, REQUESTS)


def tokens_read(prompts, prefixes=True, most=4):
    """How many tokens each of ``prompts``, one behind the other, is read of."""
    server, found = server_of(policy("chunked", 8), prefixes), []
    for name, prompt in enumerate(prompts):
        before = server.engine.read_tokens
        server.submit(name, prompt, most)
        while not server.idle:
            server.step()
        found.append(server.engine.read_tokens - before)
    return found


def test_what_was_read_is_not_read_again():
    prompt = TREE[0][:22]
    longer = [*prompt, *continued(Entry(0, 0.0, tuple(prompt), 4, ())), 1, 2]
    other = [*prompt[:13], *((token + 1) % VOCAB for token in prompt[13:])]
    # All but the last token of a prompt are read, from multiples of four tokens on.
    assert tokens_read([prompt, prompt, longer, other], False) == [21, 21, 27, 21]
    assert tokens_read([prompt, prompt, longer, other]) == [21, 1, 27 - 24, 21 - 12]


def test_caches_of_another_prompt_that_is_longer_are_taken_and_the_rest_forgotten():
    assert tokens_read([TREE[0][:30], TREE[0][:17], TREE[0][:30]]) == [29, 4, 13]


def test_caches_that_share_most_are_taken():
    prompts = [TREE[0][:20], TREE[1][:20], TREE[2][:20], TREE[1][:20], TREE[0][:20], TREE[2][:20]]
    assert tokens_read(prompts) == [19, 19, 19, 3, 3, 3]


def test_caches_that_were_not_used_for_longest_are_taken_by_others():
    new = [5] * 12
    prompts = [TREE[0][:20], TREE[1][:20], TREE[2][:20], new, TREE[1][:20], TREE[0][:20]]
    assert tokens_read(prompts) == [19, 19, 19, 11, 3, 19]


def test_a_request_whose_values_are_no_numbers_leaves_nothing():
    server = server_of(policy("chunked", 8))

    def fails(logits):
        from meshc.support.diagnostics import fail

        fail("run-refused", "no numbers")

    server.submit(0, TREE[0][:20], 4, choose=fails)
    while not server.idle:
        server.step()
    before = server.engine.read_tokens
    server.submit(1, TREE[0][:20], 4)
    while not server.idle:
        server.step()
    assert server.engine.read_tokens - before == 19


@pytest.mark.models
@pytest.mark.parametrize(
    ("name", "chosen", "kv"),
    [
        ("tiny/llama-3h1", ServeRequest("chunked", 8, prefixes=True), "auto"),
        ("tiny_families/gemma2-6h2-window", ServeRequest("chunked", 8, prefixes=True), "cyclic"),
        ("tiny_experts/mixtral-5x2", ServeRequest("layered", groups="2", prefixes=True), "auto"),
        ("tiny/llama-3h1", ServeRequest("chunked", 8, prefixes=True), "shift"),
    ],
)
def test_a_program_gives_the_tokens_that_it_gives_without(name, chosen, kv):
    compiling = CompileRequest(mesh="2x3", seq=64, batch=3, dtype="f32", kv=kv)
    loaded = load_any(str(TINY / name), Diagnostics())
    service = opened_service(loaded, compiling, chosen, Diagnostics())
    other = opened_service(
        loaded, replace(compiling, mesh="2x2"), replace(chosen, prefixes=False), Diagnostics()
    )
    assert service.prefixes == (kv != "shift")
    random = np.random.default_rng(1)
    stem = random.integers(3, service.engine.vocab, 40).tolist()
    entries = []
    for number in range(9):
        own = random.integers(3, service.engine.vocab, 3).tolist()
        prompt = (*stem[: int(random.integers(5, 40))], *own)
        entries.append(Entry(number, 2.0 * number, prompt, 8, ()))
    known = []
    begin = service.engine.begin
    service.engine.begin = lambda place, tokens: (known.append(tokens), begin(place, tokens))
    found = replayed(service.server(), entries, 1.0)
    alone = [replayed(other.server(), [entry], 1.0) for entry in entries]
    assert found == {name: tokens for one in alone for name, tokens in one.items()}
    assert any(known) == service.prefixes


@pytest.mark.serve
@pytest.mark.parametrize("prefixes", [True, False])
def test_usage_says_how_many_tokens_of_prompts_were_cached(prefixes):
    prompt, other = TREE[0][:20], [*TREE[0][:12], *TREE[1][:5]]
    with Served(None, server=server_of(policy("chunked", 8), prefixes)) as found:
        client, cached = found.client(), []
        for asked in (prompt, prompt, other):
            made = client.completions.create(
                model="books", prompt=asked, temperature=0, max_tokens=2
            )
            cached.append(made.usage.prompt_tokens_details.cached_tokens)
    assert cached == [0, *(n // MULTIPLE * MULTIPLE * prefixes for n in (18, 12))]
