"""Lengths of prompts and answers, and times of arrival: drawn from laws, or read from a trace.

``arxiv`` has the laws of ``data/lengths.toml``, which are fitted to published moments. ``sharegpt``
has pairs of a prompt and its answer out of a public trace (``data/sharegpt.json``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from meshc.serving.requests import Request
from meshc.serving.simulator import Arrival
from meshc.support.declared_values import declared, toml_of
from meshc.support.diagnostics import fail

Pair = tuple[int, int]
"""Prompt tokens and output tokens of a request."""

WORKLOADS = ("arxiv", "sharegpt")


Prefix = tuple[str, int]
"""What a request begins with: a name, and how many tokens of it."""


@dataclass(frozen=True)
class Trace:
    """Lengths of requests; ``seconds`` are their arrivals and ``prefixes`` what they begin with
    where the trace has them."""

    pairs: tuple[Pair, ...]
    seconds: tuple[float, ...] | None = None
    prefixes: tuple[Prefix, ...] | None = None


@dataclass(frozen=True)
class Common:
    """What all prompts begin with: ``tokens``, or a ``share`` of each."""

    tokens: int = 0
    share: float = 0.0

    def of(self, prompt: int) -> Prefix:
        """The beginning that a prompt of so many tokens has in common with others; an empty name
        for nothing."""
        tokens = min(prompt, self.tokens or int(self.share * prompt))
        return ("all", tokens) if tokens else ("", 0)


NOTHING_IN_COMMON = Common()


@dataclass(frozen=True)
class Lognormal:
    """exp of a normal variable of mean ``mu`` and deviation ``sigma``, rounded, drawn again while
    outside of ``least`` to ``most``."""

    mu: float
    sigma: float
    least: int
    most: int

    def draw(self, count: int, random: np.random.Generator) -> list[int]:
        """``count`` whole numbers."""
        found: list[int] = []
        while len(found) < count:
            values = np.rint(random.lognormal(self.mu, self.sigma, count)).astype(int)
            found += [int(v) for v in values if self.least <= v <= self.most]
        return found[:count]


def drawn_lengths(workload: str, count: int, random: np.random.Generator) -> list[Pair]:
    """``count`` pairs of ``arxiv`` or ``sharegpt``."""
    if workload == "arxiv":
        prompts, answers = _laws()
        return list(zip(prompts.draw(count, random), answers.draw(count, random), strict=True))
    known = _sharegpt()
    return [known[row] for row in _rows(known, count, random)]


def requests_of(
    trace: Trace | str,
    count: int,
    rate: float | None,
    cv: float,
    random: np.random.Generator,
    common: Common = NOTHING_IN_COMMON,
) -> list[Arrival]:
    """``count`` requests of a trace or of a workload by name. With ``rate`` (requests per second)
    they arrive with gaps of a gamma law of that mean rate and coefficient of variation ``cv``
    (1 is a Poisson process); lengths of a trace are then drawn from it. Without, a trace's first
    requests come when it says. Where the trace does not say what prompts begin with, they have
    ``common`` tokens. Errors: ``bad-argument`` when nothing says when they come."""
    if rate is not None:
        pairs: Sequence[Pair]
        rows: Sequence[int] = ()
        if isinstance(trace, str):
            pairs = drawn_lengths(trace, count, random)
        else:
            rows = _rows(trace.pairs, count, random)
            pairs = [trace.pairs[row] for row in rows]
        seconds = arrival_seconds(count, rate, cv, random)
    elif isinstance(trace, Trace) and trace.seconds is not None:
        rows, pairs = range(count), trace.pairs[:count]
        seconds = [at - trace.seconds[0] for at in trace.seconds[:count]]
    else:
        fail("bad-argument", "nothing says when requests come", help="give a rate")
    if isinstance(trace, Trace) and trace.prefixes is not None:
        prefixes = [trace.prefixes[row] for row in rows]
    else:
        prefixes = [common.of(prompt) for prompt, _ in pairs]
    return [
        Arrival(at, Request(name, *pair, *prefix))
        for name, (at, pair, prefix) in enumerate(zip(seconds, pairs, prefixes, strict=True))
    ]


def arrival_seconds(count: int, rate: float, cv: float, random: np.random.Generator) -> list[float]:
    """Times of ``count`` arrivals, of which the first is one gap after the start."""
    shape = 1 / cv**2
    gaps = random.gamma(shape, 1 / (rate * shape), count)
    return [float(at) for at in np.cumsum(gaps)]


def _rows(pairs: Sequence[Pair], count: int, random: np.random.Generator) -> list[int]:
    return [int(i) for i in random.integers(0, len(pairs), count)]


def _text(name: str) -> str:
    return (resources.files("meshc.serving") / "data" / name).read_text(encoding="utf-8")


@cache
def _laws() -> tuple[Lognormal, Lognormal]:
    laws = declared(dict[str, Lognormal], toml_of("meshc.serving", "data/lengths.toml")["arxiv"])
    return laws["prompt"], laws["output"]


@cache
def _sharegpt() -> tuple[Pair, ...]:
    rows = json.loads(_text("sharegpt.json"))["pairs"]
    return tuple((int(prompt), int(answer)) for prompt, answer in rows)
