"""Questions about an iteration on a node of GPUs in tensor parallel: a prompt, whole or in chunks,
and what its schedules take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshc.cost.nodes.iteration_batches import Batch, Chunk
from meshc.cost.nodes.overlap import POLICIES, Schedule, baseline, fused_only
from meshc.cost.nodes.ranks import Ranks
from meshc.cost.nodes.splitting import best_schedule, threshold_tokens
from meshc.devices import device
from meshc.driver.served_shapes import served_model
from meshc.support.diagnostics import fail

_MOST_TOKENS = 1 << 20
_MOST_ITERATIONS = 4096


@dataclass(frozen=True)
class NodeRequest:
    """A prompt of ``tokens``, read whole or at most ``chunk`` tokens at a time, by ``policy``.
    ``gpus`` 0 takes all of the device; ``in_switch`` says that the switch sums,
    ``whole_experts`` that each GPU has some of the experts and not a share of each."""

    model: str
    device: str
    tokens: int
    policy: str = "tokenweave"
    chunk: int | None = None
    gpus: int = 0
    in_switch: bool = True
    whole_experts: bool = False


@dataclass(frozen=True)
class NodeReport:
    """What a prompt takes: a schedule for each iteration, and seconds by the baseline and without
    communication. ``threshold`` is the fewest tokens of a prompt that are cut in two; None where
    cutting never pays, or the policy does not cut."""

    schedules: tuple[Schedule, ...]
    baseline_seconds: float
    alone_seconds: float
    threshold: int | None

    @property
    def seconds(self) -> float:
        """Seconds of all iterations."""
        return sum(schedule.seconds for schedule in self.schedules)

    @property
    def speedup(self) -> float:
        """The baseline's time over that of the policy."""
        return self.baseline_seconds / self.seconds

    @property
    def longest(self) -> Schedule:
        """The iteration that takes longest; the first of several."""
        return max(self.schedules, key=lambda schedule: schedule.seconds)


def node_report(request: NodeRequest) -> NodeReport:
    """The schedules that ``request`` asks for.

    Errors: ``bad-argument``, ``device-number``, and those of the model and the device.
    """
    if request.policy not in POLICIES:
        fail(
            "bad-argument",
            f"'{request.policy}' is no policy for an iteration of a node",
            help=f"with --tokens they are {', '.join(POLICIES)}",
        )
    batches = _iterations(request)
    where = device(request.device)
    gpus = request.gpus or where.cores
    model = served_model(request.model)
    if request.whole_experts:
        model = model.with_whole_experts()
    ranks = Ranks(model, where, gpus, request.in_switch)
    build = _BUILDERS[request.policy]
    return NodeReport(
        schedules=tuple(build(ranks, batch) for batch in batches),
        baseline_seconds=sum(baseline(ranks, batch).seconds for batch in batches),
        alone_seconds=sum(baseline(ranks, batch, False).seconds for batch in batches),
        threshold=threshold_tokens(ranks) if request.policy == "tokenweave" else None,
    )


_BUILDERS: dict[str, Callable[[Ranks, Batch], Schedule]] = {
    "baseline": baseline,
    "fuse-only": fused_only,
    "tokenweave": best_schedule,
}


def _iterations(request: NodeRequest) -> list[Batch]:
    """The chunks of the prompt, one in each iteration."""
    chunk = request.tokens if request.chunk is None else request.chunk
    for flag, value in (("--tokens", request.tokens), ("--chunk", chunk)):
        if not 1 <= value <= _MOST_TOKENS:
            fail("bad-argument", f"{flag} is {value}, not 1 to {_MOST_TOKENS:,}")
    if -(-request.tokens // chunk) > _MOST_ITERATIONS:
        fail(
            "bad-argument",
            f"{request.tokens} tokens in chunks of {chunk} are more than {_MOST_ITERATIONS} chunks",
            help="give longer chunks",
        )
    starts = range(0, request.tokens, chunk)
    return [(Chunk(start, min(start + chunk, request.tokens)),) for start in starts]
