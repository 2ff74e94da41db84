"""Options of targets whose programs are of a mesh of cores."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.backends.options.base import TargetOptions, option


@dataclass(frozen=True)
class MeshOptions(TargetOptions):
    """How a model is laid out on a mesh of cores.

    ``mesh`` is columns x rows of one region, or its axes by name, that of regions included, such as
    ``r=2,y=4,x=4``. ``kv`` is the policy of the KV cache, ``auto`` by predicted cycles of the
    decode step. ``algo`` names algorithms, such as ``gemm=cannon`` and ``all_reduce=k_tree:2``;
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
