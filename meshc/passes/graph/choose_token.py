"""choose-token: the program chooses the next token, of which the host gets the number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.ir.core import Block, tensor_type
from meshc.ir.module import Function, Module, Param
from meshc.ir.ops import graph
from meshc.ir.rewriter import Rewriter
from meshc.ir.types import DType, TensorType
from meshc.ir.values import Value
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, fail


@dataclass(frozen=True)
class ChooseToken(Pass):
    """Put the choice of the largest logit behind the logits of a decode step.

    The step then gives, in the place of a logit for each token of the vocabulary, the number of the
    most likely one, of equal ones the first, as a whole number in f32 (``graph.arg_max``). Logits
    are the first result, whose last dim is the vocabulary of the table of embeddings.

    Before::

        %logits = graph.matmul %x, %lm_head {contract = [E]} : f32[B, L, V]
        graph.return %logits, %keys, %values

    After::

        %logits = graph.matmul %x, %lm_head {contract = [E]} : f32[B, L, V]
        %token = graph.arg_max %logits {dim = V} : f32[B, L]
        graph.return %token, %keys, %values

    With ``alone`` nothing is left but the choice, a program of its own: its inputs are the logits
    that another one gives, and for each request how a token is drawn by them (``graph.draw``).

    A module that is no decode step of a language model is an error, ``unsupported-op``.
    """

    NAME: ClassVar[str] = "choose-token"
    LEVELS: ClassVar[tuple[str, ...]] = ("graph",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    alone: bool = False

    def run(self, module: Module, report: Diagnostics) -> Module:
        ending = module.function.body.ops[-1]
        results = ending.tensors()
        vocabularies = {op.dim for op in module.walk() if isinstance(op, graph.Embed)}
        dims = tensor_type(results[0]).dims if results else ()
        if module.option("phase", "decode") != "decode" or not {*dims[-1:]} & vocabularies:
            fail(
                "unsupported-op",
                f"'{module.name}' gives no logits to choose a token by",
                ending.span,
                help="choose-token is for decode steps, whose first result has a number for each "
                "row of the table of embeddings",
            )
        if self.alone:
            return _alone(module, tensor_type(results[0]))
        rewriter = Rewriter(module)
        (token,) = rewriter.before(ending).add(graph.ArgMax([results[0]], dim=dims[-1]), "token")
        ending.operands = [token, *results[1:]]
        module.function.result_types[0] = token.type
        return module


def _alone(step: Module, logits: TensorType) -> Module:
    """The choice among ``logits``, which the decode step ``step`` gives."""
    *rows, words = logits.dims
    count = next(d for d in ("C", "settings") if d not in step.dims)
    given = Value("logits", TensorType(DType.F32, logits.dims))
    settings = Value("settings", TensorType(DType.F32, (*rows, count)))
    stream = Value("stream", TensorType(DType.I32, (*rows, count)))
    chosen = graph.Draw([given, settings, stream], dim=words)
    chosen.results = [Value("token", TensorType(DType.F32, tuple(rows)))]
    params = [Param(value, "in") for value in (given, settings, stream)]
    body = Block(ops=[chosen, graph.Return([chosen.result])])
    return Module(
        f"{step.name}_choice",
        "graph",
        dims={dim: step.dims[dim] for dim in logits.dims} | {count: graph.DRAW_WORDS},
        options=dict(step.options),
        device=step.device,
        functions=[Function("decode", params, [chosen.result.type], body)],
    )
