"""Batches of requests: what all levels agree on about the dim ``B``.

A step of decoding works on all requests at once: values have a dim ``B``, and of the run-time
scalar ``pos`` a run is given one for each request (or one for all of them). A prompt is read by
itself, since prompts differ in length: a phase that declares the run-time scalar ``request`` keeps
every state once for each of its values, and a run reads and writes the one it names. A program of
the tile level may also let requests go through it one behind another (``pipeline-requests``).
"""

from __future__ import annotations

from meshc.ir.affine import Expr
from meshc.ir.module import Module
from meshc.ir.ops.batches import TokenCaches
from meshc.ir.ops.tile import For
from meshc.ir.values import Value
from meshc.ir.views import Point

BATCH = "B"
ROW = "L"
"""The dim of the tokens that are read of a request."""
POSITION = "pos"
REQUEST = "request"
LENGTH = "len"
"""How many tokens of a prompt a run reads, the first of them at ``pos``."""
OWNER = "owner"
"""The request that each token of B belongs to in a batch of tokens (``batch-tokens``), beside its
position. Tokens of one request stand in the order of their positions."""
AHEAD = "ahead"
"""How many tokens of its owner a run reads in front of a token, of tasks of a batch of tokens.
These stand one behind the other in the batch and in their request, and ``pos`` is the position
of the first one, which a run is told for each token."""


def batch_of(module: Module) -> int:
    """Requests that one run of ``module`` works on."""
    return module.dims.get(BATCH, 1)


def tokens_of_request(module: Module) -> int:
    """Tokens that a decode step reads of each request, one behind the other: its next one, and
    drafts that it verifies. ``pos`` is the position of the first one, which a run of tasks is given
    for each token."""
    steps = POSITION in module.scalars and LENGTH not in module.scalars
    return module.dims.get(ROW, 1) if steps else 1


def rows_of(module: Module) -> int:
    """Tokens of all requests that a step reads, or those of a chunk of a prompt."""
    own = module.dims[ROW] if LENGTH in module.scalars else tokens_of_request(module)
    return batch_of(module) * own


def most_of_request(module: Module) -> int:
    """Tokens that a step of tasks reads of a request at the most."""
    return rows_of(module) if OWNER in module.scalars else tokens_of_request(module)


def request_dim(module: Module) -> str:
    """The dim of caches that counts their requests."""
    taken = (op for op in module.walk() if isinstance(op, TokenCaches))
    return next((op.requests for op in taken), BATCH)


def requests_of(module: Module) -> int:
    """Requests whose state ``module`` keeps."""
    _, last = module.scalars.get(REQUEST, (0, batch_of(module) - 1))
    return last + 1


def request_axis(module: Module, state: Value) -> int | None:
    """Which dim of the buffer ``state`` counts requests that go through the program one behind
    another: the one at which a loop, each round of which has a position of its own, takes one. None
    where there is no such loop."""
    for loop in (op for op in module.walk() if isinstance(op, For) and POSITION in op.each):
        own = Point(Expr.var(loop.var))
        for view in (view for op in loop.regions[0].walk() for view in op.views()):
            if view.buffer is state and own in view.indices:
                return view.indices.index(own)
    return None
