"""A configuration of a model on a device, and what it gives: the plan of ``meshc estimate``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from meshc.backends.request import CompileRequest
from meshc.backends.target_options import MeshOptions
from meshc.cost.terms import MECHANISMS
from meshc.driver.models import LoadedModel
from meshc.driver.planning.gpus import GpuPhases, phase_on_gpus
from meshc.driver.planning.node_phases import NodePhases, phase_on_node
from meshc.driver.planning.plan_answers import PhasePlan
from meshc.driver.planning.wafers import MeshPhase, phase_on_mesh
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.support.diagnostics import InternalError, MeshcError

FAULT = "a fault of meshc"
"""How the reason of a configuration begins that breaks the compiler."""


@dataclass(frozen=True)
class Configuration:
    """What is set: a ``mesh`` as ``--mesh`` takes it, with its regions where more than are needed,
    or a number of ``gpus``; requests of a step; algorithms as ``--algo`` takes them, empty for
    those that the compiler chooses; ``cluster`` blocks that share attention, 0 for none."""

    phase: str
    mesh: str = ""
    gpus: int = 0
    batch: int = 1
    algo: tuple[str, ...] = ()
    cluster: int = 0

    def flags(self) -> list[str]:
        """The flags of ``meshc estimate MODEL`` that spell it."""
        found = ["--phase", self.phase]
        found += ["--mesh", self.mesh] if self.mesh else []
        found += ["--gpus", str(self.gpus)] if self.gpus else []
        found += ["--batch", str(self.batch)] if self.batch > 1 else []
        for text in self.algo:
            found += ["--algo", text]
        return found + (["--cluster", str(self.cluster)] if self.cluster else [])


@dataclass(frozen=True)
class Outcome:
    """What a ``configuration`` gives.

    ``units`` are the cores that it takes, or the GPUs; ``needed`` and ``left`` bytes of one of
    them, None where nothing is known or memory has no limit. ``seconds`` are those of a run, in
    which ``tokens`` are read or made; None where there is no program or nothing predicts it.
    ``why`` says why it does not fit or is not predicted. ``chosen`` are the algorithms of its
    program.
    """

    configuration: Configuration
    fits: bool
    units: int
    tokens: int
    seconds: float | None = None
    needed: int | None = None
    left: int | None = None
    regions: int | None = None
    mechanisms: Mapping[str, float] = field(default_factory=dict, hash=False)
    chosen: tuple[str, ...] = ()
    why: str = ""

    @property
    def tokens_per_second(self) -> float | None:
        """Predicted rate; None where nothing is predicted."""
        return self.tokens / self.seconds if self.seconds else None

    @property
    def usable(self) -> bool:
        """Whether it fits and its time is known."""
        return self.fits and self.seconds is not None


@dataclass(frozen=True)
class Job:
    """A configuration to try, of a model that ``request`` says the rest of."""

    loaded: LoadedModel
    request: CompileRequest
    configuration: Configuration


def outcome_of(job: Job) -> Outcome:
    """Plan a configuration. Workers call it, of other processes too. What breaks the compiler ends
    no tuning: it has no program, and ``why`` begins with :data:`FAULT`."""
    kind = job.request.the_device().kind
    try:
        return {"mesh": _on_mesh, "cluster": _on_gpus, "node": _on_node}[kind](job)
    except MeshcError as refusal:
        why = refusal.diagnostics[0].message
    except InternalError as error:
        why = f"{FAULT}: {error}"
    return Outcome(job.configuration, False, 0, 0, why=why)


def request_of(job: Job) -> CompileRequest:
    """The request of the program of a configuration."""
    own = job.configuration
    algo = (*job.request.options_of(MeshOptions).algo, *own.algo)
    return job.request.changed(phase="both", mesh=own.mesh, batch=own.batch, algo=algo)


def _on_mesh(job: Job) -> Outcome:
    request = request_of(job)
    phase = MeshPhase(job.loaded, job.configuration.phase, request)
    made = phase_on_mesh(phase)
    columns, rows, _ = request.the_device().axes.sizes_of(request.mesh_name)
    cores = columns * rows * (made.regions or 1)
    return _outcome(job, made, cores, tuple(dict.fromkeys(_algorithms(phase.chosen))))


def _on_gpus(job: Job) -> Outcome:
    own = job.configuration
    how = {"gpus": own.gpus, "persistent": own.cluster > 0, "cluster": own.cluster or None}
    request = request_of(job).changed(target="cuda", **how)
    request.check()
    return _outcome(job, phase_on_gpus(GpuPhases(job.loaded, request), own.phase), own.gpus)


def _on_node(job: Job) -> Outcome:
    own = job.configuration
    asked = request_of(job).changed(compile_to="graph")
    asked.check()
    phases = NodePhases(job.loaded, asked.changed(gpus=own.gpus))
    return _outcome(job, phase_on_node(phases, own.phase), own.gpus)


def _outcome(job: Job, made: PhasePlan, units: int, chosen: tuple[str, ...] = ()) -> Outcome:
    found, room = made.prediction, made.room
    spent: dict[str, float] = {}
    if found is not None:
        parts = found.cost.parts()
        spent = {name: found.in_seconds(parts[name]) for name in MECHANISMS if name in found.apart}
    return Outcome(
        job.configuration,
        made.fits,
        units,
        made.tokens,
        None if found is None or not found.total else found.seconds,
        None if room is None else room.needed,
        None if room is None else room.left,
        made.regions,
        spent,
        chosen,
        made.refused.message if made.refused is not None else made.silent,
    )


def _algorithms(module: Module) -> Iterator[str]:
    """Algorithms of products and collectives of a mesh-level module, those of trees with the number
    of their phases (K)."""
    for op in module.walk():
        if isinstance(op, (ops.AllReduce, ops.Reduce)) and op.algo:
            phases = f":{len(op.groups)}" if op.groups else ""
            yield f"all_reduce={op.algo}{phases}"
        elif isinstance(op, (ops.Gemm, ops.GemmT)) and op.algo:
            yield f"gemm={op.algo}"
