"""What a target is asked for beside what all are: a record of its own, whose fields are flags.

Nothing heavy is imported here or beside the records, since the command line reads these for its
help. What values may be, the target says (:meth:`meshc.backends.request.Rules.check`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any


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
