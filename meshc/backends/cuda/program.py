"""A decode step as data: kernels, buffers, how weights are packed, launches in order.

What is written into ``manifest.json`` and read back to run a compiled directory.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from meshc.backends.cuda.gpu_shares import NodeShare, RankShare
from meshc.backends.cuda.launches import Launch, Stage
from meshc.backends.cuda.queues import Overlap
from meshc.ir.codes import CODE_FORMATS
from meshc.ir.types import DType
from meshc.support.declared_values import declared
from meshc.support.diagnostics import fail

FORMAT = 18

_MOST_COUNT = 2**31 - 1  # of what a launch has
CHUNK_UNIT, MOST_CHUNK = 8, 512
"""Tokens that kernels of many tokens read at once: whole units of them, and the most of ranks."""

KERNELS, TASKS, LONG, SECOND = "chunk", "prompt", "long_prompt", "second"
"""What buffers of kernels of many tokens at once are called after, those of a kernel of tasks and
of one of more tokens, and those of the second half of a chunk."""
INPUTS = KERNELS, TASKS, LONG

OWNERS, AHEAD_OF = "owners", "ahead_of"
"""What a run is told of each token of a batch of tokens of any requests: which one it is of, and
how many tokens of that one stand in front of it."""

REACHED = ("symmetric", "words", "signals", "counters")
"""Roles of buffers that GPUs reach of each other."""


def numbered(name: str, place: int) -> str:
    """What is called ``name`` at ``place``, from 0 on: ``qkv``, ``qkv_2``, ``qkv_3``."""
    return name if place == 0 else f"{name}_{place + 1}"


@dataclass(frozen=True)
class Kernel:
    """A kernel of ``file``; ``shared`` names the parts of its shared memory, [offset, bytes]. One
    that ``meets`` runs on the GPUs of all ranks at the same time. The blocks of one of a
    ``whole_grid`` wait for each other, so all are resident; it has ``blocks`` of them at the most,
    and any smaller number gives the same, down to ``least_blocks``, but for the order of sums where
    left sides of products come through the ring. ``meetings`` is how often GPUs of all ranks meet
    in the step of one that is made of tasks."""

    file: str
    blocks: int
    threads: int
    cluster: int
    shared_bytes: int
    shared: dict[str, tuple[int, int]]
    meets: bool = False
    whole_grid: bool = False
    least_blocks: int = 1
    meetings: int = 0

    def __post_init__(self) -> None:
        shape = self.blocks, self.threads, self.cluster, self.shared_bytes
        if not all(0 <= one <= _MOST_COUNT for one in (*shape, self.least_blocks, self.meetings)):
            raise ValueError(f"no kernel has {self.blocks} blocks of {self.threads} threads")


@dataclass(frozen=True)
class Buffer:
    """Memory of the device. ``role``: input (the host writes it), output (the host reads it),
    state (kept from step to step), scratch, constant, rows (what layers hand on, where a run passes
    some of them and the host keeps these between runs), or, of ranks, symmetric (GPUs reach that of
    each other), words (symmetric, with tags), signals (symmetric, zeros between launches) or
    counters (symmetric, which only grow). ``dtype``: f32, i32 or a 16-bit type."""

    dtype: str
    shape: tuple[int, ...]
    role: str

    @property
    def bytes(self) -> int:
        """Bytes of the whole buffer."""
        return DType(self.dtype).bytes * math.prod(self.shape)


@dataclass(frozen=True)
class Gathered:
    """How a tensor lies along ``lanes`` of these ``extents``: ``element`` has an affine expression
    in one lane for each dim of the tensor, the index there. What lies outside of it is 0."""

    lanes: tuple[str, ...]
    extents: tuple[int, ...]
    element: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.lanes) != len(self.extents) or any(n < 1 for n in self.extents):
            raise ValueError(f"lanes {self.lanes!r} have no extents")


@dataclass(frozen=True)
class Weight:
    """A packed weight: ``sources`` are logical tensors of the shapes ``source_shapes``, ``pack``
    says how they are laid out.

    ``layers`` is the number of stacked layers, 0 for a tensor that all share; ``paired`` names
    the sources whose lanes are to be put in the order of interleaved rotary pairs, in runs of
    ``run`` lanes, or all of them. ``fragments``: a matrix in the order of tensor cores
    (packing.in_fragments), whose groups, blocks, lanes and values end ``shape``.

    Packed for ``tasks`` each source is ``gathered``; of a matrix in fragments each group has
    ``rows`` rows of every source, those of the same number side by side.

    A matrix that stays quantised in the format ``codes`` (:data:`meshc.ir.codes.CODE_FORMATS`) lies
    as packing.codes says, in words of 16 bits that end ``shape`` behind groups and blocks; it is
    multiplied as values of ``dtype``. Its sources are the codes of each weight, then what there is
    of each once for a group of them, part by part.
    """

    dtype: str
    pack: str
    sources: tuple[str, ...]
    source_shapes: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]
    layers: int = 0
    paired: tuple[str, ...] = ()
    fragments: bool = False
    run: int = 0
    gathered: tuple[Gathered, ...] = ()
    rows: int = 0
    codes: str = ""

    @property
    def bytes(self) -> int:
        """Bytes of the packed weight, all layers together."""
        return DType(self.dtype).bytes * math.prod(self.shape) * max(self.layers, 1)


@dataclass(frozen=True)
class Prefill:
    """How a prompt is read of which ``least`` tokens or more are left: the launches for up to
    ``tokens`` tokens of one request, over the same weights and caches as a decode step.

    They take all columns, of which some may hold no token, so that they do not depend on how many
    there are. Without ``after`` there are no logits, and a decode step reads the last token of a
    prompt. Buffers that are called after ``inputs``, such as ``chunk``, are written by the host:
    ``chunk_tokens`` [tokens], -1 for none or, without logits, the last one again, ``chunk_cached``
    [tokens], those before each, ``chunk_pages`` [1, pages] and ``chunk_count`` [1], the tokens
    there are; it reads ``chunk_logits`` [1, vocabulary]. With an ``overlap`` some chunks, also of
    more tokens, are read in two halves on two streams.
    """

    inputs: str
    tokens: int
    least: int
    before: tuple[Launch, ...]
    stages: tuple[Stage, ...]
    after: tuple[Launch, ...]
    overlap: Overlap | None = None

    def __post_init__(self) -> None:
        if self.inputs not in INPUTS or not 1 <= self.least <= self.tokens:
            raise ValueError(f"no prompts are read {self.tokens} tokens at once by '{self.inputs}'")

    @property
    def gives_logits(self) -> bool:
        """Whether there are logits behind the last token of a chunk."""
        return bool(self.after)

    def launches(self, logits: bool) -> list[tuple[Launch, int]]:
        """Every launch for a chunk, with its layer within its stage; those that give logits where
        they are wanted."""
        return _in_order(self.before, self.stages, self.after if logits else ())

    def every_launch(self) -> list[Launch]:
        """Those of one piece, of a layer of each kind, and those of two halves."""
        found = [*self.before, *(one for s in self.stages for one in s.launches), *self.after]
        return found + ([] if self.overlap is None else self.overlap.every_launch())

    def piece(self, left: int) -> tuple[int, int]:
        """How many of the ``left`` tokens of a prompt are read next, and how many of them in the
        first of two halves, 0 for none."""
        most = left if self.overlap is None else min(left, self.overlap.tokens)
        at = 0 if self.overlap is None else self.overlap.cut_of(most)
        return (min(most, at + self.tokens), at) if at else (min(left, self.tokens), 0)


@dataclass(frozen=True)
class Target:
    """The GPU that a program is for: its ``name``, what compilers call the architecture of its
    machine code (``arch``, such as ``sm_90a``), its multiprocessors, and the bytes of shared memory
    that a block may have."""

    name: str
    arch: str
    multiprocessors: int
    block_bytes: int

    def __post_init__(self) -> None:
        if re.fullmatch(r"sm_[1-9]\d{1,2}[af]?", self.arch) is None:
            raise ValueError(f"there is no architecture {self.arch!r}")
        if self.multiprocessors < 1 or self.block_bytes < 1:
            raise ValueError("a device has whole numbers of multiprocessors and bytes")

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability of devices that run the machine code."""
        digits = "".join(filter(str.isdigit, self.arch))
        return int(digits[:-1]), int(digits[-1])


