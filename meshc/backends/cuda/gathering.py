"""What is gathered for a step's program while its graph is read: kernels, weights, buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from meshc.analysis.cuda.blocks import FRAGMENT
from meshc.backends.cuda.kernels.arena import Arena
from meshc.backends.cuda.kernels.tiles import FirstReads
from meshc.backends.cuda.launches import Launch, Stage
from meshc.backends.cuda.program import Buffer, Kernel, Weight, numbered
from meshc.devices import Device
from meshc.ir.core import tensor_type
from meshc.ir.module import Module


@dataclass(frozen=True)
class Launches:
    """What a step launches before its layers, in the layers of each stage, and behind them."""

    before: tuple[Launch, ...]
    stages: tuple[Stage, ...]
    after: tuple[Launch, ...]


@dataclass
class Step:
    """The kernels, buffers, weights and launches of a step, gathered while its graph is read."""

    module: Module
    page: int
    dtype: str
    transport: str = "multimem"  # of collectives of ranks
    chunk: int = 0  # tokens of one request whose columns products share; 0 for a decode step
    tiled: bool = False  # whether such a chunk is many tokens, whose kernels are chunk_launches
    budget: int = 0  # multiprocessors of collectives beside other kernels; 0 where they run alone
    texts: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    stage: int = 0  # whose layers are read
    layers: int = 0  # of that stage; 0 outside of layers
    first_reads: dict[Launch, tuple[str, FirstReads]] = field(default_factory=dict)
    renderers: dict[str, Callable[[FirstReads], str]] = field(default_factory=dict)
    frequencies: list[tuple[float, ...]] = field(default_factory=list)
    of_columns: list[Callable[[int], object]] = field(default_factory=list)
    within_budget: dict[str, str] = field(default_factory=dict)  # kernels of as many blocks
    caches: dict[str, str] = field(default_factory=dict)  # swizzled ones, by names in the model

    @property
    def device(self) -> Device:
        """The GPU that the step is for."""
        return self.module.the_device()

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
        """The name of a kernel or buffer that chunks and decode steps do not share."""
        return f"chunk_{name}" if self.chunk else name

    def row(self, name: str) -> str:
        """The argument for a buffer with a row for each column in a launch that is, in a chunk, for
        one token: the row of that token."""
        return f"chunk_{name}[t]" if self.chunk else name

    def shared(self, name: str) -> str:
        """The name of a kernel for one request, which chunks share with steps of one request."""
        return self.own(name) if self.requests > 1 else name

    def of_stage(self, name: str) -> str:
        """The name, in the program, of what the stage that is read calls ``name``."""
        return numbered(name, self.stage)

    def paired(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of the weights ``names`` whose lanes the graph has in the order of rotary pairs."""
        return tuple(name for name in names if name in self.module.paired)

    def run(self, names: Iterable[str]) -> int:
        """Into runs of how many lanes the order of rotary pairs goes in the weights ``names``; 0
        where it is over all lanes of a head."""
        pairs = self.module.paired
        return max((pairs[name].run for name in names if name in pairs), default=0)

    def add_kernel(
        self,
        name: str,
        text: Callable[[str], str],
        blocks: int,
        cluster: int,
        arena: Arena,
        threads: int,
        dsmem_bytes: int = 0,
        meets: bool = False,
        whole_grid: bool = False,
    ) -> str:
        """Add a kernel in a file of its own, with its map of shared memory; its name.

        Stages share a kernel whose ``text`` is the same; another one gets a number.
        """
        shared = {part.name.lower(): (part.at, part.bytes) for part in arena.parts}
        for place in count():
            own = numbered(name, place)
            file, written = f"{own}.cu", text(own)
            made = Kernel(
                file, blocks, threads, cluster, arena.bytes, shared, dsmem_bytes, meets, whole_grid
            )
            known = self.kernels.setdefault(own, made)
            if known == made and self.texts.setdefault(file, written) == written:
                break
        return own

    def reads_first(self, launch: Launch, weight: str, first: FirstReads | None) -> None:
        """Note that ``launch`` begins with reading ``first`` of its argument ``weight``."""
        if first is not None:
            self.first_reads[launch] = weight, first

    def add_weight(
        self,
        name: str,
        pack: str,
        sources: Iterable[str],
        shape: tuple[int, ...],
        parts: int = 1,
    ) -> str:
        """A weight of the layers of a stage, or of the model, in the order ``pack`` names: the
        argument that stands for it."""
        self.weights[self.of_stage(name)] = self._weight(pack, sources, shape, parts)
        return self._argument(name)

    def add_matrix(
        self,
        name: str,
        pack: str,
        sources: Iterable[str],
        shape: tuple[int, ...],
        parts: int = 1,
    ) -> str:
        """Matrices [.., rows, width] in the order of tensor cores; see :meth:`add_weight`."""
        *lead, rows, width = shape
        blocks = (*lead, -(-rows // FRAGMENT), -(-width // FRAGMENT), 32, 8)
        made = self._weight(pack, sources, blocks, parts)
        self.weights[self.of_stage(name)] = replace(made, fragments=True)
        return self._argument(name)

    def add_cache(self, name: str, shape: tuple[int, ...], sources: Sequence[str] = ()) -> str:
        """Add a cache of ``shape`` for each layer of a stage; the argument that stands for it. It
        is that ``sources`` of the model, rows of whole heads swizzled; there are none for a cache
        in an order of its own."""
        self.caches |= dict.fromkeys(sources, self.of_stage(name))
        self.buffers[self.of_stage(name)] = Buffer(self.dtype, (self.layers, *shape), "state")
        return self._argument(name)

    def add_angles(self, frequencies: tuple[float, ...]) -> tuple[str, str]:
        """Tables of cosines and sines, which stages with the same ``frequencies`` share."""
        if frequencies not in self.frequencies:
            self.frequencies.append(frequencies)
        place = self.frequencies.index(frequencies)
        shape = self.module.capacity, len(frequencies)
        names = numbered("cosines", place), numbered("sines", place)
        for name in names:
            self.buffers[name] = Buffer("f32", shape, "constant")
        return names

    def _argument(self, name: str) -> str:
        return f"{self.of_stage(name)}[]" if self.layers else name

    def _weight(
        self, pack: str, sources: Iterable[str], shape: tuple[int, ...], parts: int
    ) -> Weight:
        named = tuple(sources)
        types = {p.value.name: tensor_type(p.value) for p in self.module.function.params}
        given = tuple(types[name].shape(self.module.dims) for name in named)
        paired, run = self.paired(named), self.run(named)
        return Weight(self.dtype, pack, named, given, shape, self.layers, paired, parts, run=run)

    def add_fixed_buffers(self) -> None:
        """What the host gives: tokens, lengths and pages."""
        capacity = self.module.capacity
        if self.tiled:
            self.buffers[self.own("count")] = Buffer("i32", (1,), "input")
        self.buffers |= {
            self.own("tokens"): Buffer("i32", (self.columns,), "input"),
            self.own("cached"): Buffer("i32", (self.columns,), "input"),
            self.own("pages"): Buffer("i32", (self.batch, -(-capacity // self.page)), "input"),
        }
