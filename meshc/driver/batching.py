"""What a step of decoding reads: a token of each of some requests, and drafts behind it."""

from __future__ import annotations

from meshc.ir.batch import BATCH, POSITION, REQUEST, ROW, batch_of
from meshc.ir.core import tensor_type
from meshc.ir.module import Module
from meshc.support.diagnostics import fail


def give_requests(module: Module, asked: int, apart: bool) -> None:
    """Let a step of decoding work on as many requests as are ``asked`` for, or as the model says;
    prompts are read one at a time, each into the caches of its request. Where programs are kept
    ``apart``, one at a time on the cores, the host puts caches of prompts side by side, and a step
    is that of one request, of which the passes make one of all. Fails with ``unsupported-batch``
    for a model that knows no requests."""
    batch = asked if asked > 1 else batch_of(module)
    if batch == 1:
        return
    if not any(BATCH in tensor_type(p.value).dims for p in module.function.params):
        fail(
            "unsupported-batch",
            f"'{module.name}' takes no dim {BATCH}, so there is nothing to batch",
            help=f"give its inputs the dim {BATCH}, such as main(tokens[{BATCH}, L])",
        )
    reads = module.option("phase", "") == "prefill"
    module.dims[BATCH] = 1 if reads or apart else batch
    if reads != apart:
        module.scalars[REQUEST] = (0, batch - 1)


def give_drafts(module: Module, drafts: int) -> None:
    """Let a step of decoding read so many drafts behind the next token of each request. Raises
    ``bad-argument`` for what is no such step, and for caches that have no places for them."""
    words = f"--drafts is {drafts}, but"
    if module.row_dim != ROW or module.dims[ROW] != 1 or POSITION not in module.scalars:
        fail("bad-argument", f"{words} '{module.name}' is no step that reads a token L of requests")
    first, last = module.scalars[POSITION]
    if last - drafts < first:
        words = f"{words} caches of {module.capacity} tokens have no room behind them"
        fail("bad-argument", words, help="compile it with a larger --seq")
    module.dims[ROW] = 1 + drafts
    module.scalars[POSITION] = first, last - drafts
