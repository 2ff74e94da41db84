"""Fit the numbers of a step's event model to three recorded steps, and hold out all others.

    python benchmarks/step_fit.py

Three numbers are fitted, to the steps of Llama-2-7B as the command makes them: by how much the
loops over tiles take longer than a multiprocessor's schedulers need to issue their instructions;
``ready_ns``; and
``attention_asking_ns``, which is what more cached tokens take. Times of tiles and tasks are the
counted instructions (``benchmarks/gpu/loop_instructions.py``) times the first. All others are
measured (``benchmarks/gpu/rates.py``).
Prints the numbers, which the device's file has; the error of each step; and how the model orders
what was tried on the GPU while the kernel was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from measuring import table
from recorded_steps import EMITTED, FITTED, FITTED_THEN, HELD_OUT, HELD_OUT_THEN

from meshc.analysis.tasks.shares import share
from meshc.cost.tasks.blocks import Run
from meshc.cost.tasks.phase_times import shared_evenly, time_of_work
from meshc.cost.tasks.stages import PhaseWork
from meshc.cost.tasks.tile_times import TileTimes
from meshc.devices import device
from meshc.driver.reproduction.timed_steps import (
    THEN,
    Recorded,
    kernel_ring,
    predicted,
    predicted_of_made,
    predicted_of_tasks,
    with_numbers,
    work_of_kernel,
)

CLOCK_GHZ, WARPS, SCHEDULERS = 1.98, 8, 4
# What loop_instructions.py printed of the programs that were timed. All warps go through a tile,
# one through 16 of its 32 tokens.
PRODUCT_TILE, PRODUCT_TASK = {8: 86, 16: 117}, 64
ATTENTION_TILE, ATTENTION_TASK = 33 + 2 * 249 / WARPS, 455
STALLS = (1.0, 1.3, 1.6, 1.9, 2.2)
READY = range(2800, 3800, 50)
STALL, READY_NS = 1.3, 3400
"""What was found, and h200.toml has."""

FLYING = ((3, 3353), (4, 3372), (5, 3417), (6, 3448), (11, 3464))
"""Tiles on their way at once, and the step of Llama-2-7B behind 1024 tokens that was recorded of an
earlier form of the kernel, 1.1 % faster than the one of :data:`FITTED_THEN`."""
AHEAD = ((0, 3564), (4, 3876), (16, 5520))
"""Tiles of 16 KiB that were asked for into L2 before the ring had room for them, eleven being on
their way, in an earlier form of the kernel."""
EVEN = (3564, 3784)
"""Whole tasks, and an even division down to single tiles whose sums had to be waited for, in that
earlier form."""


def numbers(stall: float, ready: float) -> dict[str, float | str]:
    """The numbers of a device file for these two."""

    def ns(instructions: float) -> int:
        return round(instructions * WARPS / SCHEDULERS / CLOCK_GHZ * stall)

    return {
        "ready_ns": ready,
        "attention_asking_ns": asking(),
        "product_tile_ns": ",".join(f"{size}:{ns(n)}" for size, n in PRODUCT_TILE.items()),
        "product_task_ns": ns(PRODUCT_TASK),
        "attention_tile_ns": ns(ATTENTION_TILE),
        "attention_task_ns": ns(ATTENTION_TASK),
    }


def asking() -> int:
    """Nanoseconds from one tile of cached tokens to the next: the difference of the two longer
    steps, by the tiles that a block has more in all layers."""
    shorter, longer = FITTED[1:]
    heads, lanes, layers = 32, 128, 32
    blocks = device("h200").cores // heads * heads
    bytes_more = 4 * lanes * heads * layers * (longer.cached - shorter.cached)
    tiles = bytes_more / device("h200").whole("tile_bytes") / blocks
    return round(1000 * (longer.us - shorter.us) / tiles)


def errors(given: Mapping[str, float | str], steps: Sequence[Recorded]) -> list[float]:
    """Predicted over recorded, less 1."""
    own = with_numbers(device("h200"), given)
    return [predicted_of_made(step, own).seconds * 1e6 / step.us - 1 for step in steps]


def mean_square(found: Sequence[float]) -> float:
    """The root of the mean square."""
    return (sum(x * x for x in found) / len(found)) ** 0.5


def best_ready(stall: float) -> tuple[float, int]:
    """The least error of :data:`FITTED` and the ``ready_ns`` that has it: the error has one
    minimum, which is found by thirds."""
    low, high = 0, len(READY) - 1
    known: dict[int, float] = {}

    def at(place: int) -> float:
        if place not in known:
            known[place] = mean_square(errors(numbers(stall, READY[place]), FITTED))
        return known[place]

    while high - low > 2:
        third = (high - low) // 3
        if at(low + third) <= at(high - third):
            high -= third
        else:
            low += third
    place = min(range(low, high + 1), key=at)
    return at(place), READY[place]


def evenly(phase: PhaseWork, times: TileTimes, blocks: int) -> Run:
    """A phase's tiles divided evenly; each block then waits for sums of another one: a signal and
    an answer of memory."""
    whole = shared_evenly(phase, times, blocks)
    tiles = [tile for one in whole.tiles for tile in one]
    memory = times.memory(1)
    wait = memory.signal + memory.shared.latency
    found = []
    for block in range(blocks):
        own = [tiles[n] for n in share(len(tiles), block, blocks)]
        if own:
            own[-1] = own[-1]._replace(computing=own[-1].computing + wait)
        found.append(own)
    return replace(whole, tiles=found)


def divided() -> tuple[float, ...]:
    """Microseconds of the first step with whole tasks, and with all phases divided evenly."""
    step = FITTED_THEN[0]
    times = TileTimes(with_numbers(device("h200"), THEN))
    work, ring = work_of_kernel(step.model, step.cached), kernel_ring(step.model, step.cached, 11)
    return tuple(1e6 * time_of_work(work, times, ring, how).seconds for how in (None, evenly))


def main() -> None:
    """Fit, and print."""
    print("fitted to Llama-2-7B alone; the error is the root of the mean square of its three steps")
    fits = [(*best_ready(stall), stall) for stall in STALLS]
    print(
        table(("longer than issue", "ready_ns", "error"), [(s, r, f"{e:.2%}") for e, r, s in fits])
    )
    _, ready, stall = min(fits)
    chosen = numbers(stall, ready)
    print("\nnumbers:", ", ".join(f'{name} = "{value}"' for name, value in chosen.items()))
    print("\nwith the numbers of h200.toml:")
    made = [
        (
            f"{s.options or 'as made'}, {'held out' if s in HELD_OUT else 'fitted'}",
            s,
            predicted_of_made(s),
        )
        for s in (*FITTED, *HELD_OUT)
    ]
    kernel = [("persistent, fitted then", s, predicted(s)) for s in FITTED_THEN]
    kernel += [("persistent, held out then", s, predicted(s)) for s in HELD_OUT_THEN]
    tasks = [(f"tasks{{{s.options}}}, held out", s, predicted_of_tasks(s)) for s in EMITTED]
    rows = [
        (
            s.model,
            s.cached,
            s.batch,
            what,
            round(s.us),
            round(1e6 * found.seconds),
            f"{1e6 * found.seconds / s.us - 1:+.1%}",
        )
        for what, s, found in (*made, *kernel, *tasks)
    ]
    head = ("model", "cached", "batch", "program", "recorded us", "predicted us", "error")
    print(table(head, rows))
    first = FITTED_THEN[0]
    print("\ntiles on their way: recorded, predicted us")
    for flying, us in FLYING:
        print(f"  {flying}: {us}, {predicted(first, flying=flying).seconds * 1e6:.0f}")
    print("tiles asked for into L2 ahead: recorded, predicted us")
    for ahead, us in AHEAD:
        print(f"  {ahead}: {us}, {predicted(first, flying=11, ahead=ahead).seconds * 1e6:.0f}")
    whole, even = divided()
    print(f"whole tasks, an even division: recorded {EVEN}, predicted {whole:.0f}, {even:.0f} us")


if __name__ == "__main__":
    main()
