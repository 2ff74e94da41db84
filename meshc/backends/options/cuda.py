"""Options of the CUDA target."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.backends.options.base import TargetOptions, option

NO_OVERLAP = "none"


@dataclass(frozen=True)
class CudaOptions(TargetOptions):
    """How kernels are made.

    ``cluster`` is the blocks of a cluster, ``dataflow`` how they share attention, by as many as are
    predicted to be fastest if ``cluster`` is empty, in no clusters if both are; ``page`` is the
    tokens of a page of the cache; ``gpus`` are those that a model is dealt to, whose
    ``collectives`` add up in the switch (``multimem``) or by loads from each peer (``peers``);
    ``overlap`` says which chunks they read in two halves beside each other: ``none``, those that
    the cost of a node is lower for (``auto``), or all with that many tokens in the first half;
    ``persistent`` asks for a decode step of one kernel, which it always is. ``cache_tokens`` is, of
    a program that serves, how many tokens the pages of all requests together have room for; None
    for all that the capacity gives each.
    """

    cluster: int | None = option(
        None,
        "CUDA, one GPU: thread blocks of a cluster, which share attention; default: none, or with "
        "--dataflow as many as are predicted to be fastest",
        "N",
    )
    dataflow: str = option(
        "",
        "CUDA, one GPU: how the blocks of a cluster share attention",
        "split_token|split_head",
    )
    page: int = option(16, "CUDA: tokens of a page of the KV cache; default: 16", "1|16|64")
    gpus: int = option(
        1,
        "CUDA: GPUs of the kind of --device that a model is dealt to, up to 16; default: 1",
        "N",
    )
    collectives: str = option(
        "multimem",
        "CUDA, several GPUs: the switch adds up what they have and gives it to all, or each loads "
        "from its peers and stores to them; default: multimem",
        "multimem|peers",
    )
    overlap: str = option(
        NO_OVERLAP,
        "CUDA, several GPUs: read chunks of --chunk tokens, up to 1024, in two halves, one's "
        "collectives beside the other's kernels: where the cost of a node is lower for it (auto), "
        "or with N tokens in the first half; default: none",
        "none|auto|N",
    )
    persistent: bool = option(False, "CUDA: a decode step of one kernel, which it always is")
    cache_tokens: int | None = option(
        None,
        "CUDA: tokens that all requests together have pages for, filled up to whole pages; where "
        "these run out, those that came last wait and begin again; default: --batch times --seq",
        "N",
    )

    @property
    def in_switch(self) -> bool:
        """Whether collectives add up in the switch."""
        return self.collectives == "multimem"
