"""The requests of a run as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator

from meshc.serving.simulator import Run

COLUMNS = (
    "request", "arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "tbt_mean_ms", "latency_s",
    "known_tokens",
)  # fmt: skip


def trip_rows(run: Run) -> Iterator[tuple[int | float | str, ...]]:
    """A row of :data:`COLUMNS` for each request, in the order of arrival: seconds from its arrival
    to its first and to its last token, the mean time between tokens, empty for an answer of one,
    and the tokens of its prompt that were in caches."""
    for name, trip in enumerate(run.trips):
        gaps = trip.output_tokens - 1
        between = round(1e3 * (trip.last - trip.first) / gaps, 4) if gaps else ""
        yield (
            name,
            round(trip.arrived, 6),
            trip.prompt_tokens,
            trip.output_tokens,
            round(trip.first - trip.arrived, 6),
            between,
            round(trip.last - trip.arrived, 6),
            trip.known_tokens,
        )
