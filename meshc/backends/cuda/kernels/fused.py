"""A fused op as who emits its kernel reads it: operands by their names, and the ops of its body."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, TypeVar

from meshc.backends.cuda.chunk import Chunk
from meshc.backends.cuda.launches import Launch
from meshc.ir.core import Op, Operand, tensor_type
from meshc.ir.ops import graph
from meshc.ir.values import Value
from meshc.support.diagnostics import fail

OpType = TypeVar("OpType", bound=Op)

_NORMED_HERE = ("residual", "norm")


class Fused:
    """A fused op. ``outer`` says which parameter of the model each value outside is."""

    def __init__(self, op: graph.Fuse, outer: Mapping[Value, str]) -> None:
        self.op = op
        (block,) = op.regions
        self._ops = block.ops
        self._inside = dict(zip(op.takes, block.args, strict=True))
        self._outside = dict(zip(op.takes, op.operands, strict=True))
        self._tensors = {
            name: outer.get(operand, "")
            for name, operand in self._outside.items()
            if isinstance(operand, Value)
        }

    def takes(self, name: str) -> bool:
        """Whether it has the operand ``name``."""
        return name in self._outside

    def tensors(self, *names: str) -> tuple[str, ...]:
        """The model's tensors that are these operands, those that there are."""
        return tuple(self._tensors[name] for name in names if name in self._tensors)

    def dims(self, name: str) -> tuple[str, ...]:
        """Dims of the operand ``name``."""
        return tensor_type(self._outside[name]).dims

    def all(self, kind: type[OpType]) -> list[OpType]:
        """Ops of a kind, in order."""
        return [op for op in self._ops if isinstance(op, kind)]

    def reader(self, name: str, kind: type[OpType]) -> OpType:
        """The first op of a kind that reads the operand ``name``."""
        return self.readers(self._inside[name], kind)[0]

    def factor_of(self, value: Operand) -> float:
        """The constant by which ``value`` of the body was multiplied last, or 1."""
        return next((op.factor for op in self.all(graph.Scale) if op.result is value), 1.0)

    def factor_behind(self, op: Op) -> float:
        """The constant by which what ``op`` gives is multiplied, behind its bias if it has one,
        or 1."""
        (value,) = op.results
        for add in self.readers(value, graph.Add):
            value = add.result if add.operands[1] in self._inside.values() else value
        return next((scale.factor for scale in self.readers(value, graph.Scale)), 1.0)

    def entry(self) -> tuple[str, float]:
        """The dim over which what it reads is normed, and epsilon; 0 where ranks have normed it
        together, in front of it."""
        if self.takes("normed"):
            (dim,) = self.reader("normed", graph.Matmul).contract
            return dim, 0.0
        norm = self.reader("norm", graph.RmsNorm)
        return norm.dim, norm.eps

    def readers(self, value: Value, kind: type[OpType]) -> list[OpType]:
        """Ops of a kind that read ``value`` of the body."""
        return [op for op in self.all(kind) if value in op.operands]

    def check_dims(self, name: str, dims: tuple[str, ...], ranks: set[int]) -> None:
        """Raise ``cuda-shape`` for a weight over other dims or in another order than it is packed
        in; its dims are as many as one of ``ranks``."""
        if self.dims(name) != dims or len(dims) not in ranks:
            fail(
                "cuda-shape",
                f"weight {self._outside[name]} of the {self.op.kernel} is over "
                f"{list(self.dims(name))}, in whose order it is not packed",
                self.op.span,
                help="hidden before heads before lanes, as in the library's models",
            )


class FusedKernel(ABC):
    """What a fused op ``NAME`` is launched as.

    ``TAKES`` are the names of the operands that it has, ``MAY_TAKE`` of those that it may have:
    what the pattern of fuse-chunk calls them. ``PARTIAL`` is whether it may leave a
    rank's part of a sum. ``GAIN`` is what the gain of the norm that it begins with is called when
    it is packed; of ranks, that norm stands in front of it, and it takes what is ``normed``.
    """

    NAME: ClassVar[str]
    TAKES: ClassVar[tuple[str, ...]]
    MAY_TAKE: ClassVar[tuple[str, ...]] = ()
    PARTIAL: ClassVar[bool] = False
    GAIN: ClassVar[str] = ""

    @abstractmethod
    def launches(self, chunk: Chunk, fused: Fused) -> list[Launch]:
        """Its launches for all tokens of a chunk of a prompt, each weight read once; kernels,
        weights and buffers are added to ``chunk``.

        Raises ``cuda-shape`` for weights in another order, ``DoesNotFit`` where there is no
        such kernel.
        """

    def check_operands(self, op: graph.Fuse) -> None:
        """Raise ``cuda-graph`` for operands of other names, and for a part of a sum over ranks
        where there is no such kernel."""
        if op.partial and not self.PARTIAL:
            fail("cuda-graph", f"{self.NAME} gives no part of a sum over ranks", op.span)
        wanted = self.TAKES
        if self.GAIN and "normed" in op.takes:
            wanted = ("normed", *(name for name in wanted if name not in _NORMED_HERE))
        missing = [name for name in wanted if name not in op.takes]
        unknown = [name for name in op.takes if name not in (*wanted, *self.MAY_TAKE)]
        if missing or unknown:
            words = [f"no operand {', '.join(missing)}"] if missing else []
            words += [f"an operand {', '.join(unknown)} that it does not know"] if unknown else []
            fail("cuda-graph", f"{self.NAME} is given {' and '.join(words)}", op.span)
