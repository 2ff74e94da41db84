"""What a device is to the compiler: the numbers of the PLMR model (WaferLLM section 3).

P: how many cores. L: what a hop and a routing stage cost. M: memory per core. R: how many routes,
queues and transfers at once. ``None`` for M or R means that the device does not limit it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Number = int | float | str | bool


@dataclass(frozen=True)
class Link:
    """How cores are joined: ``mesh`` (neighbours, hops add up) or ``all_to_all`` (one hop).

    ``relay_cycles``: from a word's arrival at a core of a chain, which adds its own, to the sum's
    departure; None where a core has the whole message before it passes it on.

    ``push``: data arrives in the receiver's memory, so a send needs the receiver's slot to be
    free; otherwise it waits in a queue of ``Routing``.
    """

    topology: str
    hop_cycles: float
    route_cycles: float
    word_bytes: int
    words_per_cycle: float
    relay_cycles: float | None = None
    push: bool = False


@dataclass(frozen=True)
class Resource:
    """A numbered hardware resource of one core or router; ``free`` ids are left to programs."""

    total: int
    free: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many are free."""
        return len(self.free)


@dataclass(frozen=True)
class Routing:
    """The R of PLMR. Queue depths in words are the smallest among the free queues."""

    colors: Resource
    input_queues: Resource
    output_queues: Resource
    microthreads: Resource
    task_ids: Resource
    input_queue_words: int
    output_queue_words: int


@dataclass(frozen=True)
class Clusters:
    """Thread-block clusters of a GPU, whose cores are its multiprocessors.

    ``sizes`` are the numbers of blocks a cluster may have. All blocks of a cluster lie on one of
    the ``domains`` (cores of each GPC). ``bytes_per_second`` of all links between blocks together
    is known at some cluster sizes. Blocks share the ``core_memory_bytes`` and ``core_registers``
    (of 32 bits) of a core; each block takes ``block_reserved_bytes`` beside its own.
    """

    sizes: tuple[int, ...]
    domains: tuple[int, ...]
    bytes_per_second: tuple[tuple[int, float], ...]
    core_memory_bytes: int
    block_reserved_bytes: int
    core_registers: int


@dataclass(frozen=True)
class Device:
    """One device. ``numbers`` is its flat form: what its TOML file says, and what the header of a
    module carries. When ``enforced`` is false, exceeding M or R is no error.

    ``kind`` is ``mesh`` (wafer), ``cluster`` (thread blocks of one GPU) or ``node`` (GPUs).
    ``memory_bytes`` is the whole memory of a core, of which ``reserved_bytes`` hold code and stack.
    ``read_bytes_per_second`` is what kernels reach of the bandwidth of global memory where at least
    ``bytes_in_flight`` are on their way to each core.
    ``macs_per_cycle`` of one core is keyed by dtype; ``mixed`` is half-width factors into f32.
    """

    name: str
    kind: str
    description: str
    cores_x: int
    cores_y: int
    cores: int
    clock_hz: int
    link: Link
    default_dtype: str
    macs_per_cycle: dict[str, float] = field(hash=False)
    lanes_per_cycle: dict[str, float] = field(hash=False)
    op_cycles: float
    vector_cycles: float
    scalar_cycles: float
    step_cycles: float
    memory_bytes: int | None = None
    reserved_bytes: int = 0
    routing: Routing | None = None
    global_memory_bytes: int = 0
    global_bytes_per_second: float = 0.0
    read_bytes_per_second: float = 0.0
    global_latency_cycles: float = 0.0
    bytes_in_flight: int = 0
    clusters: Clusters | None = None
    enforced: bool = True
    numbers: dict[str, Number] = field(default_factory=dict, repr=False, compare=False)

    @property
    def data_bytes(self) -> int | None:
        """Bytes of a core's memory that buffers may take; None when not limited."""
        return None if self.memory_bytes is None else self.memory_bytes - self.reserved_bytes

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Element types the cores compute with."""
        return tuple(d for d in self.macs_per_cycle if d != "mixed")

    def macs(self, dtype: str, accumulate: str | None = None) -> float:
        """Multiply-accumulates per cycle of one core, ``accumulate`` being the type of the sum."""
        mixed = accumulate is not None and accumulate != dtype
        if mixed and "mixed" in self.macs_per_cycle:
            return self.macs_per_cycle["mixed"]
        return self.macs_per_cycle.get(dtype, self.macs_per_cycle[self.default_dtype])

    def lanes(self, dtype: str) -> float:
        """Elementwise operations per cycle of one core."""
        return self.lanes_per_cycle.get(dtype, self.lanes_per_cycle[self.default_dtype])

    def seconds(self, cycles: float) -> float:
        """Time of ``cycles`` at the device's clock."""
        return cycles / self.clock_hz
