"""batch-tokens: a decode step becomes one of tokens of any requests, of prompts as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.ir.batch import BATCH, OWNER, POSITION, REQUEST
from meshc.ir.builder import Names
from meshc.ir.core import Block, Op, tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import batches, graph
from meshc.ir.types import TensorType
from meshc.ir.values import Value
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, fail

_ENDS = (graph.Yield, graph.Return)


@dataclass(frozen=True)
class BatchTokens(Pass):
    """Let a step work on ``tokens`` tokens of up to ``requests`` requests.

    A token stands for itself: beside its position (the run-time scalar ``pos``, one for each token)
    a run says its ``owner``, the request whose caches it reads and extends. Some tokens may be the
    next ones of requests that decode, others chunks of prompts, which come in the order of their
    positions: what is new of all tokens is cached before any is attended, and each sees the keys up
    to its own position. Tokens at position -1 are absent.

    Before::

        %grown = graph.append %cache_k, %k_r {dim = S, rows = L} : f32[B, S, G, D]
        %s = graph.matmul %q_r, %grown {contract = [D], group = [H, G]} : f32[B, L, H, S]

    After::

        %grown = graph.append_tokens %cache_k, %k_r {dim = S, rows = L, ...
        %grown_own = graph.token_caches %grown {requests = requests, tokens = B} : f32[B, S, G, D]
        %s = graph.matmul %q_r, %grown_own {contract = [D], group = [H, G]} : f32[B, L, H, S]

    Anything but a decode step whose inputs and caches have the dim B is an error,
    ``unsupported-batch``.
    """

    NAME: ClassVar[str] = "batch-tokens"
    LEVELS: ClassVar[tuple[str, ...]] = ("graph",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    tokens: int = 8
    requests: int = 4

    def run(self, module: Module, report: Diagnostics) -> Module:
        for name in ("tokens", "requests"):
            if getattr(self, name) < 1:
                fail("bad-option", f"{name} of batch-tokens is {getattr(self, name)}")
        _check(module)
        dim = "requests"
        while dim in module.dims:
            dim += "_1"
        module.dims |= {BATCH: self.tokens, dim: self.requests}
        module.scalars[POSITION] = (-1, module.scalars[POSITION][1])
        module.scalars[OWNER] = (0, self.requests - 1)
        _Caches(module, dim).run()
        return module


def _check(module: Module) -> None:
    """Fail with ``unsupported-batch`` where ``module`` is no decode step of a batch."""
    rows = module.dims.get(module.row_dim, 1)
    why = ""
    if POSITION not in module.scalars or REQUEST in module.scalars or rows != 1:
        why = "it is no decode step"
    elif OWNER in module.scalars:
        why = "it works on tokens of any requests already"
    elif any(isinstance(op, graph.Fuse) for op in module.walk()):
        why = "it has fused ops"
    for param in module.function.params:
        if not why and param.role != "weight" and BATCH not in tensor_type(param.value).dims:
            why = f"{param.value} has no dim {BATCH}"
    if why:
        fail(
            "unsupported-batch",
            f"'{module.name}' does not become a step of tokens of any requests: {why}",
            help="batch-tokens takes the phase decode of a model that knows requests",
        )


class _Caches:
    """Gives caches a place for each request, and each token that of its owner."""

    def __init__(self, module: Module, dim: str) -> None:
        self.module = module
        self.dim = dim
        self.names = Names.of(module)
        self.caches = {p.value for p in module.function.params if p.role == "state"}

    def run(self) -> None:
        for cache in self.caches:
            self.retype(cache)
        function = self.module.function
        self.block(function.body)
        function.result_types = [value.type for value in function.body.ops[-1].tensors()]

    def retype(self, value: Value) -> None:
        """``value``, a cache, has requests where it had those of a batch."""
        kind = tensor_type(value)
        dims = tuple(self.dim if d == BATCH else d for d in kind.dims)
        value.type = TensorType(kind.dtype, dims)
        self.caches.add(value)

    def block(self, block: Block) -> None:
        """Rewrite the ops of ``block``; whoever reads a cache reads those of the tokens' owners."""
        ops: list[Op] = []
        own: dict[Value, Value] = {}
        for op in block.ops:
            if isinstance(op, graph.Repeat):
                self.repeat(op)
            elif isinstance(op, graph.Append):
                op = self.append(op)
            elif not isinstance(op, _ENDS):
                for cache in (v for v in op.tensors() if v in self.caches and v not in own):
                    taken = batches.TokenCaches([cache], requests=self.dim, tokens=BATCH)
                    (kind,) = taken.infer(self.module.dims) or []
                    own[cache] = Value(self.names.fresh(f"{cache.name}_own"), kind)
                    taken.results = [own[cache]]
                    ops.append(taken)
                op.operands = [own.get(value, value) for value in op.tensors()]
            ops.append(op)
        block.ops = ops

    def append(self, op: graph.Append) -> Op:
        """What a step appends, token by token."""
        made = batches.AppendTokens(
            [*op.operands],
            op.results,
            dim=op.dim,
            rows=op.rows,
            coded=op.coded,
            requests=self.dim,
            tokens=BATCH,
        )
        made.span = op.span
        self.retype(op.result)
        return made

    def repeat(self, op: graph.Repeat) -> None:
        """Slices of caches are caches, as is what their layers collect."""
        (body,) = op.regions
        for argument, value in zip(body.args, op.tensors(), strict=True):
            if value in self.caches:
                self.retype(argument)
        self.block(body)
        for result, value in zip(op.results, body.ops[-1].tensors(), strict=True):
            if value in self.caches:
                self.retype(result)
