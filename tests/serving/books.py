"""An engine for tests that keeps books, and what requests get from it alone."""

import numpy as np

from meshc.serving.engine import Server
from meshc.serving.scheduler import Scheduler

LAYERS, REQUESTS, CAPACITY, VOCAB, MULTIPLE = 5, 3, 64, 11, 4


class Books:
    """An engine whose layers write down the tokens that pass them. A row is a token and the number
    of layers that it has passed; a token's successor depends on all tokens before it."""

    requests, capacity, most, vocab = REQUESTS, CAPACITY, CAPACITY, VOCAB

    def __init__(self):
        self.layers = [[[] for _ in range(LAYERS)] for _ in range(REQUESTS)]
        self.steps = []

    def begin(self, request, known):
        for cache in self.layers[request]:
            del cache[known:]

    def embedded(self, ids, position):
        return np.array([[token, 0] for token in ids])

    def read(self, request, rows, position, layers):
        assert position % MULTIPLE == 0 and len(rows) > 0
        assert (rows[:, 1] == layers.start).all()
        for layer in layers:
            cache = self.layers[request][layer]
            assert len(cache) == position
            cache += rows[:, 0].tolist()
        return np.stack([rows[:, 0], np.full(len(rows), layers.stop)], 1)

    def step(self, tokens):
        assert 0 < len(tokens) <= REQUESTS
        self.steps.append(tuple(tokens))
        logits = {}
        for request, (token, position) in tokens.items():
            for cache in self.layers[request]:
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


def server_of(chosen):
    scheduler = Scheduler(chosen, (1.0,) * LAYERS, REQUESTS * (CAPACITY + 1), REQUESTS, MULTIPLE)
    return Server(Books(), scheduler)
