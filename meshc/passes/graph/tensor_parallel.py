"""tensor-parallel: the graph of a whole model becomes that of one GPU among several."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from meshc.ir.core import tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import graph, ranks
from meshc.ir.ranks import RankPart, Ranks
from meshc.passes.base import Pass
from meshc.passes.graph.ranking.dealing import dealt_dims, scoring_params
from meshc.passes.graph.ranking.rewriting import RankGraph
from meshc.support.diagnostics import Diagnostics, fail

_EXPERTS = ("whole", "features")


@dataclass(frozen=True)
class TensorParallel(Pass):
    """Give the graph of one rank (a GPU) among ``ranks``, all of which run it (Megatron-LM).

    Query heads are dealt with the key heads that they read; where key heads are fewer than ranks,
    several ranks have the same one and share its queries. Features of feed-forward layers,
    experts (``whole`` ones, or ``features`` of each) and the vocabulary are dealt as well. Each is
    a new dim, a part of the whole one, as the header says; weights and caches are sliced by that.
    Where parts do not come out even, the last ranks have padding, of which weights are zero.
    Extents of features, experts' features and vocabulary are multiples of ``multiple``.

    What the ranks do together are ops: an ``all_reduce`` completes what a product over a part
    leaves, behind the attention and behind the feed-forward layer; biases and residuals are added
    behind it, once. Logits are gathered. Between them stands a graph like any other. Dims
    named in ``keep`` are not dealt.

    Before::

        %gate, %up = graph.matmul %h, %w_gate, %w_up {contract = [E]} : f32[L, F], f32[L, F]
        %y = graph.matmul %a, %w_down {contract = [F]} : f32[L, E]
        %z = graph.add %x, %y : f32[L, E]

    After::

        %gate, %up = graph.matmul %h, %w_gate, %w_up {contract = [E]} : f32[L, F_rank], ...
        %y = graph.matmul %a, %w_down {contract = [F_rank]} : f32[L, E]
        %y_sum = graph.all_reduce %y : f32[L, E]
        %z = graph.add %x, %y_sum : f32[L, E]

    A graph that is one of a rank already, or fused, is an error, ``unsupported-op``.
    """

    NAME: ClassVar[str] = "tensor-parallel"
    LEVELS: ClassVar[tuple[str, ...]] = ("graph",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    ranks: int = 1
    experts: str = "whole"
    multiple: int = 1
    keep: tuple[str, ...] = ()

    def run(self, module: Module, report: Diagnostics) -> Module:
        self._check(module)
        if self.ranks == 1:
            return module
        dealt = dealt_dims(module, self.ranks, self.experts, self.multiple, self.keep)
        _check_padding(module, dealt)
        module.dims |= {part.dim: extent for part, extent in dealt.items()}
        RankGraph(module, dealt, scoring_params(module)).run()
        module.ranks = Ranks(self.ranks, tuple(dealt))
        report.remark("dealt-to-ranks", _remark(module))
        return module

    def _check(self, module: Module) -> None:
        for name in ("ranks", "multiple"):
            if getattr(self, name) < 1:
                fail("bad-option", f"{name} of tensor-parallel is {getattr(self, name)}")
        if self.experts not in _EXPERTS:
            fail("bad-option", f"experts are dealt {' or '.join(_EXPERTS)}, not '{self.experts}'")
        for dim in self.keep:
            if dim not in module.dims:
                fail("bad-option", f"'{dim}' is no dim of '{module.name}', which keep names")
        if module.ranks is not None:
            fail("unsupported-op", f"'{module.name}' is the graph of a rank already")
        for op in module.walk():
            if isinstance(op, graph.Fuse):
                fail(
                    "unsupported-op",
                    f"'{module.name}' has fused ops, whose bodies are not dealt to ranks",
                    op.span,
                    help="put tensor-parallel before fuse-chunk",
                )


def _check_padding(module: Module, dealt: dict[RankPart, int]) -> None:
    """A norm of a head of padding would be 0 / 0 if nothing is added to its mean."""
    dims = {part.whole for part in dealt}
    for op in module.walk():
        if isinstance(op, graph.RmsNorm) and op.eps == 0 and dims & {*tensor_type(op.result).dims}:
            fail(
                "unsupported-op",
                f"{op.NAME} {op.result} has eps = 0, and ranks may have heads of padding",
                op.span,
                help="give it a small eps, or name its heads in keep",
            )


def _remark(module: Module) -> str:
    """What each rank has, and how often ranks meet, a loop over layers counted once."""
    assert module.ranks is not None
    shares = [
        f"{module.dims[part.dim]} of {module.dims[part.whole]} {part.whole}"
        + (f", {part.copies} ranks to a team" if part.copies > 1 else "")
        for part in module.ranks.parts
    ]
    met = Counter(
        op.NAME for op in module.walk() if isinstance(op, (ranks.AllReduce, ranks.AllGather))
    )
    words = ", ".join(f"{count} {name.removeprefix('graph.')}" for name, count in met.items())
    each = f"{module.ranks.count} ranks: each has {'; '.join(shares)}"
    return f"{each}. They meet in {words or 'nothing'}"
