"""Which policy, how many groups and what chunk serve a load best: by simulation of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshc.serving.comparing import Band, Setting, compared
from meshc.serving.group_counts import ByLength
from meshc.serving.policies import Policy, policy
from meshc.support.workers import IN_TURN, Watch, Workers, unwatched

CHUNKS = (256, 512, 1024, 2048)
"""Sizes of chunks that are tried."""

GROUP_TOKENS = (256, 512, 1024, 2048)
"""Prompt tokens for a group of layers that are tried."""


@dataclass(frozen=True)
class Candidate:
    """A policy with its settings in words, and what it is expected to do."""

    words: str
    policy: Policy
    bands: dict[str, Band]

    @property
    def rank(self) -> tuple[float, float, float]:
        """Smaller is better: the share of requests that miss their objective in whole percents,
        then mean TTFT times mean TBT, then energy."""
        missed = round(100 * (1 - self.bands["slo_attainment"].mean))
        product = self.bands["ttft_mean_s"].mean * self.bands["tbt_mean_ms"].mean
        return missed, product, self.bands["energy_mj_per_token"].mean


def candidates(experts: int) -> list[tuple[str, Policy]]:
    """Policies that are tried, with their settings in words; those that read prompts by groups of
    layers only for a model with experts (arXiv 2510.08055, section 5.13)."""
    found = [(f"--policy chunked --chunk {n}", policy("chunked", n)) for n in CHUNKS]
    if experts:
        for tokens in GROUP_TOKENS:
            rule, words = ByLength(tokens), f"--groups length:{tokens}"
            found.append((f"--policy layered {words}", policy("layered", groups=rule)))
            found.append((f"--policy combined {words}", policy("combined", groups=rule)))
    return found


def chosen(
    setting: Setting,
    seeds: Sequence[int],
    workers: Workers = IN_TURN,
    watch: Watch = unwatched,
) -> list[Candidate]:
    """All candidates for the server, load and objective of ``setting``, whose own policy does not
    matter, the best first."""
    plan = candidates(setting.model.experts)
    settings = [replace(setting, policy=own) for _, own in plan]
    bands = compared(settings, seeds, workers, watch)
    found = [Candidate(w, p, own) for (w, p), own in zip(plan, bands, strict=True)]
    return sorted(found, key=lambda candidate: candidate.rank)
