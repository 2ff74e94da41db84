"""Runs the graph of a rank on all ranks at once, from the arrays of the whole model."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import BrokenBarrierError

import numpy as np
from numpy.typing import DTypeLike

from meshc.interp.graph import run_graph
from meshc.interp.inputs import Scalars, wanted_inputs
from meshc.interp.named import Array
from meshc.interp.ranks import Meeting, Place
from meshc.interp.sessions import state_results
from meshc.ir.module import Module
from meshc.ir.types import TensorType
from meshc.support.diagnostics import fail


def run_ranks(
    module: Module,
    inputs: Mapping[str, Array],
    scalars: Scalars | None = None,
    dtype: DTypeLike = np.float64,
) -> list[list[Array]]:
    """The results of each rank, in the order of ranks.

    ``inputs`` gives the arrays of the whole model by name, of which each rank takes its parts; a
    state that is left out starts as zeros. Raises what :func:`meshc.interp.graph.run_graph` does.
    """
    count = 1 if module.ranks is None else module.ranks.count
    given = [rank_inputs(module, inputs, rank) for rank in range(count)]
    return run_parts(module, given, scalars, dtype)


def run_parts(
    module: Module,
    given: list[dict[str, Array]],
    scalars: Scalars | None = None,
    dtype: DTypeLike = np.float64,
) -> list[list[Array]]:
    """As :func:`run_ranks`, with the arrays that each rank has itself: a step goes on so from the
    states that the one before has left."""
    meeting = Meeting(len(given))

    def run(rank: int) -> list[Array]:
        try:
            return run_graph(module, given[rank], scalars, dtype, Place(rank, meeting))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(len(given)) as pool:
        runs = [pool.submit(run, rank) for rank in range(len(given))]
    failures = [error for error in (r.exception() for r in runs) if error is not None]
    for error in sorted(failures, key=lambda error: isinstance(error, BrokenBarrierError)):
        raise error
    return [r.result() for r in runs]


class RankSession:
    """All ranks of a graph with the states that they keep from step to step, from the arrays of the
    whole model. Raises ``interp-ranks`` for a module of another level."""

    def __init__(self, module: Module, constant: Mapping[str, Array]) -> None:
        if module.level != "graph":
            words = f"ranks of graphs are run beside each other, and '{module.name}' is no graph"
            fail("interp-ranks", words)
        self._module = module
        self._states = state_results(module.function)
        count = 1 if module.ranks is None else module.ranks.count
        self._held = [rank_inputs(module, constant, rank) for rank in range(count)]

    def step(self, inputs: Mapping[str, Array], scalars: Scalars) -> list[Array]:
        """The results that are no state, in order, which all ranks have alike. Raises
        ``interp-ranks`` where they do not."""
        given = [
            {**held, **rank_inputs(self._module, inputs, rank)}
            for rank, held in enumerate(self._held)
        ]
        results = run_parts(self._module, given, scalars)
        for held, own in zip(self._held, results, strict=True):
            held |= {name: own[index] for name, index in self._states.items()}
        each = [[r for i, r in enumerate(own) if i not in self._states.values()] for own in results]
        for rank, own in enumerate(each):
            if not all(map(np.array_equal, own, each[0], [True] * len(own))):
                fail("interp-ranks", f"the results of rank {rank} are not those of rank 0")
        return each[0]


def rank_inputs(module: Module, inputs: Mapping[str, Array], rank: int) -> dict[str, Array]:
    """What ``rank`` has of the arrays of the whole model that ``module`` takes."""
    return {
        want.name: rank_part(module, want.type, inputs[want.name], rank)
        for want in wanted_inputs(module)
        if want.name in inputs
    }


def rank_part(module: Module, kind: TensorType, array: Array, rank: int) -> Array:
    """What ``rank`` has of ``array``, which has the whole dims of those of ``kind`` that are parts;
    padding is zero."""
    for axis, dim in enumerate(kind.dims):
        part = module.ranks.part_of(dim) if module.ranks else None
        if part is not None:
            places = part.elements(rank, module.dims)
            taken = np.take(array, [place or 0 for place in places], axis)
            empty = [i for i, place in enumerate(places) if place is None]
            if empty:
                taken[(slice(None),) * axis + (empty,)] = 0
            array = taken
    return array
