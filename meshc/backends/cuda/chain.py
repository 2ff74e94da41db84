"""The chain of kernels that a decode step can be.

Launches hand values on in buffers of fixed names, and weights are packed under the names of their
kernels. So a graph whose kernels are others, or are joined in another way, must not become one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from meshc.backends.cuda.kernels.fused import ATTENTION, FEED_FORWARD, LOGITS, LOOK_UP
from meshc.backends.cuda.kernels.registry import names_in
from meshc.ir.core import Op, Operand
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.support.diagnostics import fail

_LOOP = "a loop of layers"
_LAYER = names_in(ATTENTION), names_in(FEED_FORWARD)
_PARTS = (graph.Fuse, graph.Repeat)


def check_chain(module: Module) -> None:
    """Raise ``cuda-graph`` unless the fused ops are a look-up, loops of layers (attention, then
    feed-forward) and the logits, and each reads what the one in front of it gives.

    Modules with ops of no kernel are passed over: making launches of them says which.
    """
    *ops, last = module.function.body.ops
    loops = [op for op in ops if isinstance(op, graph.Repeat)]
    layers = [loop.regions[0].ops for loop in loops]
    if any(not isinstance(op, _PARTS) for op in [*ops, *(op for x in layers for op in x[:-1])]):
        return
    chain = names_in(LOOK_UP), *[(_LOOP,)] * max(1, len(loops)), names_in(LOGITS)
    shown = _shown_chain((names_in(LOOK_UP), ("one or more loops of layers",), names_in(LOGITS)))
    logits = _end_of("a step", ops, chain, shown)
    for loop, (*inner, end) in zip(loops, layers, strict=True):
        given = _end_of("a layer", inner, _LAYER, _shown_chain(_LAYER), loop.regions[0].args[0])
        if loop.carried != 1 or end.operands[0] is not given:
            fail(
                "cuda-graph", "the loop of layers carries more than the residual stream", loop.span
            )
    for param in module.function.params:
        users = [loop for loop in loops if param.value in loop.operands]
        if param.role == "state" and len(users) > 1:
            fail("cuda-graph", f"two loops of layers share the cache {param.value}", users[1].span)
    states = [result for loop in loops for result in loop.results[1:]]
    if last.operands[0] is not logits or any(o not in states for o in last.operands[1:]):
        fail("cuda-graph", "a step gives the logits and its caches, nothing else", last.span)


def _end_of(
    whole: str,
    ops: Sequence[Op],
    wanted: Sequence[tuple[str, ...]],
    shown: str,
    stream: Operand | None = None,
) -> Operand | None:
    """What the last of ``ops`` gives, which are the kernels ``wanted`` in their order, called
    ``shown`` in messages, of which the first reads ``stream`` where it is known."""
    for op, kinds in zip_longest(ops, wanted, fillvalue=None):
        if op is None or _name(op) not in (kinds or ()):
            found = ", ".join(map(_shown, ops)) or "none"
            fail(
                "cuda-graph",
                f"the kernels of {whole} of this model are {found}",
                (op or ops[-1]).span if ops else None,
                notes=[f"kernels run as {shown}"],
                help="--target python takes kernels in another order",
            )
        if stream is not None and op.operands[0] is not stream:
            fail(
                "cuda-graph",
                f"{_shown(op)} reads {op.operands[0]}, not what the kernel in front of it gives",
                op.span,
            )
        stream = op.results[0]
    return stream


def _shown_chain(wanted: Sequence[tuple[str, ...]]) -> str:
    return ", ".join(" or ".join(kinds) for kinds in wanted)


def _name(op: Op) -> str:
    return op.kernel if isinstance(op, graph.Fuse) else _LOOP


def _shown(op: Op) -> str:
    return f"a loop of {op.dim}" if isinstance(op, graph.Repeat) else _name(op)
