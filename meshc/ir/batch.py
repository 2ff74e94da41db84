"""Batches of requests: what all levels agree on about the dim ``B``.

A step of decoding works on all requests at once: values have a dim ``B``, and of the run-time
scalar ``pos`` a run is given one for each request (or one for all of them). A prompt is read by
itself, since prompts differ in length: a phase that declares the run-time scalar ``request`` keeps
every state once for each of its values, and a run reads and writes the one it names.
"""

from __future__ import annotations

from meshc.ir.module import Module

BATCH = "B"
POSITION = "pos"
REQUEST = "request"


def batch_of(module: Module) -> int:
    """Requests that one run of ``module`` works on."""
    return module.dims.get(BATCH, 1)


def requests_of(module: Module) -> int:
    """Requests whose state ``module`` keeps."""
    _, last = module.scalars.get(REQUEST, (0, batch_of(module) - 1))
    return last + 1
