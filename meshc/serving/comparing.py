"""Runs of one setting over seeds as means and bands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshc.cost.nodes.iterations import NodeIterations
from meshc.cost.served_models import ServedModel
from meshc.cost.serving_costs import ServingCosts
from meshc.cost.serving_iterations import IterationCost
from meshc.devices import Device
from meshc.serving.lengths import NOTHING_IN_COMMON, Common, Trace, requests_of
from meshc.serving.metrics import METRICS, Objective, measured
from meshc.serving.policies import Policy
from meshc.serving.scheduler import Pool, Scheduler
from meshc.serving.simulator import Arrival, Run, Simulator
from meshc.support.diagnostics import fail
from meshc.support.workers import IN_TURN, Watch, Workers, unwatched


@dataclass(frozen=True)
class Load:
    """What comes: ``requests`` of a trace or a workload by name, at ``rate`` per second with gaps
    of variation ``cv``; without a rate, when the trace says. All prompts have a ``common``
    beginning where the trace does not say what they begin with."""

    workload: Trace | str
    rate: float | None
    requests: int
    cv: float = 1.0
    common: Common = NOTHING_IN_COMMON

    @property
    def prefixes(self) -> bool:
        """Whether some requests begin as others do."""
        traced = isinstance(self.workload, Trace) and self.workload.prefixes is not None
        return traced or self.common != NOTHING_IN_COMMON

    @property
    def replaces_arrivals(self) -> bool:
        """Whether arrivals are drawn though the trace says them."""
        traced = isinstance(self.workload, Trace) and self.workload.seconds is not None
        return traced and self.rate is not None

    @property
    def mean_rate(self) -> float | None:
        """Requests per second, of a trace that says its arrivals those between the first and the
        last one; None where all come at the same time."""
        if self.rate is not None:
            return self.rate
        assert isinstance(self.workload, Trace) and self.workload.seconds is not None
        seconds = self.workload.seconds[: self.requests]
        length = seconds[-1] - seconds[0]
        return (len(seconds) - 1) / length if length > 0 else None

    def arrivals(self, seed: int) -> list[Arrival]:
        """What comes in the run of ``seed``. Errors: those of :func:`requests_of`."""
        random = np.random.default_rng(seed)
        return requests_of(self.workload, self.requests, self.rate, self.cv, random, self.common)


@dataclass(frozen=True)
class Collectives:
    """How GPUs of a node add up partial results: a policy of :mod:`meshc.cost.nodes.overlap`, and
    whether the switch adds."""

    policy: str
    in_switch: bool = True


@dataclass(frozen=True)
class Setting:
    """A server (model, device, GPUs, policy), what comes to it and what is asked of it.
    ``collectives``: iterations are costed kernel by kernel; else by what is fitted to published
    servers. Where prompts have GPUs of their own these are ``reading_gpus``, and ``streamed`` says
    that keys and values leave them while a prompt is read."""

    model: ServedModel
    device: Device
    gpus: int
    policy: Policy
    load: Load
    objective: Objective
    collectives: Collectives | None = None
    reading_gpus: int = 0
    streamed: bool = False

    def arrivals(self, seed: int) -> list[Arrival]:
        """What comes in the run of ``seed``. Errors: those of :meth:`Load.arrivals`;
        ``request-too-large`` for a request of more tokens than the model has learned positions."""
        found, model = self.load.arrivals(seed), self.model
        if model.learned:
            for name in self.longer(found)[:1]:
                fail(
                    "request-too-large",
                    f"request {name} may come to hold {found[name].request.tokens} tokens, but "
                    f"'{model.name}' has {model.positions} learned positions",
                    help="a trace of shorter requests: --trace FILE.csv",
                )
        return found

    def longer(self, arrivals: Sequence[Arrival]) -> list[int]:
        """The names of those with more tokens than the model has positions."""
        most = self.model.positions
        requests = (one.request for one in arrivals)
        return [one.name for one in requests if most is not None and one.tokens > most]


@dataclass(frozen=True)
class Band:
    """A metric over seeds: its mean, and the quantiles of 5 % and 95 %."""

    mean: float
    low: float
    high: float


def iteration_costs(
    model: ServedModel, device: Device, gpus: int, collectives: Collectives | None = None
) -> ServingCosts:
    """Costs of iterations on a pool of ``gpus``. Errors: those of the costs."""
    if collectives is None:
        return IterationCost(model, device, gpus)
    return NodeIterations(model, device, gpus, collectives.policy, collectives.in_switch)


def costs_of(setting: Setting) -> dict[Pool, ServingCosts]:
    """The costs of each pool: two where prompts have GPUs of their own.

    Errors: those of :func:`iteration_costs`; ``does-not-serve``.
    """
    model, device, gpus = setting.model, setting.device, setting.gpus
    if setting.policy.disaggregated:
        reading = setting.reading_gpus
        pools: dict[Pool, int] = {"prefill": reading, "decode": gpus - reading}
        found = {
            pool: iteration_costs(model, device, count, setting.collectives)
            for pool, count in pools.items()
        }
    else:
        found = {"all": iteration_costs(model, device, gpus, setting.collectives)}
    for cost in found.values():
        if cost.kv_tokens < 1:
            weights = model.bytes / 1e9
            fail(
                "does-not-serve",
                f"'{model.name}' has {weights:.1f} GB of weights, which leave no memory of "
                f"{cost.gpus} GPUs of '{device.name}' for keys and values",
            )
    return found


def simulated(setting: Setting, seed: int) -> Run:
    """One run. The same setting and seed give the same run. Errors: those of :func:`costs_of` and
    :meth:`Setting.arrivals`."""
    costs = costs_of(setting)
    cost = next(iter(costs.values()))
    reading = costs["prefill"].kv_tokens if "prefill" in costs else None
    room = costs["decode" if "decode" in costs else "all"].kv_tokens
    arrivals = setting.arrivals(seed)
    scheduler = Scheduler(
        setting.policy,
        cost.layer_costs(),
        room,
        prefixes=setting.load.prefixes,
        reading_tokens=reading,
    )
    return Simulator(scheduler, costs, arrivals, setting.streamed).run()


def compared(
    settings: Sequence[Setting],
    seeds: Sequence[int],
    workers: Workers = IN_TURN,
    watch: Watch = unwatched,
) -> list[dict[str, Band]]:
    """For each setting, the band of each metric over ``seeds``. The results do not depend on
    ``workers``, who carry the runs out."""
    jobs = [(setting, seed) for setting in settings for seed in seeds]
    found = workers.results(_measured, jobs, watch)
    count = len(seeds)
    return [_bands(found[i : i + count]) for i in range(0, len(found), count)]


def _measured(job: tuple[Setting, int]) -> dict[str, float]:
    setting, seed = job
    return measured(simulated(setting, seed), setting.objective)


def _bands(runs: Sequence[dict[str, float]]) -> dict[str, Band]:
    return {name: band([run[name] for run in runs]) for name in METRICS}


def band(values: Sequence[float]) -> Band:
    """The mean of ``values`` and their quantiles of 5 % and 95 %."""
    low, high = np.quantile(values, (0.05, 0.95))
    return Band(float(np.mean(values)), float(low), float(high))
