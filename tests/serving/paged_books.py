"""An engine for tests whose tokens lie in pages: what a request has is what its pages hold."""

import numpy as np
from books import CAPACITY, LAYERS, MULTIPLE, REQUESTS, VOCAB, one_hot, successor

from meshc.serving.engine import Server
from meshc.serving.scheduler import Scheduler

PAGE = 2


class PagedBooks:
    """Cells of pages keep a token and the number of layers that it has passed."""

    requests, capacity, most, vocab = REQUESTS, CAPACITY, CAPACITY, VOCAB
    page, multiple = PAGE, MULTIPLE

    def __init__(self, pages):
        self.pages = pages
        self.cells = [[None] * PAGE for _ in range(pages)]
        self.tables = {}
        self.read_tokens = 0
        self.steps = []

    def lay(self, request, pages):
        assert len(set(pages)) == len(pages) and set(pages) <= set(range(self.pages))
        self.tables[request] = list(pages)

    def cell(self, request, position):
        return self.cells[self.tables[request][position // PAGE]], position % PAGE

    def embedded(self, ids, position):
        return np.array([[token, 0] for token in ids])

    def read(self, request, rows, position, layers):
        assert position % MULTIPLE == 0 and len(rows) > 0
        assert (rows[:, 1] == layers.start).all()
        self.held(request, position)
        self.read_tokens += len(rows) if layers.start == 0 else 0
        for at, (token, _) in enumerate(rows.tolist(), position):
            page, place = self.cell(request, at)
            assert layers.start == 0 or page[place] == (token, layers.start)
            page[place] = (token, layers.stop)
        return np.stack([rows[:, 0], np.full(len(rows), layers.stop)], 1)

    def held(self, request, count):
        """The first ``count`` tokens of ``request``, which have passed all layers."""
        cells = [self.cell(request, at) for at in range(count)]
        found = [page[place] for page, place in cells]
        assert all(layers == LAYERS for _, layers in found)
        return [token for token, _ in found]

    def step(self, tokens):
        assert 0 < len(tokens) <= REQUESTS
        written = set()
        self.steps.append(tuple(tokens))
        logits = {}
        for request, (token, position) in tokens.items():
            page, place = self.cell(request, position)
            page[place] = (token, LAYERS)
            written.add((self.tables[request][position // PAGE], place))
            logits[request] = one_hot(successor(self.held(request, position + 1)))
        assert len(written) == len(tokens)
        return logits


class VerifyingBooks(PagedBooks):
    """The same, which verifies drafts: a token is written behind those in front of it."""

    drafts = 3

    def verify(self, tokens):
        assert all(1 <= len(own) <= 1 + self.drafts for own, _ in tokens.values())
        logits = {request: [] for request in tokens}
        for number in range(1 + self.drafts):
            there = {
                r: (own[number], at + number) for r, (own, at) in tokens.items() if own[number:]
            }
            for request, row in (self.step(there) if there else {}).items():
                logits[request].append(row)
        return {request: np.array(rows) for request, rows in logits.items()}


class MixingBooks(PagedBooks):
    """The same, whose steps read tokens of prompts beside those of requests that go on."""

    multiple, tokens = 1, 9

    def __init__(self, pages):
        super().__init__(pages)
        self.mixed = []

    def read(self, request, rows, position, layers):
        raise AssertionError("prompts are read beside requests that go on")

    def mix(self, tokens, asked):
        assert 0 < len(tokens) <= REQUESTS and set(asked) <= tokens.keys()
        self.mixed.append({request: len(own) for request, (own, _) in tokens.items()})
        for request, (_, at) in tokens.items():
            self.held(request, at)  # nothing of this step
        for request, (own, at) in tokens.items():
            for number, token in enumerate(own, at):
                page, place = self.cell(request, number)
                page[place] = (token, LAYERS)
        ends = {request: at + len(own) for request, (own, at) in tokens.items()}
        return {r: one_hot(successor(self.held(r, ends[r]))) for r in asked}

    def mix_chosen(self, tokens, draws):
        raise AssertionError("the host chooses")


def paged_server(chosen, pages, prefixes=True, drafter=None, mixes=False):
    books = PagedBooks if drafter is None else VerifyingBooks
    engine = MixingBooks(pages) if mixes else books(pages)
    scheduler = Scheduler(chosen, (1.0,) * LAYERS, 0, REQUESTS, engine.multiple)
    return Server(engine, scheduler, prefixes, drafter)
