"""What is gathered for a chunk of a prompt while its graph is read: kernels, weights, buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from meshc.analysis.cuda.blocks import FRAGMENT
from meshc.backends.cuda.kernels.arena import Arena
from meshc.backends.cuda.launches import Launch, Stage
from meshc.backends.cuda.program import KERNELS, Buffer, Kernel, Weight, numbered
from meshc.devices import Device
from meshc.ir.core import tensor_type
from meshc.ir.module import Module


@dataclass(frozen=True)
class Launches:
    """What a chunk launches before its layers, in the layers of each stage, and behind them."""

    before: tuple[Launch, ...]
    stages: tuple[Stage, ...]
    after: tuple[Launch, ...]


@dataclass
class Chunk:
    """The kernels, buffers, weights and launches for up to ``tokens`` tokens of one request, each
    weight read once, gathered while the fused graph ``module`` of a decode step is read. Weights
    and caches are those of the step as well."""

    module: Module
    page: int
    dtype: str
    transport: str  # of collectives of ranks
    tokens: int
    budget: int = 0  # multiprocessors of collectives beside other kernels; 0 where they run alone
    texts: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    stage: int = 0  # whose layers are read
    layers: int = 0  # of that stage; 0 outside of layers
    frequencies: list[tuple[float, ...]] = field(default_factory=list)
    within_budget: dict[str, str] = field(default_factory=dict)  # kernels of as many blocks
    caches: dict[str, str] = field(default_factory=dict)  # by names in the model

    @property
    def device(self) -> Device:
        """The GPU that the kernels are for."""
        return self.module.the_device()

    @property
    def pages(self) -> int:
        """Pages of a request."""
        return -(-self.module.capacity // self.page)

    def own(self, name: str) -> str:
        """The name of a kernel or buffer, which decode steps do not share."""
        return f"{KERNELS}_{name}"

    def of_stage(self, name: str) -> str:
        """The name, in the program, of what the stage that is read calls ``name``."""
        return numbered(name, self.stage)

    def add_kernel(
        self,
        name: str,
        text: Callable[[str], str],
        blocks: int,
        arena: Arena,
        threads: int,
        meets: bool = False,
        cluster: int = 1,
    ) -> str:
        """Add a kernel in a file of its own, with its map of shared memory; its name.

        Stages share a kernel whose ``text`` is the same; another one gets a number.
        """
        shared = {part.name.lower(): (part.at, part.bytes) for part in arena.parts}
        for place in count():
            own = numbered(name, place)
            file, written = f"{own}.cu", text(own)
            made = Kernel(file, blocks, threads, cluster, arena.bytes, shared, meets)
            known = self.kernels.setdefault(own, made)
            if known == made and self.texts.setdefault(file, written) == written:
                break
        return own

    def add_weight(
        self, name: str, pack: str, sources: Iterable[str], shape: tuple[int, ...]
    ) -> str:
        """A weight of the layers of a stage, or of the model, in the order ``pack`` names: the
        argument that stands for it."""
        self.weights[self.of_stage(name)] = self._weight(pack, sources, shape)
        return self._argument(name)

    def add_matrix(
        self, name: str, pack: str, sources: Iterable[str], shape: tuple[int, ...]
    ) -> str:
        """Matrices [.., rows, width] in the order of tensor cores; see :meth:`add_weight`."""
        *lead, rows, width = shape
        blocks = (*lead, -(-rows // FRAGMENT), -(-width // FRAGMENT), 32, 8)
        self.weights[self.of_stage(name)] = replace(
            self._weight(pack, sources, blocks), fragments=True
        )
        return self._argument(name)

    def add_cache(self, name: str, heads: int, lanes: int, sources: Sequence[str]) -> str:
        """Add a cache of all requests for each layer of a stage; the argument that stands for it.
        It is that ``sources`` of the model; rows of heads are swizzled."""
        self.caches |= dict.fromkeys(sources, self.of_stage(name))
        pages = self.module.dims.get("B", 1) * self.pages
        shape = self.layers, pages, heads, self.page, lanes
        self.buffers[self.of_stage(name)] = Buffer(self.dtype, shape, "state")
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

    def add_inputs(self) -> None:
        """What the host gives: tokens, how many there are, lengths and pages."""
        self.buffers |= {
            self.own("count"): Buffer("i32", (1,), "input"),
            self.own("tokens"): Buffer("i32", (self.tokens,), "input"),
            self.own("cached"): Buffer("i32", (self.tokens,), "input"),
            self.own("pages"): Buffer("i32", (1, self.pages), "input"),
        }

    def _argument(self, name: str) -> str:
        return f"{self.of_stage(name)}[]" if self.layers else name

    def _weight(self, pack: str, sources: Iterable[str], shape: tuple[int, ...]) -> Weight:
        named = tuple(sources)
        types = {p.value.name: tensor_type(p.value) for p in self.module.function.params}
        given = tuple(types[name].shape(self.module.dims) for name in named)
        pairs = self.module.paired
        paired = tuple(name for name in named if name in pairs)
        run = max((pairs[name].run for name in paired), default=0)
        return Weight(self.dtype, pack, named, given, shape, self.layers, paired, run=run)
