"""Runs modules of any level on the same random inputs: what ``--check`` does around each pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from meshc.interp.bounds import Comparison, compare, reduction_length
from meshc.interp.fifos import Timing
from meshc.interp.inputs import RUN_TIME_ROWS, RandomArrays, Scalars
from meshc.interp.named import Array
from meshc.interp.sessions import Arrays, Session, state_results
from meshc.interp.state import State
from meshc.interp.together import RankSession
from meshc.interp.token_batches import in_words_of, of_present
from meshc.ir.batch import OWNER, POSITION, REQUEST, batch_of, requests_of
from meshc.ir.core import tensor_type
from meshc.ir.module import MACHINE_LEVELS, Module
from meshc.ir.ops import graph
from meshc.support.diagnostics import fail

_MOST_ROWS = 33

__all__ = [
    "Comparison",
    "Outcome",
    "Session",
    "Trace",
    "check_outcomes",
    "check_same",
    "compare",
    "random_trace",
    "reduction_length",
    "run_any",
    "run_from",
    "run_trace",
    "state_results",
]


@dataclass(frozen=True)
class Trace:
    """Inputs of several steps of one phase: what stays, and arrays and scalars of each step.

    All arrays are the model's own tensors by name. A trace made for a graph-level module runs on
    what it is lowered to, too: the rows that the host looks up in embedding tables are there.
    """

    constant: Arrays
    steps: tuple[tuple[Arrays, Scalars], ...]


@dataclass(frozen=True)
class Outcome:
    """What a run of a trace gave: the results of all steps and the state behind the last one."""

    results: list[Array]
    state: State


def run_any(module: Module, inputs: Arrays, scalars: Scalars) -> list[Array]:
    """One step from an empty state: the results that are no state, in order.

    Graph and mesh level are computed in float64, the tile level as its buffers say.
    """
    return Session(module, inputs).step(inputs, scalars)


def run_trace(
    module: Module, trace: Trace, transfers: Timing = "early", schedule: str = "round-robin"
) -> list[Array]:
    """The results of all steps, one after the other, state carried from step to step; those of the
    graph of a rank on all ranks."""
    if module.ranks is not None:
        return _results(RankSession(module, trace.constant), module, trace)
    return _results(Session(module, trace.constant, transfers, schedule), module, trace)


def run_from(module: Module, trace: Trace, start: State | None = None) -> Outcome:
    """The results of all steps and the state after them. The first step begins with ``start``, the
    state that another phase has left at the same level, or with an empty state."""
    session = Session(module, trace.constant)
    if start is not None:
        session.adopt(start)
    return Outcome(_results(session, module, trace), session.left())


def _results(session: Session | RankSession, module: Module, trace: Trace) -> list[Array]:
    """The results of all steps of ``trace``, of the tokens that are there."""
    return [
        of_present(array, scalars)
        for inputs, scalars in trace.steps
        for array in session.step(inputs, in_words_of(module, scalars))
    ]


def random_trace(
    module: Module, seed: int, steps: int = 3, first: int | Sequence[int] = 0
) -> Trace:
    """Random inputs: ``steps`` steps with ``pos`` counting up from ``first``, which may be one for
    each request of a batch; or one step, for each request where prompts are read one at a time.
    A step that is told its request is taken for each.

    Other run-time scalars take the middle of their range, that of rows of a prompt at most a few
    tens: more would only repeat what the first ones show. Prompts differ in length.
    """
    scalars = {name: (low + high + 1) // 2 for name, (low, high) in module.scalars.items()}
    if RUN_TIME_ROWS in scalars:
        scalars[RUN_TIME_ROWS] = min(scalars[RUN_TIME_ROWS], _MOST_ROWS)
    constant = RandomArrays(module, seed, scalars, ("weight", "state"))
    made = []
    runs = [
        {**at, **layers}
        for at in _runs(module, scalars, steps, first)
        for layers in _halves(module)
    ]
    for number, at in enumerate(runs):
        given = dict(RandomArrays(module, seed + number, at, ("in",)))
        made.append(({**given, **_embedded(module, given, constant, at)}, at))
    return Trace(constant, tuple(made))


def _runs(
    module: Module, scalars: Mapping[str, int], steps: int, first: int | Sequence[int]
) -> Iterator[dict[str, int | Sequence[int]]]:
    """The scalars of each run. A prompt that may be read in chunks is read in two."""
    if POSITION in scalars and RUN_TIME_ROWS in scalars:
        step = module.multiples.get(POSITION, 1)
        for request in range(requests_of(module)):
            rows = max(1, scalars[RUN_TIME_ROWS] - request)
            first_rows = rows // 2 // step * step
            own = {REQUEST: request} if REQUEST in scalars else {}
            for begin, end in ((0, first_rows), (first_rows, rows)):
                if end > begin:
                    yield {**scalars, **own, POSITION: begin, RUN_TIME_ROWS: end - begin}
    elif OWNER in scalars:
        yield from ({**scalars, **at} for at in _mixed(module, steps))
    elif POSITION in scalars and REQUEST in scalars:
        for at in _steps(module, steps, first):
            yield from ({**scalars, POSITION: at, REQUEST: n} for n in range(requests_of(module)))
    elif REQUEST in scalars:
        least, _ = module.scalars.get(RUN_TIME_ROWS, (0, 0))
        for request in range(requests_of(module)):
            rows = max(least, scalars.get(RUN_TIME_ROWS, 0) - request)
            own = {RUN_TIME_ROWS: rows} if RUN_TIME_ROWS in scalars else {}
            yield {**scalars, REQUEST: request, **own}
    elif POSITION in scalars:
        for at in _steps(module, steps, first):
            yield {**scalars, POSITION: at}
    else:
        yield dict(scalars)


def _mixed(module: Module, steps: int) -> Iterator[dict[str, int | Sequence[int]]]:
    """Positions and owners of batches of tokens: in each step another request is read a chunk of
    its prompt, others decode a token each, and the last tokens are absent."""
    known = [0] * (module.scalars[OWNER][1] + 1)
    tokens, last = batch_of(module), module.scalars[POSITION][1]
    for step in range(steps):
        reading = step % len(known)
        chunk = [reading] * max(1, tokens // 2)
        others = [owner for owner in range(len(known)) if owner != reading and known[owner]]
        owners = [*others[: tokens - len(chunk)][: step % 2], *chunk]
        owners += [o for o in others if o not in owners][: tokens - len(owners)]
        positions = []
        for owner in owners:
            positions.append(known[owner] if known[owner] <= last else -1)
            known[owner] += 1
        absent = tokens - len(owners)
        yield {OWNER: (*owners, *[0] * absent), POSITION: (*positions, *[-1] * absent)}


def _steps(module: Module, steps: int, first: int | Sequence[int]) -> Iterator[int | Sequence[int]]:
    """The position of each step, or those of all requests of a batch."""
    low, high = module.scalars[POSITION]
    starts = [min(max(low, n), high) for n in ([first] if isinstance(first, int) else first)]
    for step in range(min(steps, high + 1 - max(starts))):
        each = tuple(start + step for start in starts)
        yield each if len(each) > 1 else each[0]


def _halves(module: Module) -> list[dict[str, int]]:
    """The scalars of loops over layers of which a run does some: the first half, then the rest."""
    first: dict[str, int] = {}
    second: dict[str, int] = {}
    for op in module.walk():
        if isinstance(op, graph.Repeat) and op.rounds:
            layers = module.dims[op.dim]
            half = (layers + 1) // 2
            first |= dict(zip(op.rounds, (0, half), strict=True))
            second |= dict(zip(op.rounds, (min(half, layers - 1), layers - half), strict=True))
    return [first, second] if first else [{}]


def _embedded(
    module: Module, given: Arrays, constant: Arrays, at: Mapping[str, int | Sequence[int]]
) -> dict[str, Array]:
    """By the name of its result, what each embedding of token ids gives in a step at ``at``."""
    found = {}
    for function in module.functions:
        names = {p.value: p.value.name for p in function.params}
        for op in function.body.ops:
            taken = [names[v] for v in op.tensors() if v in names]
            if isinstance(op, graph.Embed) and len(taken) == len(op.operands):
                ids, table, *learned = (given[n] if n in given else constant[n] for n in taken)
                axis = tensor_type(op.operands[1]).dims.index(op.dim)
                found[op.result.name] = np.moveaxis(table, axis, 0)[ids]
                place = np.asarray(at.get(POSITION, 0))[..., None] + np.arange(ids.shape[-1])
                for rows in learned:
                    found[op.result.name] = found[op.result.name] + rows[np.maximum(place, 0)]
    return found


def check_same(
    before: Module,
    after: Module,
    seed: int = 0,
    steps: int = 3,
    reference: Sequence[Array] | None = None,
) -> Comparison:
    """Run both modules on a random trace of ``before`` and compare within the rounding bound.

    ``reference`` are results of ``before`` on that very trace, when they are known. Raises
    ``interp-mismatch`` when they differ by more.
    """
    trace = random_trace(before, seed, steps)
    wanted = run_trace(before, trace) if reference is None else reference
    return check_outcomes(before, after, wanted, run_trace(after, trace))


def check_outcomes(
    before: Module,
    after: Module,
    wanted: Sequence[Array],
    got: Sequence[Array],
    earlier: Module | None = None,
) -> Comparison:
    """Compare the results of two modules on one trace within the rounding bound; ``earlier`` is the
    phase that left the state they began with, if any. Raises ``interp-mismatch``."""
    precision = "f64"
    if {before.level, after.level} & {*MACHINE_LEVELS}:
        precision = _coarsest(before, after)
    length = sum(reduction_length(m, precision) for m in (before, earlier) if m is not None)
    tags = _tags(before, after) if precision == "f32" else 0
    result = compare(wanted, got, precision, length, tags)
    if not result.agrees:
        _mismatch(before, after, result)
    return result


def _coarsest(*modules: Module) -> str:
    """The least precise element type of core memory."""
    order = ("e4m3", "bf16", "f16", "f32")
    buffers = [b for m in modules if m.level in MACHINE_LEVELS for b in m.buffers]
    used = {str(b.type.dtype) for b in buffers} | {str(b.coded) for b in buffers}
    return next((name for name in order if name in used), "f32")


def _tags(*modules: Module) -> int:
    """The most bits that words of f32 have less, for their tags."""
    return max((b.tags or 0 for module in modules for b in module.buffers), default=0)


def _mismatch(before: Module, after: Module, result: Comparison) -> NoReturn:
    fail(
        "interp-mismatch",
        f"'{after.name}' at {after.level} level does not compute what it did at {before.level} "
        f"level: {result.place} is off by {result.max_error:.3g}, rounding explains "
        f"{result.bound:.3g}",
    )
