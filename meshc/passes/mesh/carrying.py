"""Values from before the layers that are read behind them, where layers are dealt to regions.

What precedes a loop over layers has its meaning in the first region, what follows it in the last.
Caches stay in the region whose rows they hold.
"""

from __future__ import annotations

from meshc.ir.builder import Names
from meshc.ir.core import Op, tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import mesh
from meshc.ir.values import Value
from meshc.support.diagnostics import fail


def carry_through(module: Module) -> None:
    """Let the loop over layers carry every value that is needed behind it, unchanged.

    A cache that the module returns is kept where it is. Raises ``several-loops`` where there is not
    one loop, and ``unsupported-op`` where an op behind it reads a cache in front of it.
    """
    ops = module.function.body.ops
    loops = [op for op in ops if isinstance(op, mesh.Repeat)]
    if len(loops) != 1:
        fail(
            "several-loops",
            f"layers are dealt to {module.the_mesh().regions} regions where one loop holds all of "
            f"them, but there are {len(loops)} loops",
            loops[1].span if loops else None,
            help="use a mesh that holds all layers at once, or write the layers as one repeat",
        )
    (loop,) = loops
    at = ops.index(loop)
    known, caches = _made_before(module, ops[:at]), _caches(ops[:at])
    reads = [(op, v) for op in ops[at + 1 :] for v in op.tensors() if v in known]
    for op, value in reads:
        if value in caches and not isinstance(op, mesh.Return):
            fail(
                "unsupported-op",
                f"{op.NAME} behind the loop over {loop.dim} reads the cache '{value.name}', which "
                f"lies in the first of {module.the_mesh().regions} regions",
                op.span,
                help="give the layers one region",
            )
    for value in dict.fromkeys(v for _, v in reads if v not in caches):
        _carry(module, loop, ops[at + 1 :], value)


def _caches(ops: list[Op]) -> set[Value]:
    """What appends among ``ops`` leave in caches."""
    return {v for op in ops if isinstance(op, mesh.Append) for v in op.results}


def _made_before(module: Module, ops: list[Op]) -> set[Value]:
    """Results of ``ops`` and the inputs with rows of tokens; the host places all others where they
    are used."""
    inputs = (p.value for p in module.function.params if p.role == "in")
    return {v for op in ops for v in op.results} | {
        v for v in inputs if not module.row_dim or module.row_dim in tensor_type(v).dims
    }


def _carry(module: Module, loop: mesh.Repeat, later: list[Op], value: Value) -> None:
    """One more carried value of ``loop``; ``later`` ops read what comes out of it."""
    names, (body,) = Names.of(module), loop.regions
    inner, outer = (Value(names.fresh(value.name), value.type) for _ in range(2))
    at = loop.carried
    loop.operands.insert(at, value)
    body.args.insert(at, inner)
    body.ops[-1].operands.insert(at, inner)
    loop.results.insert(at, outer)
    loop.carried += 1
    for op in later:
        op.operands = [outer if operand is value else operand for operand in op.operands]
