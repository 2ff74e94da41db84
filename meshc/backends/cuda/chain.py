"""The chain of kernels that a chunk of a prompt can be read by.

Launches hand values on in buffers of fixed names, and weights are packed under the names of their
kernels. So a graph whose kernels are others, or are joined in another way, must not become one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from meshc.backends.cuda.kernels.chunk_attention.launch import AttentionBlock
from meshc.backends.cuda.kernels.embed.launch import Embed
from meshc.backends.cuda.kernels.ffn_block.launch import FeedForward
from meshc.backends.cuda.kernels.head.launch import Head
from meshc.ir.core import Op, Operand
from meshc.ir.module import Module
from meshc.ir.ops import graph, ranks
from meshc.ir.values import Value
from meshc.support.diagnostics import fail

_LOOP = "a loop of layers"
_SUM, _ZEROS = ranks.AllReduceResidualRmsNorm.NAME, ranks.ZerosLike.NAME
_LAYER = AttentionBlock.NAME, FeedForward.NAME
_RANK_LAYER = _SUM, AttentionBlock.NAME, _SUM, FeedForward.NAME
_PARTS = (graph.Fuse, graph.Repeat, ranks.AllReduceResidualRmsNorm, ranks.ZerosLike)

_RESIDUAL, _PART, _NORMED = "the residual", "the part of the sum", "what is normed"
_READS = {"residual": _RESIDUAL, "normed": _NORMED}

_Stream = dict[str, Operand]
"""What the ops so far give to the next one, by what it is."""


def check_chain(module: Module) -> None:
    """Raise ``cuda-graph`` unless the fused ops are a look-up, loops of layers (attention, then
    feed-forward) and the logits, and each reads what the one in front of it gives; of a rank, with
    a sum over ranks in front of each block and of the logits.

    Modules with ops of no kernel are passed over: making launches of them says which.
    """
    *ops, last = module.function.body.ops
    loops = [op for op in ops if isinstance(op, graph.Repeat)]
    layers = [loop.regions[0].ops for loop in loops]
    if any(not isinstance(op, _PARTS) for op in [*ops, *(op for x in layers for op in x[:-1])]):
        return
    ranked = module.ranks is not None
    layer, carries = (_RANK_LAYER, (_RESIDUAL, _PART)) if ranked else (_LAYER, (_RESIDUAL,))
    ahead, behind = ((_ZEROS,), (_SUM,)) if ranked else ((), ())
    chain = Embed.NAME, *ahead, *[_LOOP] * max(1, len(loops)), *behind, Head.NAME
    between = *ahead, "one or more loops of layers", *behind
    shown = ", ".join((Embed.NAME, *between, Head.NAME))
    logits = _end_of("a step", ops, chain, shown, {})[_RESIDUAL]
    for loop, (*inner, end) in zip(loops, layers, strict=True):
        if loop.carried != len(carries):
            _carries_more(loop)
        start: _Stream = dict(zip(carries, loop.regions[0].args, strict=False))
        given = _end_of("a layer", inner, layer, ", ".join(layer), start)
        if any(end.operands[place] is not given.get(what) for place, what in enumerate(carries)):
            _carries_more(loop)
    for param in module.function.params:
        users = [loop for loop in loops if param.value in loop.operands]
        if param.role == "state" and len(users) > 1:
            fail("cuda-graph", f"two loops of layers share the cache {param.value}", users[1].span)
    states = [result for loop in loops for result in loop.results[loop.carried :]]
    if last.operands[0] is not logits or any(o not in states for o in last.operands[1:]):
        fail("cuda-graph", "a step gives the logits and its caches, nothing else", last.span)


def _carries_more(loop: graph.Repeat) -> None:
    fail("cuda-graph", "the loop of layers carries more than the residual stream", loop.span)


def _end_of(
    whole: str, ops: Sequence[Op], wanted: Sequence[str], shown: str, stream: _Stream
) -> _Stream:
    """What the last of ``ops`` gives, which are the kernels ``wanted`` in their order, called
    ``shown`` in messages, of which the first reads what is in ``stream``."""
    for op, kind in zip_longest(ops, wanted, fillvalue=None):
        if op is None or _name(op) != kind:
            found = ", ".join(map(_shown, ops)) or "none"
            fail(
                "cuda-graph",
                f"the kernels of {whole} of this model are {found}",
                (op or ops[-1]).span if ops else None,
                notes=[f"kernels run as {shown}"],
                help="--target python takes kernels in another order",
            )
        for operand, what in zip(op.operands, _reads(op), strict=False):
            if operand is not stream.get(what):
                fail(
                    "cuda-graph",
                    f"{_shown(op)} reads {operand}, not what the kernel in front of it gives",
                    op.span,
                )
        stream = _given(op, stream)
    return stream


def _reads(op: Op) -> tuple[str, ...]:
    """What the first operands of ``op`` are."""
    if isinstance(op, ranks.AllReduceResidualRmsNorm):
        return _PART, _RESIDUAL
    if isinstance(op, graph.Repeat):
        return (_RESIDUAL, _PART)[: op.carried]
    if isinstance(op, graph.Fuse):
        return (_READS[op.takes[0]],) if op.takes[0] in _READS else ()
    return (_RESIDUAL,)


def _given(op: Op, stream: _Stream) -> _Stream:
    """What the next op may read, once ``op`` has taken what it reads."""
    residual = {what: value for what, value in stream.items() if what == _RESIDUAL}
    results: list[Value] = op.results
    if isinstance(op, ranks.AllReduceResidualRmsNorm):
        return dict(zip((_NORMED, _RESIDUAL), results, strict=True))
    if isinstance(op, graph.Repeat):
        return dict(zip((_RESIDUAL, _PART)[: op.carried], results, strict=False))
    if isinstance(op, ranks.ZerosLike) or (isinstance(op, graph.Fuse) and op.partial):
        return {**residual, _PART: results[0]}
    return {_RESIDUAL: results[0]}


def _name(op: Op) -> str:
    if isinstance(op, graph.Repeat):
        return _LOOP
    return op.kernel if isinstance(op, graph.Fuse) else op.NAME


def _shown(op: Op) -> str:
    return f"a loop of {op.dim}" if isinstance(op, graph.Repeat) else _name(op)
