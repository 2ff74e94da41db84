"""What a run says of its requests: latency, smoothness, fairness, traffic and energy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshc.serving.simulator import Run

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Objective:
    """A service level: the first token within ``ttft_s``, and no gap above ``tbt_ms`` after it."""

    ttft_s: float
    tbt_ms: float


METRICS = (
    "ttft_mean_s",
    "ttft_p50_s",
    "ttft_p95_s",
    "ttft_p99_s",
    "tbt_mean_ms",
    "tbt_p50_ms",
    "tbt_p90_ms",
    "tbt_p95_ms",
    "tbt_p99_ms",
    "tbt_std_ms",
    "latency_mean_s",
    "slo_attainment",
    "expert_load_bytes",
    "expert_load_bytes_per_request",
    "energy_mj_per_token",
    "jain",
    "requests_per_s",
    "output_tokens_per_s",
    "decode_batch_mean",
    "prefill_tokens_mean",
    "prefix_hit_share",
    "evicted_tokens",
    "kv_transfer_mean_s",
    "kv_transfer_bytes",
)
"""Names of what :func:`measured` gives, with their units."""


def measured(run: Run, objective: Objective) -> dict[str, float]:
    """The metrics of ``run`` by name.

    TTFT: from arrival to first token. TBT: between tokens of a request, every gap of every request
    being one value. ``slo_attainment``: share of requests that keep ``objective``. Energy is that
    of the GPUs over prompt and output tokens. ``jain``: Jain's index (sum x)^2 / (n sum x^2) over
    the tokens per second that requests got after their first. ``decode_batch_mean``: requests of a
    decode iteration. ``prefix_hit_share``: share of the tokens of all prompts that were in caches.
    ``kv_transfer_mean_s``: from the first token until keys and values are in the pool that
    continues the request. Shares lie between 0 and 1.
    """
    ttft = np.array([trip.first - trip.arrived for trip in run.trips])
    latency = np.array([trip.last - trip.arrived for trip in run.trips])
    gaps, weights = _gaps(run)
    tokens = sum(trip.prompt_tokens + trip.output_tokens for trip in run.trips)
    written = sum(trip.output_tokens for trip in run.trips)
    rates = np.array([t.steps / (t.last - t.first) for t in run.trips if t.last > t.first])
    mean = float(np.average(gaps, weights=weights)) if len(gaps) else 0.0
    spread = float(np.average((gaps - mean) ** 2, weights=weights)) ** 0.5 if len(gaps) else 0.0
    p50, p90, p95, p99 = _weighted_quantiles(gaps, weights, (0.5, 0.9, 0.95, 0.99))
    first50, first95, first99 = np.quantile(ttft, (0.5, 0.95, 0.99))
    batches = np.array(run.step_requests or [0], dtype=float)
    duration = max(run.seconds - min(trip.arrived for trip in run.trips), 1e-12)
    values = (
        ttft.mean(),
        first50,
        first95,
        first99,
        1e3 * mean,
        1e3 * p50,
        1e3 * p90,
        1e3 * p95,
        1e3 * p99,
        1e3 * spread,
        latency.mean(),
        _attainment(run, ttft, objective),
        run.expert_bytes,
        run.expert_bytes / len(run.trips),
        1e3 * run.joules / tokens,
        rates.sum() ** 2 / (len(rates) * (rates**2).sum()) if len(rates) else 1.0,
        len(run.trips) / duration,
        written / duration,
        batches.mean(),
        np.mean(run.prefill_tokens or [0]),
        sum(t.known_tokens for t in run.trips) / sum(t.prompt_tokens for t in run.trips),
        run.evicted_tokens,
        np.mean([t.moved - t.first for t in run.trips if t.moved is not None] or [0]),
        run.moved_bytes,
    )
    return {name: float(value) for name, value in zip(METRICS, values, strict=True)}


def _gaps(run: Run) -> tuple[Reals, Reals]:
    """Seconds between tokens, and how many times each occurred. All requests of an iteration wait
    for as long as it takes; only the first gap of one that changes pools is its own."""
    weights = np.array(run.step_requests, dtype=float)
    own = [trip for trip in run.trips if trip.first_gap is not None]
    for trip in own:
        weights[trip.first_step] -= 1
    gaps = np.array(run.step_seconds + [trip.first_gap or 0.0 for trip in own])
    return gaps, np.concatenate([weights, np.ones(len(own))])


def _weighted_quantiles(
    values: Reals, weights: Reals, shares: tuple[float, ...]
) -> tuple[float, ...]:
    """The least value below or at which each share of the weight lies."""
    if not len(values):
        return (0.0,) * len(shares)
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    places = np.searchsorted(reached, np.array(shares) * reached[-1])
    return tuple(float(values[order[min(p, len(order) - 1)]]) for p in places)


def _attainment(run: Run, ttft: Reals, objective: Objective) -> float:
    """The share of requests with a first token in time and no gap that is too long."""
    limit = objective.tbt_ms / 1e3
    late = np.concatenate([[0], np.cumsum(np.array(run.step_seconds) > limit)])
    kept = 0
    for trip, first in zip(run.trips, ttft, strict=True):
        begin = trip.first_step + (trip.first_gap is not None)
        steady = late[trip.first_step + trip.steps] == late[begin] if trip.steps else True
        kept += bool(first <= objective.ttft_s and steady and (trip.first_gap or 0.0) <= limit)
    return kept / len(run.trips)
