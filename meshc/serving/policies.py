"""Scheduling policies as settings of one mechanism.

Prompts are read in *waves*: tokens of one or several prompts that pass the layers together, one
group of layers in each iteration. A policy says how many tokens a wave has and into how many groups
it divides the layers:

================  ==========================  =================  ==============
policy            tokens of a wave            groups             pools of GPUs
================  ==========================  =================  ==============
chunked           at most ``chunk``           1                  one
layered           whole prompts               by their length    one
combined          at most ``chunk`` (large)   by their length    one
disaggregated     at most ``chunk``           1                  two
================  ==========================  =================  ==============

Sources: chunked prefill as in Sarathi-Serve, layered prefill and its combination with chunks as in
arXiv 2510.08055, sections 4.2 to 4.4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshc.serving.group_counts import ByLength, Fixed, GroupCount
from meshc.support.diagnostics import fail

POLICIES = ("chunked", "layered", "combined", "disaggregated")

MERGED_TOKENS = 8192
"""Short prompts are read together up to so many tokens, the largest batch of the paper's code."""


@dataclass(frozen=True)
class Policy:
    """How prompts are read beside decoding.

    ``chunk``: most prompt tokens of a wave, longer prompts being cut; None takes prompts whole and
    merges short ones up to ``merged`` tokens. ``groups``: groups of layers for the tokens of a
    wave. ``counts_decodes``: tokens that are decoded in the same iteration are part of ``chunk``,
    as in Sarathi-Serve. ``disaggregated``: prompts are read and continued on GPUs of their own.

    ``long_chunk``: a prompt of which more tokens are left to read is long. It gets at most so many
    tokens of a wave, the others go to those behind it; at most ``long_prompts`` are read at once,
    and shorter prompts pass those that wait for that. None lets the first prompt take all.
    """

    name: str
    chunk: int | None
    groups: GroupCount
    merged: int = MERGED_TOKENS
    counts_decodes: bool = False
    disaggregated: bool = False
    long_chunk: int | None = None
    long_prompts: int = 1

    def wave_tokens(self, decoding: int) -> int:
        """Most prompt tokens of a wave that starts beside ``decoding`` requests; 0 for none."""
        if self.chunk is None:
            return self.merged
        return max(0, self.chunk - decoding) if self.counts_decodes else self.chunk


def policy(name: str, chunk: int | None = None, groups: GroupCount | None = None) -> Policy:
    """The policy ``name`` with the paper's settings: chunks of 512 tokens, groups for 512 tokens,
    8192 tokens where both are combined or where prompts have GPUs of their own.

    Errors: ``bad-argument`` for an unknown name or a setting that the policy does not have.
    """
    if chunk is not None and not 1 <= chunk <= 1_000_000:
        fail("bad-argument", f"a chunk has 1 to 1000000 tokens, not {chunk}")
    grouped = groups or ByLength()
    settings = {
        "chunked": Policy("chunked", chunk or 512, Fixed(1), counts_decodes=True),
        "layered": Policy("layered", None, grouped),
        "combined": Policy("combined", chunk or MERGED_TOKENS, grouped),
        "disaggregated": Policy(
            "disaggregated", chunk or MERGED_TOKENS, Fixed(1), disaggregated=True
        ),
    }
    if name not in settings:
        fail(
            "bad-argument",
            f"there is no policy '{name}'",
            help=f"policies are {', '.join(POLICIES)}",
        )
    if name == "layered" and chunk is not None:
        fail("bad-argument", "layered prefill has no chunks", help="'combined' has both")
    if name in ("chunked", "disaggregated") and groups is not None:
        fail(
            "bad-argument", f"'{name}' has no groups of layers", help="'layered' and 'combined' do"
        )
    return settings[name]


def with_long_prompts(chosen: Policy, chunk: int | None, prompts: int | None = None) -> Policy:
    """``chosen`` with a limit on long prompts: ``chunk`` is its ``long_chunk``, ``prompts`` its
    ``long_prompts``, 1 unless given. The settings are those of vLLM's scheduler
    (``long_prefill_token_threshold``, ``max_long_partial_prefills``).

    Errors: ``bad-argument`` for a setting that limits nothing.
    """
    if chunk is None:
        if prompts is not None:
            fail(
                "bad-argument",
                "--long-prompts is given, but not which prompts are long",
                help="--long-chunk says from how many tokens on",
            )
        return chosen
    if chosen.chunk is None:
        fail(
            "bad-argument",
            f"'{chosen.name}' reads prompts whole, so there is no chunk to limit by --long-chunk",
            help="'combined' has groups of layers and chunks",
        )
    if not 1 <= chunk < chosen.chunk:
        most = f"1 to {chosen.chunk - 1}, less than a chunk"
        fail("bad-argument", f"--long-chunk is {chunk}, not {most}")
    if prompts is not None and not 1 <= prompts <= 1_000_000:
        fail("bad-argument", f"--long-prompts is {prompts}, not 1 to 1000000")
    return replace(chosen, long_chunk=chunk, long_prompts=prompts or 1)


def for_model(chosen: Policy, experts: int, forced: bool = False) -> Policy:
    """``chosen``, unless it divides the layers of a dense model (``experts`` is 0).

    Errors: ``dense-layered``, unless ``forced``.
    """
    if experts == 0 and chosen.name in ("layered", "combined") and not forced:
        fail(
            "dense-layered",
            f"'{chosen.name}' reads prompts by groups of layers, but the model has no experts",
            notes=[
                "chunks of a dense model load no weights that decoding does not load anyway; in "
                "groups of layers, decoding loads weights that no arithmetic hides, and the GPU is "
                "used less (arXiv 2510.08055, section 5.13: mean TTFT 1.45 s against 0.955 s)"
            ],
            help="take --policy chunked, or --force (of compile --serving layers!) to see what it "
            "costs",
        )
    return chosen
