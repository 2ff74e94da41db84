"""Modules: what one phase of a model is at one level, with all that a later pass needs.

The header carries dims, run-time scalars, rows and attention, options, the device and the mesh, so
that a dump taken between any two passes can be read back and the rest of the pipeline run on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from meshc.devices import WAFER, AxisNames, Device
from meshc.ir.affine import AffineMap, Cond, Expr
from meshc.ir.core import Block, Op
from meshc.ir.mesh import Mesh
from meshc.ir.ranks import Ranks
from meshc.ir.rows import Attention, Paired, Rows, TokenPart
from meshc.ir.types import BufferType, DType, TensorType, Type
from meshc.ir.values import Value
from meshc.support.diagnostics import fail
from meshc.support.spans import Span

Level = Literal["graph", "mesh", "tile", "task"]
Role = Literal["in", "weight", "state", "out"]
Scalar = int | float | bool | str

LEVELS: tuple[Level, ...] = ("graph", "mesh", "tile", "task")
MACHINE_LEVELS: tuple[Level, ...] = ("tile", "task")
"""Levels of programs on buffers of a machine, instead of functions on tensors over named dims."""

RESOURCES = ("tasks", "scratch", "tables", "words")
"""Sections of the header that say what a program of a target takes of a core, numbers by name."""


@dataclass(frozen=True)
class Param:
    """A function parameter: its value and whether it is input, constant weight or kept state."""

    value: Value
    role: Role


@dataclass(eq=False)
class Function:
    """One entry of a graph- or mesh-level module. The body ends in a ``return`` op."""

    name: str
    params: list[Param]
    result_types: list[Type]
    body: Block


@dataclass(eq=False)
class Buffer:
    """Memory of every core, at the task level of the GPU. ``role`` is empty for scratch;
    ``address`` is set by plan-memory, for CSL programs anew by plan-csl-memory. With ``kept``
    there is memory for so many indices of the first dim, which lie over each other modulo that
    number (fold-scratch). With ``tags`` so many low bits of each word of f32 say which of the
    values is there that lie in it one after the other, in this run and in those before: values are
    rounded to the bits that are left, to the nearest finite one. With ``cluster``, a dim and an
    extent, each cluster of blocks has memory of its own, and in it so much of that dim, in the same
    way as versions (fuse-cluster). With ``ranks``, the number of a dim that counts them, GPUs of
    all ranks have what any of them gives, each in memory of its own; one gives what has its number
    in that dim. Memory that is ``coded`` has floats of that type, and for each row of the last dim
    a scale (:mod:`meshc.ir.coded_rows`); elements are the numbers that these stand for."""

    value: Value
    role: Role | Literal[""] = ""
    address: int | None = None
    kept: int | None = None
    tags: int | None = None
    cluster: tuple[int, int] | None = None
    ranks: int | None = None
    coded: DType | None = None

    @property
    def type(self) -> BufferType:
        """Element type and extents per core."""
        assert isinstance(self.value.type, BufferType)
        return self.value.type


@dataclass(eq=False)
class Channel:
    """A FIFO between core sets, named by its geometry and shared by all transfers of that route.

    ``route`` maps the sending core to the core (or, when ``multicast``, the cores) that receive.
    With ``turns`` all cores of a line send to others on it, each ``turns`` messages when its turn
    comes, in the order of their positions and then from the first again; messages arrive in the
    order of turns, whenever they were sent.
    ``send_color`` and ``recv_color`` give each core its color; ``queue`` is the input queue.
    Colors and queues are set by allocate-routes, queues of CSL programs anew by assign-csl-queues.
    """

    name: str
    route: AffineMap
    multicast: bool = False
    turns: int = 0
    send_color: str = ""
    recv_color: str = ""
    queue: int | None = None
    output_queue: int | None = None


@dataclass(eq=False)
class Port:
    """How a logical tensor and a buffer correspond, lane by lane and core by core.

    ``lanes`` name the buffer's dims; ``lets`` bind helper expressions in order; ``element`` gives,
    for each dim of the tensor, the logical index that the lane holds. Expressions use core
    coordinates, lanes, lets and the mesh's coordinate functions. Lanes where ``where`` is false
    are not this port's: another port may fill them, and for an output another core is read. A
    lane of its own whose element lies outside the tensor is padding and holds ``pad``, as does a
    lane that no port fills.
    """

    name: str
    direction: Literal["in", "out"]
    tensor: TensorType
    buffer: Value
    lanes: tuple[str, ...]
    lets: tuple[tuple[str, Expr], ...]
    element: tuple[Expr, ...]
    where: Cond | None = None
    pad: float = 0.0


@dataclass(eq=False)
class Program:
    """The statement list of one phase, each statement under its guard."""

    name: str
    body: Block


@dataclass(eq=False, repr=False)
class Module:
    """A phase of a model at one level; ``holds`` are the facts that have been checked.

    ``multiples`` says of which number a run-time scalar is always a multiple, where that is not 1.
    ``constants`` are vectors known at compile time (such as the frequencies of RoPE); the in-port
    of the same name loads them. ``rows`` is None where nothing has rows of tokens; ``attention``
    has an entry for each kind of attention over cached keys; ``ranks`` is None where one machine
    runs all of a graph or of a program of tasks; ``token_parts`` are dims of parts of the tokens of
    a batch; ``paired`` names weights of the model whose lanes of a dim are taken in the order 0,
    D/2, 1, D/2 + 1, .., perhaps in runs (canonicalize). ``resources`` are what the program of a
    target takes of a core besides, numbers by name in sections that passes for that target write
    (:mod:`meshc.analysis.csl.resources`). ``places`` says where sections of the header and
    declarations stand in the text that it was read from.
    """

    name: str
    level: Level
    dims: dict[str, int] = field(default_factory=dict)
    scalars: dict[str, tuple[int, int]] = field(default_factory=dict)
    options: dict[str, Scalar] = field(default_factory=dict)
    rows: Rows | None = None
    attention: tuple[Attention, ...] = ()
    paired: dict[str, Paired] = field(default_factory=dict)
    device: Device | None = None
    mesh: Mesh | None = None
    ranks: Ranks | None = None
    token_parts: tuple[TokenPart, ...] = ()
    holds: set[str] = field(default_factory=set)
    functions: list[Function] = field(default_factory=list)
    constants: dict[str, tuple[float, ...]] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    ports: list[Port] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)
    resources: dict[str, dict[str, int]] = field(default_factory=dict)
    multiples: dict[str, int] = field(default_factory=dict)
    places: dict[str, Span] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        ops = sum(1 for _ in self.walk())
        return f"<Module @{self.name}: {self.level} level, {ops} ops>"

    def walk(self) -> Iterator[Op]:
        """Every op of every function and program, in text order."""
        for block in self.blocks():
            yield from block.walk()

    def blocks(self) -> list[Block]:
        """The top blocks of functions and programs."""
        return [f.body for f in self.functions] + [p.body for p in self.programs]

    @property
    def function(self) -> Function:
        """The only function (graph and mesh level)."""
        (only,) = self.functions
        return only

    @property
    def program(self) -> Program:
        """The only program (tile level)."""
        (only,) = self.programs
        return only

    def channel(self, name: str) -> Channel:
        """The channel called ``name``."""
        return next(c for c in self.channels if c.name == name)

    def the_mesh(self) -> Mesh:
        """The mesh, for levels that have one."""
        if self.mesh is None:
            raise ValueError(f"module '{self.name}' has no mesh")
        return self.mesh

    @property
    def axes(self) -> AxisNames:
        """The names that the device gives to axes of a mesh; without one those of a wafer."""
        return WAFER if self.device is None else self.device.axes

    def the_device(self) -> Device:
        """The device, for who needs its numbers. Raises ``device-number`` when none is named."""
        if self.device is None:
            fail(
                "device-number",
                f"module '{self.name}' names no device, whose numbers are needed here",
                help="add the section 'device' that 'meshc compile MODEL --compile-to graph' "
                "prints; 'meshc compile' takes --device instead",
            )
        return self.device

    def reaches_all(self, axis: str) -> bool:
        """Whether the cores along ``axis`` reach each other at once, past no others; not known of a
        module without a device."""
        return self.device is not None and self.device.along(axis).link.topology == "all_to_all"

    @property
    def row_dim(self) -> str:
        """The dim that counts rows of tokens; empty where nothing has rows."""
        return "" if self.rows is None else self.rows.dim

    @property
    def capacity(self) -> int:
        """The most rows of tokens that are ever known: the length of the caches, if there are any;
        1 where nothing has rows."""
        return 1 if self.rows is None else self.dims[self.rows.capacity]

    def option(self, name: str, default: Scalar) -> Scalar:
        """The option ``name``, or ``default``."""
        return self.options.get(name, default)

    def dtype(self) -> DType:
        """Element type of activations and weights in core memory."""
        return DType(str(self.option("dtype", "f32")))

    def stored(self, kind: DType) -> DType:
        """Element type of weights and caches of type ``kind`` in core memory: floats wider than
        those of :meth:`dtype` are rounded to these."""
        return self.dtype() if kind.floats and kind.bits > self.dtype().bits else kind

    def accumulate(self) -> DType:
        """Element type of partial sums."""
        return DType(str(self.option("accumulate", "f32")))