@dataclass(frozen=True)
class StepProgram:
    """A decode step: ``before``, the layers of all ``stages``, one after the other, ``after``.

    ``frequencies`` are the angles by which pairs of lanes turn from position to position, once for
    each pair of tables ``cosines`` and ``sines``, ``cosines_2`` and ``sines_2`` and so on: stages
    whose angles are equal share a pair. Of ``prefills``, each of which asks for fewer tokens than
    those in front of it, the first that asks for no more than are left reads the next ones of a
    prompt, and where none does a decode step reads one. With ``ranks`` it is the program of each of
    several GPUs, with ``nodes`` that of GPUs that have some of the layers each.

    With ``choice`` the program chooses tokens itself: a launch behind those of a step, with the row
    of ``chosen`` [steps, batch] as one more argument, where it leaves the token of each request, -1
    for one that goes on no more, -2 where its logits have no largest number that is finite. It
    leaves in ``tokens`` and ``cached`` what the next step reads. The host writes ``left`` [batch],
    how many tokens are still to come, ``ends``, those that end a text, -1 for none, and of each
    request ``settings`` and ``stream`` [batch, 4], how its tokens are drawn
    (:class:`meshc.ir.ops.graph.Draw`).
    """

    model: str
    device: Target
    batch: int
    capacity: int
    vocabulary: int
    page: int
    frequencies: tuple[tuple[float, ...], ...]
    kernels: dict[str, Kernel]
    buffers: dict[str, Buffer]
    weights: dict[str, Weight]
    before: tuple[Launch, ...]
    stages: tuple[Stage, ...]
    after: tuple[Launch, ...]
    prefills: tuple[Prefill, ...] = ()
    ranks: RankShare | None = None
    choice: Launch | None = None
    nodes: NodeShare | None = None

    def to_json(self) -> str:
        """The text of ``manifest.json``."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"

    @property
    def columns(self) -> int:
        """Tokens of a request that a step reads: its next one, and drafts behind it. Of ``tokens``,
        ``cached`` and ``logits`` those of a request stand together; one where a step :attr:`mixes`
        tokens."""
        return 1 if self.mixes else self.tokens // self.batch

    @property
    def tokens(self) -> int:
        """Tokens of all requests that a step reads."""
        return self.buffers["tokens"].shape[0]

    @property
    def mixes(self) -> bool:
        """Whether a step reads any tokens of any requests, and is told which are whose."""
        return OWNERS in self.buffers

    @property
    def alone(self) -> bool:
        """Whether one GPU runs it, whose steps read a token of each request."""
        of_one = self.ranks is None and self.nodes is None
        return of_one and self.columns == 1 and not self.mixes

    @property
    def capacity_pages(self) -> int:
        """Pages of the cache of one request."""
        return -(-self.capacity // self.page)

    @property
    def pages(self) -> int:
        """Pages of the caches of all requests together."""
        found = (b.shape[-4] for b in self.buffers.values() if b.role == "state")
        return next(found, 0)

    @property
    def layers(self) -> int:
        """Layers of all stages."""
        return sum(stage.layers for stage in self.stages)

    @property
    def meetings(self) -> int:
        """How often GPUs of all ranks meet in a step: in launches that all run together, and within
        a step that is made of tasks."""
        met = (self.kernels[launch.kernel] for launch, _ in self.launches())
        return sum(kernel.meetings or kernel.meets for kernel in met)

    def launches(self) -> list[tuple[Launch, int]]:
        """Every launch of a step, with its layer within its stage."""
        return _in_order(self.before, self.stages, self.after)

    @property
    def most_steps(self) -> int:
        """Steps whose tokens the program chooses in one launch at the most."""
        return 0 if self.choice is None else self.buffers["chosen"].shape[0]

    def chosen_launches(self, steps: int) -> list[tuple[Launch, int]]:
        """Every launch of so many steps, one behind the other, whose tokens the program chooses."""
        assert self.choice is not None
        kernel, arguments, step = self.choice.kernel, self.choice.arguments, self.launches()
        rows = (Launch(kernel, (*arguments, row)) for row in range(steps))
        return [launch for chosen in rows for launch in (*step, (chosen, 0))]

    def reader(self, left: int, logits: bool = True) -> Prefill | None:
        """What reads the next of the ``left`` tokens of a prompt, of which one without logits
        leaves the last one to a step where these are wanted; None for a step."""
        for one in self.prefills:
            if left - (logits and not one.gives_logits) >= one.least:
                return one
        return None


def _in_order(
    before: Sequence[Launch], stages: Sequence[Stage], after: Sequence[Launch]
) -> list[tuple[Launch, int]]:
    found = [(launch, 0) for launch in before]
    for stage in stages:
        for n in range(stage.layers):
            found += [(launch, n) for launch in stage.launches]
    return found + [(launch, 0) for launch in after]


def from_json(text: str) -> StepProgram:
    """The program of a ``manifest.json``. Raises ``no-program`` for what is none, and for that of
    another version of meshc."""
    try:
        found = json.loads(text)
        if (version := found.pop("format")) != FORMAT:
            _refuse_version(found, version)
        program = declared(StepProgram, found)
        _check_codes(program)
        _check_positions(program)
        _check_blocks(program)
        _check_choice(program)
        return program
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        fail("no-program", f"the manifest describes no decode step: {problem}")


def _refuse_version(found: Mapping[str, Any], version: object) -> NoReturn:
    model = found.get("model")
    called = f"of '{model[:80]}' " if isinstance(model, str) else ""
    given = version if type(version) is int else "none that is known"
    fail(
        "no-program",
        f"the manifest {called}has format {given}, and this version of meshc reads format {FORMAT}",
        help="compile the model again; kernels and how they are launched belong to one version",
    )


def _check_codes(program: StepProgram) -> None:
    """Weights that stay quantised have a format that the library reads."""
    for weight in program.weights.values():
        if (weight.pack == "codes") != (weight.codes in CODE_FORMATS):
            raise ValueError(f"no weight stays quantised in {weight.codes!r}")


def _check_blocks(program: StepProgram) -> None:
    """Blocks of all kernels have room on the device."""
    for name, kernel in program.kernels.items():
        if kernel.shared_bytes > program.device.block_bytes:
            raise ValueError(
                f"kernel '{name}' has {kernel.shared_bytes} bytes of shared memory in a block, and "
                f"{program.device.name} gives it {program.device.block_bytes}"
            )


def _check_choice(program: StepProgram) -> None:
    """A choice has the buffers that the host writes and reads."""
    if program.choice is None:
        return
    found = {name: program.buffers[name].shape for name in ("chosen", "ends")}
    wanted = {"left": (), "settings": (4,), "stream": (4,)}
    rows = program.tokens if program.mixes else program.batch
    sound = len(found["ends"]) == 1 and found["chosen"][1:] == (rows,)
    if not sound or any(
        program.buffers[name].shape != (rows, *rest) for name, rest in wanted.items()
    ):
        raise ValueError(f"what is chosen is not of {rows} requests")


def _check_positions(program: StepProgram) -> None:
    """Kernels look positions up in tables without asking how long these are."""
    rows = {"pages": program.capacity_pages, "cosines": program.capacity, "sines": program.capacity}
    for name, buffer in program.buffers.items():
        of_step = name
        for inputs in (*INPUTS, SECOND):
            of_step = of_step.removeprefix(f"{inputs}_")
        table = of_step.partition("_")[0]
        if table in rows and buffer.shape[-1 if table == "pages" else 0] != rows[table]:
            raise ValueError(f"'{name}' is of other positions than the {program.capacity} kept")
