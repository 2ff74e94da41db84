"""What a device is to the compiler: the numbers of the PLMR model (WaferLLM section 3).

P: how many cores. L: what a hop and a routing stage cost. M: memory per core. R: how many routes,
queues and transfers at once. ``None`` for M or R means that the device does not limit it, which its
file says in words. A number that the device does not give is an error where it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from meshc.devices.axes import AxisNames, factors_of
from meshc.devices.keys import KEYS, KINDS, LINK, NUMBERS, Kind, Scalar, counts, ids, points
from meshc.devices.numbers import Number, Numbers
from meshc.support.diagnostics import fail


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
class Link:
    """How the cores of ``device`` are joined."""

    device: Numbers

    @property
    def topology(self) -> str:
        """``mesh`` (neighbours, hops add up), ``torus`` (the last core of a whole row or column is
        the first one's neighbour too) or ``all_to_all`` (one hop)."""
        return str(self.device.fact("topology"))

    @property
    def push(self) -> bool:
        """Whether data arrives in the receiver's memory, so that a send needs the receiver's slot
        to be free; otherwise it waits in a queue of ``Routing``."""
        return bool(self.device.fact("push"))

    @property
    def hop_cycles(self) -> float:
        """Cycles of one hop (alpha)."""
        return self.device.real("hop_cycles")

    @property
    def route_cycles(self) -> float:
        """Cycles to receive, combine and send again (beta)."""
        return self.device.real("route_cycles")

    @property
    def relay_cycles(self) -> float | None:
        """Cycles from a word's arrival at a core of a chain, which adds its own, to the sum's
        departure; None where a core has the whole message before it passes it on."""
        value = self.device.number("relay_cycles").value
        return None if value is None else float(value)

    @property
    def word_bytes(self) -> int:
        """Bytes of one message word."""
        return self.device.whole("word_bytes")

    @property
    def words_per_cycle(self) -> float:
        """Words that a link takes per cycle."""
        return self.device.real("words_per_cycle")


@dataclass(frozen=True)
class Device(Numbers):
    """One device. When the fact ``enforced`` is false, exceeding M or R is no error.

    ``kind`` is ``mesh`` (wafer), ``cluster`` (thread blocks of one GPU) or ``node`` (GPUs).
    ``memory_bytes`` is the whole memory of a core, of which ``reserved_bytes`` hold code and stack.
    ``read_bytes_per_second`` is what kernels reach of the bandwidth of global memory where at least
    ``bytes_in_flight`` are on their way to each core.

    The axes of a mesh may belong to different levels, such as the blocks of a cluster and the
    clusters of a GPU, each of which is joined in its own way. ``level_links`` has the facts and
    numbers of links (``LINK``) of every level but the innermost, whose are those of the device.
    """

    level_links: Mapping[str, Numbers] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.facts.get("name"), len(self.numbers)))

    def with_numbers(self, **values: int | float | str | None) -> Device:
        """This device with other values for some numbers, which are then assumed. None, or the word
        that a device file has for it such as ``unlimited``, stands for no number.

        Raises ``device-number`` for a name that is none of a number.
        """
        unknown = next((name for name in values if KEYS.get(name) not in NUMBERS), None)
        if unknown is not None:
            fail(
                "device-number",
                f"a device has no number '{unknown}'",
                help=f"its numbers are {', '.join(key.name for key in NUMBERS)}",
            )
        changed = {
            name: Number(None if value == KEYS[name].without else value, "assumed")
            for name, value in values.items()
        }
        return replace(self, numbers={**self.numbers, **changed})

    def watched(self) -> WatchedDevice:
        """This device, remembering which of its numbers are asked for."""
        return WatchedDevice(self.facts, self.numbers, self.sources, self.level_links)

    @property
    def unwatched(self) -> Device:
        """This device, remembering nothing."""
        return self

    def unlimited(self) -> Device:
        """This device where exceeding M or R is no error."""
        return replace(self, facts={**self.facts, "enforced": False})

    # --- what it is

    @property
    def name(self) -> str:
        """What ``--device`` calls it."""
        return str(self.fact("name"))

    @property
    def kind(self) -> str:
        """What a core is: ``mesh``, ``cluster`` or ``node``."""
        return str(self.fact("kind"))

    @property
    def description(self) -> str:
        """One line."""
        return str(self.fact("description"))

    @property
    def axes(self) -> AxisNames:
        """The names of a mesh's axes."""
        return AxisNames(*str(self.fact("axes")).split())

    def level(self, axis: str) -> str:
        """The level that ``axis``, one of a mesh's or a factor of one, belongs to."""
        return self._level_of.get(axis, self._level_of[self.axes.across])

    @cached_property
    def _level_of(self) -> dict[str, str]:
        """The level of each axis; one for all of them unless the device says which."""
        levels = str(self.facts.get("levels", " ".join(["device"] * 3))).split()
        return dict(zip(str(self.axes).split(), levels, strict=True))

    def along(self, axis: str) -> Device:
        """This device as messages along ``axis`` see it: with the links of its level."""
        own = self.level_links.get(self.level(axis)) if self.level_links else None
        if own is None:
            return self
        rest = {name: number for name, number in self.numbers.items() if name not in LINK}
        return replace(self, facts={**self.facts, **own.facts}, numbers={**rest, **own.numbers})

    def closes(self, axis: str, size: int) -> bool:
        """Whether ``size`` cores along ``axis``, perhaps as the one segment of a row, are a whole
        ring of a torus."""
        if self.along(axis).link.topology != "torus":
            return False
        across = self.axes.across
        columns = dict.fromkeys((across, factors_of(across)[1]), self.cores_x)
        return size == {**columns, self.axes.down: self.cores_y}.get(axis)

    def hops(self, axis: str, size: int, apart: int) -> int:
        """Hops between cores that are ``apart`` positions from each other, of ``size`` along
        ``axis``: on a ring the shorter way around."""
        return min(apart, size - apart) if self.closes(axis, size) else apart

    @property
    def default_dtype(self) -> str:
        """The element type when none is asked for."""
        return str(self.fact("default_dtype"))

    @property
    def csl_arch(self) -> str | None:
        """What the CSL compiler calls the architecture; None where it has no name for it."""
        return str(self.facts["csl_arch"]) if "csl_arch" in self.facts else None

    @property
    def cuda_arch(self) -> str:
        """What CUDA compilers call the architecture of its multiprocessors."""
        return str(self.fact("cuda_arch"))

    @property
    def bound_output_queues(self) -> bool:
        """Whether an output queue is bound to the one color that it sends on; otherwise each
        operation says on which color it sends."""
        return bool(self.fact("bound_output_queues"))

    @property
    def enforced(self) -> bool:
        """Whether exceeding M or R is an error."""
        return bool(self.fact("enforced"))

    # --- P

    @property
    def cores_x(self) -> int:
        """Most columns of a mesh."""
        return self.whole("cores_x")

    @property
    def cores_y(self) -> int:
        """Most rows of a mesh."""
        return self.whole("cores_y")

    @property
    def cores(self) -> int:
        """Cores in all: all columns and rows, where no smaller number is given."""
        return self.whole("cores") if "cores" in self.numbers else self.cores_x * self.cores_y

    @property
    def clock_hz(self) -> int:
        """Cycles per second."""
        return self.whole("clock_hz")

    def seconds(self, cycles: float) -> float:
        """Time of ``cycles`` at the device's clock."""
        return cycles / self.clock_hz

    @cached_property
    def clusters(self) -> Clusters | None:
        """Clusters of thread blocks; None for what is not a GPU of blocks."""
        if self.kind != "cluster":
            return None
        return Clusters(
            sizes=ids(str(self.value("cluster_sizes"))),
            domains=counts(str(self.value("cluster_domains"))),
            bytes_per_second=points(str(self.value("cluster_bytes_per_second"))),
            core_memory_bytes=self.whole("core_memory_bytes"),
            block_reserved_bytes=self.whole("block_reserved_bytes"),
            core_registers=self.whole("core_registers"),
        )

    # --- compute

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Element types the cores compute with."""
        suffix = "_macs_per_cycle"
        rates = (name.removesuffix(suffix) for name in self.numbers if name.endswith(suffix))
        return tuple(dtype for dtype in rates if dtype != "mixed")

    def macs(self, dtype: str, accumulate: str | None = None) -> float:
        """Multiply-accumulates per cycle of one core, ``accumulate`` being the type of the sum."""
        mixed = accumulate is not None and accumulate != dtype
        return self.real(f"{'mixed' if mixed else dtype}_macs_per_cycle")

    def lanes(self, dtype: str) -> float:
        """Elementwise operations per cycle of one core."""
        return self.real(f"{dtype}_lanes_per_cycle")

    @property
    def op_cycles(self) -> float:
        """Cycles to start one local vector operation."""
        return self.real("op_cycles")

    @property
    def vector_cycles(self) -> float:
        """Cycles to issue a vector instruction in a loop."""
        return self.real("vector_cycles")

    @property
    def scalar_cycles(self) -> float:
        """Cycles to fetch a scalar operand in a loop."""
        return self.real("scalar_cycles")

    @property
    def step_cycles(self) -> float:
        """Cycles of the loop and the task switch of a communication step."""
        return self.real("step_cycles")

    # --- L

    @property
    def link(self) -> Link:
        """The links between cores of the innermost level; ``along`` has those along an axis."""
        return Link(self)

    # --- M

    @property
    def memory_bytes(self) -> int | None:
        """Memory of a core; None when not limited."""
        return self.limit("memory_bytes")

    @property
    def reserved_bytes(self) -> int:
        """The part of a core's memory that holds code and stack."""
        return self.whole("reserved_bytes")

    @property
    def reserved_for(self) -> str:
        """What ``reserved_bytes`` are kept for: with CSL what ``report.json`` counts beside buffers
        once a program is emitted."""
        if self.csl_arch is None:
            return "code and stack"
        return "scratch, tables, variables, padding and code"

    @property
    def watts(self) -> float | None:
        """Power of all cores together while they compute; None where nobody says it."""
        return self.real("watts") if "watts" in self.numbers else None

    @property
    def data_bytes(self) -> int | None:
        """Bytes of a core's memory that buffers may take; None when not limited."""
        total = self.memory_bytes
        return None if total is None else total - self.reserved_bytes

    @property
    def room_bytes(self) -> int | None:
        """Bytes that buffers may take without an error; None when any number may."""
        return self.data_bytes if self.enforced else None

    @property
    def global_memory_bytes(self) -> int:
        """Memory that all cores share; 0 where there is none."""
        return self.whole("global_memory_bytes")

    @property
    def global_bytes_per_second(self) -> float:
        """Bandwidth of the memory that all cores share."""
        return self.real("global_bytes_per_second")

    @property
    def read_bytes_per_second(self) -> float:
        """What kernels reach of that bandwidth."""
        return self.real("read_bytes_per_second")

    @property
    def global_latency_cycles(self) -> float:
        """Cycles from asking the shared memory to its answer."""
        return self.real("global_latency_cycles")

    @property
    def bytes_in_flight(self) -> int:
        """Bytes on their way to each core that fill the bandwidth of the shared memory."""
        return self.whole("bytes_in_flight")

    @property
    def early_bytes_in_flight(self) -> int:
        """Bytes on their way to each core, of what it needs behind a meeting that is not over: as
        many as behind it, unless the device says otherwise."""
        name = "early_bytes_in_flight"
        return self.whole(name if name in self.numbers else "bytes_in_flight")

    # --- R

    def first(self, what: str) -> int:
        """The lowest number of ``input_queues`` or ``output_queues`` that programs may use."""
        return 0 if self.limit(what) is None else self.whole(f"reserved_{what}")

    def free(self, what: str) -> int | None:
        """How many ``colors``, ``input_queues`` or ``output_queues`` a program may use without an
        error; None when any number may be used."""
        total = self.limit(what) if self.enforced else None
        return None if total is None else total - self.whole(f"reserved_{what}")

    @cached_property
    def routing(self) -> Routing | None:
        """Colors, queues and tasks; None where routes are not limited."""
        colors = self.limit("colors")
        if colors is None:
            return None
        return Routing(
            colors=Resource(colors, tuple(range(colors - self.whole("reserved_colors")))),
            input_queues=self._low_reserved("input_queues"),
            output_queues=self._low_reserved("output_queues"),
            microthreads=self._low_reserved("microthreads"),
            task_ids=Resource(self.whole("task_ids"), ids(str(self.value("free_task_ids")))),
            input_queue_words=self.whole("input_queue_words"),
            output_queue_words=self.whole("output_queue_words"),
        )

    @property
    def switch_colors(self) -> tuple[int, ...]:
        """Colors of which a router has several switch positions."""
        return ids(str(self.value("switch_colors")))

    def _low_reserved(self, name: str) -> Resource:
        total, reserved = self.whole(name), self.whole(f"reserved_{name}")
        return Resource(total, tuple(range(reserved, total)))

    def flat(self) -> dict[str, Scalar | None]:
        """Facts and values by key, in the order of the keys."""
        values: dict[str, Scalar | None] = {**self.facts, "cores": self.cores}
        values |= {name: number.value for name, number in self.numbers.items()}
        found = {name: values[name] for name in KEYS if name in values}
        for level, own in self.level_links.items():
            found |= {f"{level}.{name}": fact for name, fact in own.facts.items()}
            found |= {f"{level}.{name}": number.value for name, number in own.numbers.items()}
        return found

    def every_number(self) -> dict[str, Number]:
        """Numbers by key; those of the links of a level behind its name and a dot."""
        found = dict(self.numbers)
        for level, own in self.level_links.items():
            found |= {f"{level}.{name}": number for name, number in own.numbers.items()}
        return found


