"""group-layers: a run of prefill passes some of the layers, which hands its rows to the next."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import ClassVar

from meshc.cost.layer_groups import balanced_groups, layer_costs
from meshc.ir.core import Op
from meshc.ir.module import Module, Param
from meshc.ir.ops import graph
from meshc.ir.rewriter import Rewriter
from meshc.ir.values import Value
from meshc.passes.base import Pass
from meshc.passes.graph.cleanup import remove_dead
from meshc.support.diagnostics import Diagnostics, fail

TOKENS_OF_A_GROUP = 512
"""A prompt of L tokens is read in ceil(L / 512) groups (arXiv 2510.08055, section 4.4)."""
ROW_SCALE = "row_scale"
"""The option that says by what embeddings are multiplied before the first group takes them."""


@dataclass(frozen=True)
class GroupLayers(Pass):
    """Let a run of prefill pass a contiguous group of the layers (arXiv 2510.08055, section 4).

    The loops over layers of a prefill phase run from a first layer on for a number of layers, both
    of which are run-time scalars; the rows that a group gives are the input of the next one, in
    place of the embeddings that the first one takes. So one program reads prompts in any groups:
    an iteration of a server runs it on the one group whose turn it is, and the decode step, which
    passes all layers, on the requests that decode. Chunked prefill is the case of one group,
    layered prefill that of one chunk. Embeddings that a model multiplies by a number are given to
    the first group as products, as the option ``row_scale`` says.

    ``groups`` is how many the remark shows (0: one for each 512 tokens of the longest prompt);
    groups are contiguous and the dearest one is as cheap as possible. A decode phase is left as it
    is.

    Before::

        %x = graph.embed %tokens, %table {dim = V} : f32[L, E]
        %y = graph.repeat %x, %w {dim = N} : f32[L, E] ...

    After::

        scalars len = 1..4, first_n = 0..2, count_n = 0..3
        %y = graph.repeat %x, %w {dim = N, rounds = [first_n, count_n]} : f32[L, E] ...

    A model without experts is refused (``dense-layered``) unless ``force`` is set, and one that
    computes outside of its loops over layers is an error, ``unsupported-op``.
    """

    NAME: ClassVar[str] = "group-layers"
    LEVELS: ClassVar[tuple[str, ...]] = ("graph",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    groups: int = 0
    force: bool = False

    def run(self, module: Module, report: Diagnostics) -> Module:
        if self.groups < 0:
            fail("bad-option", f"there cannot be {self.groups} groups of layers")
        if "len" not in module.scalars:
            return module
        if not self.force:
            _check_experts(module)
        loops = _loops(module)
        _remark(module, self.groups, report)
        for loop in loops:
            layers = module.dims[loop.dim]
            dim = loop.dim.lower()
            first, count = _fresh(f"first_{dim}", module), _fresh(f"count_{dim}", module)
            module.scalars |= {first: (0, layers - 1), count: (0, layers)}
            loop.rounds = (first, count)
        _take_rows(module, loops[0])
        remove_dead(module, report)
        return module


def _check_experts(module: Module) -> None:
    """Fail with ``dense-layered`` for a model in which no token chooses among experts."""
    if not any(isinstance(op, graph.TopK) for op in module.walk()):
        fail(
            "dense-layered",
            f"'{module.name}' has no experts; groups of layers read its prompts slower than chunks",
            notes=[
                "chunks of a dense model load no weights that decoding does not load anyway; in "
                "groups of layers, decoding loads weights that no arithmetic hides (arXiv "
                "2510.08055, section 5.13)"
            ],
            help="read prompts by chunks, or set force to group the layers all the same",
        )


def _loops(module: Module) -> list[graph.Repeat]:
    """The loops over layers, each of which goes on with the rows of the one before. Fails with
    ``unsupported-op`` where something else is computed from them, which a group would do again."""
    body = module.function.body.ops
    loops = [op for op in body if isinstance(op, graph.Repeat)]
    if not loops:
        fail("unsupported-op", f"'{module.name}' has no loop over layers", help="write repeat N")
    for before, loop in zip([None, *loops], loops, strict=False):
        start = loop.tensors()[0]
        if loop.carried != 1 or (before is not None and start is not before.results[0]):
            _refuse(loop)
    known = (graph.Repeat, graph.Embed, graph.Return)
    scales = _scales(module, loops[0])
    others = [op for op in body if not isinstance(op, known) and op not in scales]
    if others:
        _refuse(others[0])
    if body[-1].tensors()[:1] != loops[-1].results[:1]:
        _refuse(body[-1])
    return loops


def _scales(module: Module, loop: graph.Repeat) -> list[graph.Scale]:
    """The ops that multiply what is looked up by numbers, and give it to ``loop`` alone."""
    found: list[graph.Scale] = []
    rows = loop.tensors()[0]
    while (maker := _maker(module, rows)) is not None and isinstance(maker, graph.Scale):
        if sum(rows in op.tensors() for op in module.walk()) > 1:
            break
        found.append(maker)
        rows = maker.tensors()[0]
    return found


def _maker(module: Module, value: Value) -> Op | None:
    return next((op for op in module.function.body.ops if value in op.results), None)


def _refuse(op: Op) -> None:
    fail(
        "unsupported-op",
        f"{op.NAME} stands between groups of layers, which hand on the rows of one value alone",
        op.span,
        help="let the prefill phase look up tokens, pass the layers, and return their rows",
    )


def _remark(module: Module, groups: int, report: Diagnostics) -> None:
    costs = layer_costs(module)
    count = groups or ceil(module.capacity / TOKENS_OF_A_GROUP)
    shares = [sum(costs[i] for i in group) / sum(costs) for group in balanced_groups(costs, count)]
    sizes = " + ".join(str(len(group)) for group in balanced_groups(costs, count))
    words = (
        f"{len(shares)} groups of {sizes} layers, the dearest with {max(shares):.0%} of the work"
    )
    report.remark("layer-groups", words)


def _take_rows(module: Module, loop: graph.Repeat) -> None:
    """The rows with which ``loop`` begins, which were looked up in a table of embeddings, become an
    input of the phase, and what multiplies them the option ``row_scale``."""
    rows, scales = loop.tensors()[0], _scales(module, loop)
    given = scales[-1].tensors()[0] if scales else rows
    embed = _maker(module, given)
    if isinstance(embed, graph.Embed):
        ids, given = embed.tensors()[0], Value(given.name, given.type)
        position = next((i for i, p in enumerate(module.function.params) if p.value is ids), 0)
        module.function.params[position : position + 1] = [Param(given, "in")]
    first = scales[0] if scales else embed
    if first is not None:
        Rewriter(module).replace_op(first, [given])
    if scales:
        module.options[ROW_SCALE] = prod(scale.factor for scale in scales)


def _fresh(name: str, module: Module) -> str:
    """``name``, or that with a number where the module has a scalar of it."""
    found, count = name, 0
    while found in module.scalars:
        count += 1
        found = f"{name}_{count}"
    return found
