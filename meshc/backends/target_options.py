"""What a target is asked beside what all are: a record of its own, whose fields are flags.

Nothing heavy is imported here, since the command line reads the records of meshc's own targets for
its help. What values may be, the target says (:meth:`meshc.backends.request.Rules.check`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from meshc.support.diagnostics import fail

NO_OVERLAP = "none"


def option(default: Any, help: str, metavar: str = "") -> Any:
    """A field of a record: its default, what help says of its flag, and of a flag with a value what
    stands for that. A default of () is that of a flag that may be repeated."""
    return field(default=default, metadata={"help": help, "metavar": metavar})


@dataclass(frozen=True)
class TargetOptions:
    """The options of a target, none unless it declares fields by :func:`option`."""

    @classmethod
    def declared(cls) -> Iterator[Field[Any]]:
        """The fields that are options."""
        return (one for one in fields(cls) if one.default is not MISSING)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """What the options are called."""
        return tuple(one.name for one in cls.declared())


@dataclass(frozen=True)
class MeshOptions(TargetOptions):
    """How a model is laid out on a mesh of cores.

    ``mesh`` is columns x rows of one region, or its axes by name, that of regions included, such as
    ``r=2,y=4,x=4``. ``kv`` is the policy of the KV cache, ``auto`` by predicted cycles of the
    decode step. ``algo`` names algorithms, such as ``gemm=cannon`` and ``all_reduce=k_tree:2``;
    ``form`` pins forms by which results are computed, such as ``h=deferred``;
    ``align`` says who skews operands of products, the host or the cores; ``result`` ``roots``
    leaves reduced results of main on the first cores of their axis. ``choose`` says who takes the
    largest logit of a decode step, the ``host`` or the ``cores``, which then give its token instead
    of all logits.
    """

    mesh: str = option(
        "",
        "columns x rows of one region of cores, or axes by name, that of regions included; "
        "default: 8x8; of run with --target csl the smallest that fits",
        "WxH|AXIS=N,..",
    )
    kv: str = option(
        "auto",
        "how the KV cache takes new tokens; default: auto, shift or cyclic by the cost model",
        "auto|shift|concat|cyclic",
    )
    algo: tuple[str, ...] = option(
        (),
        "algorithm of gemm (cyclic_shift, cannon, summa, allgather, transposed), all_reduce "
        "(pipeline, ring, tree, two_phase, k_tree:K) or dispatch (multicast, ring, gather); may be "
        "repeated; default: by the cost model",
        "OP=NAME",
    )
    form: tuple[str, ...] = option(
        (),
        "compute a result of the model's graph by a form of its op, perhaps of an installed "
        "package; may be repeated; default: by the cost model",
        "RESULT=FORM",
    )
    align: str = option(
        "",
        "who skews the operands of MeshGEMM and Cannon; default: the host those of weights, the "
        "cores those of inputs",
        "host|device",
    )
    result: str = option(
        "",
        "where reduced results of main end: on the first core of their axis or on all; default: "
        "everywhere",
        "roots|everywhere",
    )
    choose: str = option(
        "host",
        "CSL: who takes the largest logit of a decode step: the host, of all logits, or the cores, "
        "which give its token alone; default: host",
        "host|cores",
    )


@dataclass(frozen=True)
class CslOptions(MeshOptions):
    """How programs for wafers are made. ``portable`` ones run on every architecture that has CSL;
    ``phases`` says whether both phases are one program (:mod:`meshc.backends.csl.one_program`)."""

    portable: bool = option(False, "one CSL source for all architectures that have CSL")
    phases: str = option(
        "two",
        "CSL: a program for each phase (two), or one for both, with copies of weights that lie "
        "differently (copied) or moving them in between (moved); auto: one if it fits; default: "
        "two",
        "auto|one|copied|moved|two",
    )

    @property
    def joined(self) -> bool:
        """Whether one program for both phases is asked for, whose steps take one request."""
        return self.phases not in ("auto", "two")


@dataclass(frozen=True)
class CudaOptions(TargetOptions):
    """How kernels are made.

    ``cluster`` is the blocks of a cluster, ``dataflow`` how they share attention, by as many as are
    predicted to be fastest if ``cluster`` is empty, in no clusters if both are; ``page`` is the
    tokens of a page of the cache, which lie as kernels of this project read them or (``kv_layout``
    ``nhd``) as those of others do, in the type of the model or (``kv_dtype`` ``fp8_e4m3``) as
    floats of eight bits with a scale for each row; ``gpus`` are those that a model is dealt to,
    whose ``collectives`` add up in the switch (``multimem``) or by loads from each peer
    (``peers``);
    ``overlap`` says which chunks they read in two halves beside each other: ``none``, those that
    the cost of a node is lower for (``auto``), or all with that many tokens in the first half;
    ``nodes`` are those over which layers are dealt, a GPU of each;
    ``cut`` says which meetings of blocks end a kernel of a decode step: ``none``, so that it is one
    kernel, which ``persistent`` asks for, ``all``, or (``auto``) what is predicted to be faster.
    ``cache_tokens`` is, of a program that serves, how many tokens the pages of all requests
    together have room for; None for all that the capacity gives each. ``drafts`` is how many drafts
    of each request a step of such a program verifies at the most; ``batch_tokens`` is how many
    tokens a step reads, of prompts beside those of requests that go on, 0 for prompts that are read
    by themselves.
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
    kv_layout: str = option(
        "own",
        "CUDA: pages of the KV cache as kernels read them fastest, or as vLLM and FlashInfer have "
        "them: [pages, tokens, heads, lanes] of each layer; default: own",
        "own|nhd",
    )
    kv_dtype: str = option(
        "model",
        "CUDA: KV caches in the type of the model, or as floats of eight bits (e4m3) with a scale "
        "for each token of each key head, which take half the bytes; default: model",
        "model|fp8_e4m3",
    )
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
    nodes: int = option(
        1,
        "CUDA: nodes whose GPUs have some of the layers each, one behind the other, up to 16; "
        "default: 1",
        "N",
    )
    persistent: bool = option(False, "CUDA: a decode step of one kernel, which it is without --cut")
    cut: str = option(
        "none",
        "CUDA, one GPU: a decode step of one kernel, of a kernel for each phase, which profilers "
        "tell apart (all), or of what is predicted to be faster (auto); default: none",
        "none|all|auto",
    )
    cache_tokens: int | None = option(
        None,
        "CUDA: tokens that all requests together have pages for, filled up to whole pages; where "
        "these run out, those that came last wait and begin again; default: --batch times --seq",
        "N",
    )
    drafts: int = option(
        0,
        "CUDA: guess up to N tokens of each request and verify them in one step, up to 16 "
        "tokens of all requests; tokens are those that come without; of a server --batch is then "
        "16 / (1 + N) by default, at most 8",
        "N",
    )
    batch_tokens: int = option(
        0,
        "CUDA, a program that serves: each step reads up to N tokens, 128 at the most, those of "
        "prompts beside those of requests that go on; default: prompts are read by themselves",
        "N",
    )

    @property
    def is_cut(self) -> bool:
        """Whether a decode step may be several kernels."""
        return self.cut != CudaOptions.cut

    @property
    def codes_caches(self) -> bool:
        """Whether caches keep other numbers than those of the model's type."""
        return self.kv_dtype != CudaOptions.kv_dtype

    @property
    def in_switch(self) -> bool:
        """Whether collectives add up in the switch."""
        return self.collectives == "multimem"