@dataclass(frozen=True)
class WatchedDevice(Device):
    """A device that remembers which numbers were ``asked`` for, so that whoever prints what was
    computed from them can say how far to trust it."""

    asked: set[str] = field(default_factory=set, repr=False, compare=False)
    seen_from: str = ""

    __hash__ = Device.__hash__

    @cached_property
    def unwatched(self) -> Device:
        return Device(self.facts, self.numbers, self.sources, self.level_links)

    def along(self, axis: str) -> WatchedDevice:
        """This device as messages along ``axis`` see it; what is asked of it is remembered here."""
        level = self.level(axis)
        found = super().along(axis)
        assert isinstance(found, WatchedDevice)
        return replace(found, seen_from=f"{level}.") if level in self.level_links else found

    def number(self, name: str) -> Number:
        """The number ``name``, which is remembered."""
        self.asked.add(f"{self.seen_from if name in LINK else ''}{name}")
        return super().number(name)

    def inputs(self) -> dict[Kind, tuple[str, ...]]:
        """The numbers that were asked for by their kind, in the order of the keys."""
        found = {
            kind: tuple(
                name
                for name, number in self.every_number().items()
                if number.kind == kind and name in self.asked
            )
            for kind in KINDS
        }
        return {kind: names for kind, names in found.items() if names}
