"""Requests that begin alike, drawn, and what a server that takes and drops them must give."""

import numpy as np
from books import VOCAB, continued
from hypothesis import strategies as st

from meshc.serving.replaying import Entry

TREE = np.random.default_rng(5).integers(0, VOCAB, (3, 40)).tolist()
"""Prompts begin with some of one of these."""
DRAWN = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(1, 30), st.integers(0, 4), st.integers(1, 9),
        st.integers(0, 20),
    ),
    min_size=1,
    max_size=9,
)  # fmt: skip
"""Of each request which of ``TREE`` it begins with, how many tokens of that, how many of its own,
the most that it gets, and the steps of the server behind its arrival."""


def drained(server, found, limit=2000):
    """Let ``server`` serve all that it has; what each gets comes to ``found``."""
    for _ in range(limit):
        record = server.step()
        if record is None:
            assert server.idle
            return
        for who, tokens in record.tokens.items():
            found.setdefault(who, []).extend(tokens)
    raise AssertionError("requests starve")


def check_alone(server, drawn, stop, cancelled, free):
    """Each request gets what it gets alone, those that are ``cancelled`` the first of it; behind
    them ``server`` has so many caches ``free`` and nothing else."""
    entries, found = [], {}
    for name, (tree, shared, own, most, steps) in enumerate(drawn):
        prompt = (*TREE[tree][:shared], *range(own))
        entries.append(Entry(name, 0.0, prompt, most, stop))
        server.submit(name, prompt, most, stop)
        for _ in range(steps):
            record = server.step()
            for who, tokens in record.tokens.items() if record else ():
                found.setdefault(who, []).extend(tokens)
        if name in cancelled:
            server.cancel(name)
    drained(server, found)
    for entry in entries:
        alone = continued(entry)
        if entry.name in cancelled:
            assert alone[: len(found.get(entry.name, []))] == found.get(entry.name, [])
        else:
            assert found[entry.name] == alone
    assert server.free == free and not server.jobs and server.scheduler.held_tokens == 0