OWN: dict[str, type[TargetOptions]] = {
    "python": MeshOptions,
    "csl": CslOptions,
    "cuda": CudaOptions,
    "ttlang": MeshOptions,
}
"""The record of each of meshc's own targets, that of a request which names none first."""


def read_options(
    record: type[TargetOptions], texts: Mapping[str, str | tuple[str, ...]]
) -> dict[str, Any]:
    """The values that ``texts`` spell of options of ``record``. Raises ``bad-argument`` for an
    option that it does not declare, and for a text that is no such value."""
    known = {one.name.replace("_", "-"): one for one in record.declared()}
    found = {}
    for name, text in texts.items():
        if name not in known:
            words = f"the target has no option '{name}'"
            fail("bad-argument", words, help=f"its options: {', '.join(known) or 'none'}")
        one = known[name]
        value = _value(text, one.default, "int" in str(one.type))
        if value is None:
            fail("bad-argument", f"{name} cannot be '{text}'")
        found[one.name] = value
    return found


def _value(text: str | tuple[str, ...], usual: object, whole: bool) -> object:
    """What ``text`` says of an option whose default is ``usual``; None for nothing."""
    if isinstance(usual, tuple):
        return text if isinstance(text, tuple) else (text,)
    if isinstance(text, tuple):
        return None
    if isinstance(usual, bool):
        return {"true": True, "false": False}.get(text)
    if whole:
        return int(text) if text.lstrip("-").isdecimal() else None
    return text
