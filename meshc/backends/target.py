"""A target: all that the driver, the command line and manifests ask about programs of one kind."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from meshc.backends import registry
from meshc.backends.cuda.paged import PagedModel
from meshc.backends.host_protocols import Backend, Host, Loading
from meshc.backends.hosts import PythonHost
from meshc.backends.python.host_file import HostFacts
from meshc.backends.request import USUAL_TARGET, CompileRequest, Rules
from meshc.backends.target_options import MeshOptions
from meshc.devices import Device, device
from meshc.ir.core import Op
from meshc.ir.module import Module, Scalar
from meshc.ir.printer import print_module
from meshc.passes.base import Pass
from meshc.passes.instruments import Instrument
from meshc.support.diagnostics import (
    Diagnostic,
    Diagnostics,
    InternalError,
    MeshcError,
    fail,
    in_each,
)
from meshc.verify.shared_state import check_shared_state

NO_ROOM = frozenset({"does-not-fit", "csl-memory-full"})
"""Codes of refusals for want of memory."""

Cure = tuple[str, CompileRequest]
"""Flags, in words, and the request with them."""
Engine = PythonHost | PagedModel
"""A language model that serves."""
OpLines = Mapping[Op, Sequence[tuple[int, int]]]
"""First and last line of each stretch of a file that an op became."""


@dataclass(frozen=True)
class Work:
    """A compile whose program is to be written: the modules ``given`` to the passes, by phase, and
    ``lowered``, which gives what the passes leave of one; what the ``host`` must know. ``graph``
    gives the graph of any phase of the model as the passes are given it, None where there is no
    such phase. Of a ``trial`` no more is asked than whether there is a program. What passes leave
    of one that nobody will run need not be ``verified``. ``instruments`` are told what happens."""

    request: CompileRequest
    model: str
    given: Mapping[str, Module]
    lowered: Callable[[str], Module]
    graph: Callable[[str], Module | None]
    host: HostFacts
    report: Diagnostics
    instruments: Sequence[Instrument] = ()
    trial: bool = False
    verified: bool = True

    def modules(self) -> dict[str, Module]:
        """What the passes leave of all phases. Raises InternalError where these do not agree on
        what they keep."""
        found = in_each(self.given, self.lowered)
        try:
            check_shared_state(found)
        except MeshcError as error:
            raise InternalError(str(error), "", print_module([*found.values()][-1])) from error
        return found

    def tell_of_writing(self) -> None:
        """Tell instruments that files are written now."""
        mesh = self.request.options_of(MeshOptions).mesh
        words = f"writing {self.request.target} for {mesh} and counting its cycles"
        for instrument in self.instruments:
            instrument.behind(words)


@dataclass(frozen=True)
class Written:
    """A program: its modules by phase and the text of each of its files. ``prompts`` are the tasks
    of kernels that read chunks of prompts, of a program for GPUs that has such, by the names of
    these, those that read more tokens at once first."""

    modules: dict[str, Module]
    files: dict[str, str]
    prompts: Mapping[str, Module] = field(default_factory=dict)


class Target(Rules):
    """A target. The facts are those of a program of lockstep cores that nothing runs."""

    USUAL_TYPE: ClassVar[tuple[str, str] | None] = None
    """The element type of programs and why, None for the device's own."""
    ON_MESH: ClassVar[bool] = True
    """Whether programs are of a mesh of cores."""
    BACKENDS: ClassVar[tuple[str, ...]] = ()
    """What runs programs here, the usual one first."""
    SERVES: ClassVar[bool] = False
    """Whether programs may serve requests as they come."""
    SUFFIX: ClassVar[str] = ""
    """How names of files end that phases become."""
    ONE_REQUEST: ClassVar[bool] = False
    """Whether programs of prompts and of steps are kept apart, one at a time on the cores, and the
    passes make a step of all requests of that of one."""
    CHECKS_LENGTHS: ClassVar[bool] = False
    """Whether the host looks whether prompts are as long as those that a program is right for."""
    FITS_MESH: ClassVar[bool] = False
    """Whether ``run`` looks for the smallest mesh where none is asked for."""
    FOLLOWED: ClassVar[bool] = False
    """Whether what runs a program tells what happens on each core."""
    ALONE: ClassVar[bool] = False
    """Whether a directory may hold all that a program needs, without meshc."""
    PACKS: ClassVar[bool] = False
    """Whether weights are packed as they are loaded, and kept so for the next run."""

    def made_for(self, device: Device) -> bool:
        """Whether programs run on ``device`` itself."""
        return False

    def phases(
        self, model: str, known: tuple[str, ...], request: CompileRequest
    ) -> tuple[str, ...]:
        """Which phases of ``model``, of those that are ``known``, are compiled. Raises
        ``bad-phase``."""
        if request.phase == "both":
            return known
        if request.phase not in known:
            fail("bad-phase", f"'{model}' has no phase '{request.phase}'")
        return (request.phase,)

    def steps_instead(self, request: CompileRequest, refusal: Diagnostic) -> bool:
        """Whether a model whose prompts are refused is its decode step, which reads them too.
        Raises where one program for both was asked for."""
        return False

    def streams(self, request: CompileRequest) -> bool:
        """Whether weights that stay quantised are decoded on their way from a memory that all cores
        share: more formats then, and for prompts too."""
        return False

    def shared_policy(self, request: CompileRequest) -> bool:
        """Whether phases have to agree on caches and regions of a mesh."""
        return self.ON_MESH and self.level(request) != "graph"

    def graph_options(self, request: CompileRequest, seq: int) -> dict[str, Scalar]:
        """Options of the graph of a model with caches of ``seq`` tokens that its programs read."""
        return {}

    def drafts(self, request: CompileRequest) -> int:
        """How many drafts of each request a step of the program verifies at the most."""
        return 0

    def served_by_passes(self) -> bool:
        """Whether passes let a graph read prompts in chunks where it serves."""
        return self.ON_MESH

    @abstractmethod
    def passes(
        self, module: Module, request: CompileRequest, settings: dict[str, str]
    ) -> list[Pass]:
        """The passes from ``module`` to the level where they end, which ``settings`` are for."""

    @contextmanager
    def opened(self, name: str) -> Iterator[Backend]:
        """What runs programs: the one of ``BACKENDS`` with that name, or the usual one."""
        yield Backend(name or self.BACKENDS[0])

    def load(self, loading: Loading) -> Host:
        """The language model of a program with its weights, ready to generate."""
        raise NotImplementedError(f"nothing runs programs for {self.NAME}")

    def load_engine(self, loading: Loading) -> Engine:
        """The same of a program that was compiled to serve."""
        raise NotImplementedError(f"programs for {self.NAME} do not serve")

    @abstractmethod
    def write(self, work: Work) -> Written:
        """The program. Raises what refuses it."""

    def lines_of(self, request: CompileRequest, module: Module, text: str) -> OpLines | None:
        """Which lines of the file ``text``, that was asked for so, ops of ``module`` became; None
        where nobody knows."""
        return None

    def stem(self, phase: str) -> str:
        """What the file of a phase is called, without its suffix."""
        return phase

    def cures(self, request: CompileRequest) -> Iterator[Cure]:
        """What may have room where ``request`` has none, to be tried in this order."""
        return iter(())

    def whose(self, request: CompileRequest) -> str:
        """A note of a refusal for want of memory: for whom the program is; nothing where that is
        plain."""
        return ""


