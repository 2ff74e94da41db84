"""What is gathered for a step's program while its graph is read: kernels, weights, buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from meshc.analysis.blocks import FRAGMENT
from meshc.backends.cuda.kernels import rows
from meshc.backends.cuda.kernels.arena import Arena
from meshc.backends.cuda.kernels.tiles import FirstReads
from meshc.backends.cuda.program import Buffer, Kernel, Weight
from meshc.ir.core import tensor_type
from meshc.ir.module import Module


@dataclass
class Step:
    """What is gathered while the graph is read."""

    module: Module
    page: int
    cores: int
    dtype: str
    chunk: int = 0  # tokens of one request whose columns products share; 0 for a decode step
    texts: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    first_reads: dict[str, FirstReads | None] = field(default_factory=dict)
    renderers: dict[str, Callable[[FirstReads], str]] = field(default_factory=dict)
    frequencies: tuple[float, ...] = ()
    shared_products: list[rows.RowsProduct] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """Requests of a decode step."""
        return self.module.dims.get("B", 1)

    @property
    def batch(self) -> int:
        """Requests whose attention a launch computes."""
        return 1 if self.chunk else self.requests

    @property
    def columns(self) -> int:
        """Vectors of a product with weights."""
        return self.chunk or self.requests

    def own(self, name: str) -> str:
        """A kernel or buffer of this step."""
        return f"chunk_{name}" if self.chunk else name

    def row(self, name: str) -> str:
        """Of a buffer with a row for each column, what attention and logits take."""
        return f"chunk_{name}[t]" if self.chunk else name

    def shared(self, name: str) -> str:
        """A kernel for one request, which chunks and decode steps of one request share."""
        return self.own(name) if self.requests > 1 else name

    def paired(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those weights whose lanes the graph has in the order of pairs."""
        return tuple(name for name in names if name in self.module.paired)

    def add_kernel(
        self,
        name: str,
        text: str,
        blocks: int,
        cluster: int,
        arena: Arena,
        threads: int,
        dsmem_bytes: int = 0,
    ) -> None:
        """A kernel in a file of its own, with its map of shared memory."""
        shared = {part.name.lower(): (part.at, part.bytes) for part in arena.parts}
        file = f"{name}.cu"
        self.texts[file] = text
        self.kernels[name] = Kernel(
            file, blocks, threads, cluster, arena.bytes, shared, dsmem_bytes
        )

    def add_weight(
        self,
        name: str,
        pack: str,
        sources: Iterable[str],
        shape: tuple[int, ...],
        layers: int,
        parts: int = 1,
    ) -> None:
        """A weight of ``layers`` layers (0: of the model) in the order ``pack`` names."""
        self.weights[name] = self._weight(pack, sources, shape, layers, parts)

    def add_matrix(
        self,
        name: str,
        pack: str,
        sources: Iterable[str],
        shape: tuple[int, ...],
        layers: int,
        parts: int = 1,
    ) -> None:
        """Matrices [.., rows, width] in the order of tensor cores; see :meth:`add_weight`."""
        *lead, rows, width = shape
        blocks = (*lead, -(-rows // FRAGMENT), -(-width // FRAGMENT), 32, 8)
        made = self._weight(pack, sources, blocks, layers, parts)
        self.weights[name] = replace(made, fragments=True)

    def _weight(
        self, pack: str, sources: Iterable[str], shape: tuple[int, ...], layers: int, parts: int
    ) -> Weight:
        named = tuple(sources)
        types = {p.value.name: tensor_type(p.value) for p in self.module.function.params}
        given = tuple(types[name].shape(self.module.dims) for name in named)
        return Weight(self.dtype, pack, named, given, shape, layers, self.paired(named), parts)

    def add_fixed_buffers(self) -> None:
        """What the host gives: tokens, lengths, pages and angles."""
        capacity, pairs = self.module.capacity, len(self.frequencies)
        self.buffers |= {
            self.own("tokens"): Buffer("i32", (self.columns,), "input"),
            self.own("cached"): Buffer("i32", (self.columns,), "input"),
            self.own("pages"): Buffer("i32", (self.batch, -(-capacity // self.page)), "input"),
            "cosines": Buffer("f32", (capacity, pairs), "constant"),
            "sines": Buffer("f32", (capacity, pairs), "constant"),
        }