def check_read_by_chunks(request: CompileRequest, found: Diagnostics) -> None:
    """Add an error where chunks are asked for of steps, which read a prompt token by token."""
    if request.chunk is not None and request.phase == "decode":
        words = "steps of decoding read a prompt token by token"
        found.error("bad-argument", f"--chunk is {request.chunk}, but {words}")


def target_named(name: str) -> Target:
    """The target called ``name``. Raises ``bad-argument`` and ``bad-plugin``."""
    found = registry.found_target(name)
    if not isinstance(found, Target):
        known = ", ".join(registry.target_names())
        fail("bad-argument", f"--target cannot be '{name}'", help=f"it is one of {known}")
    return found


def target_for(device: Device) -> str:
    """The target that is meant where only a device is named: the one made for it, else the usual
    one, whose programs compute with its numbers."""
    fitting = (name for name in registry.OWN if target_named(name).made_for(device))
    return next(fitting, USUAL_TARGET)


def usual_target(where: str, compile_to: str = "") -> str:
    """The target of a compile that names none: that for the device ``where``, if one is named and a
    program is made. Raises what :func:`meshc.devices.device` does."""
    return target_for(device(where)) if where and not compile_to else USUAL_TARGET


def target_of(request: CompileRequest) -> Target:
    """The target of ``request``. Raises as :func:`target_named`."""
    return target_named(request.target)
