"""Tuning: the question, who tries what it asks for, and the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from meshc.backends.request import CompileRequest
from meshc.backends.target import target_for
from meshc.backends.target_options import MeshOptions
from meshc.devices import Device
from meshc.driver.compiling import given_module
from meshc.driver.models import LoadedModel
from meshc.driver.planning.plans import phases_of
from meshc.driver.tuning.configurations import Configuration, Job, Outcome, outcome_of
from meshc.driver.tuning.fronts import front
from meshc.driver.tuning.kept_outcomes import Results, results_in
from meshc.driver.tuning.space import Space
from meshc.ir.module import Module
from meshc.ir.printer import print_module
from meshc.support.code import code_here
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.workers import IN_TURN, Workers

Watch = Callable[[str], None]
"""Told how far the tuning is."""


def _unwatched(_: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class TuneRequest:
    """What to tune: fields of a compile that all configurations share, and those that vary, as
    :class:`Space` has them. ``measure`` is what speed is weighed against (``fronts.MEASURES``),
    ``results`` the file that outcomes are kept in."""

    compile: CompileRequest
    meshes: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    measure: str = "cores"
    results: Path | None = None


@dataclass(frozen=True)
class PhaseTuning:
    """What was ``tried`` for a phase, and the ``front`` of those that fit; of all whose time is
    known, as if memory had no limit, where none ``fits``."""

    phase: str
    tried: tuple[Outcome, ...]
    front: tuple[Outcome, ...]
    fits: bool

    @property
    def best(self) -> Outcome | None:
        """The one of the front with the most tokens per second; None where no time is known."""
        return self.front[0] if self.front else None


@dataclass(frozen=True)
class Tuning:
    """A model on a device, phase by phase; ``again`` outcomes were in the file of results."""

    model: str
    device: str
    dtype: str
    seq: int
    layers: int | None
    measure: str
    phases: tuple[PhaseTuning, ...]
    again: int


def tune(
    loaded: LoadedModel,
    request: TuneRequest,
    workers: Workers = IN_TURN,
    watch: Watch = _unwatched,
) -> Tuning:
    """Try the configurations of ``request`` that its phases have.

    Raises ``bad-argument`` and ``bad-phase`` for what does not go together, what reading the model
    and the workers raise, and what :func:`results_in` does. A configuration without a program is no
    error but an outcome.
    """
    phases = phases_of(loaded, request.compile)
    device = request.compile.the_device()
    _check(request, device)
    space = Space(loaded, request.compile, request.meshes, request.gpus, request.batches)
    graphs = {phase: _graph(loaded, phase, request.compile) for phase in phases}
    question = _question(loaded, request, graphs)
    results = results_in(
        request.results, question, lambda one: one.phase in phases and space.asks(one)
    )
    again = len(results.known)
    one = _Tuner(loaded, request.compile, results, workers, watch)
    found = tuple(one.phase(phase, space, request.measure) for phase in phases)
    first = next(iter(graphs.values()))
    return Tuning(
        loaded.name,
        device.name,
        first.dtype().value,
        first.capacity,
        request.compile.layers,
        request.measure,
        found,
        again,
    )


def _check(request: TuneRequest, device: Device) -> None:
    """Raise ``bad-argument``, and ``bad-mesh`` for what is no mesh."""
    wafer = device.kind == "mesh"
    if wafer and request.gpus:
        fail("bad-argument", f"--gpus is given, and {device.name} is no GPU but a mesh of cores")
    if not wafer and request.meshes:
        fail("bad-argument", f"--mesh is given, and {device.name} is no mesh of cores")
    if not wafer and request.compile.options_of(MeshOptions).algo:
        fail("bad-argument", f"--algo is of wafers, and {device.name} is none")
    target = target_for(device)
    for mesh in request.meshes or ("",):
        columns, rows, regions = device.axes.sizes_of(mesh) if mesh else (1, 1, 0)
        places = (device.cores_x // columns) * (device.cores_y // rows)
        if mesh and places < max(1, regions):
            fail("bad-argument", f"--mesh {mesh} has more cores than {device.name}, or other sides")
        for batch in request.batches or (1,):
            own = request.compile.changed(mesh=mesh, batch=batch, target=target)
            own.changed(phase="both").check()
    most = device.cores if device.kind == "node" else 16
    for gpus in request.gpus:
        if not 1 <= gpus <= most:
            fail("bad-argument", f"--gpus is {gpus}, not 1 to {most}")


def _graph(loaded: LoadedModel, phase: str, request: CompileRequest) -> Module:
    asked = request.changed(phase=phase, compile_to="graph")
    return given_module(loaded, phase, asked, Diagnostics())


def _question(
    loaded: LoadedModel, request: TuneRequest, graphs: Mapping[str, Module]
) -> dict[str, object]:
    """What results depend on beside their configuration, for a file of them. Graphs say the model,
    its extents and the numbers of the device."""
    digest = sha256("".join(map(print_module, graphs.values())).encode()).hexdigest()[:16]
    own = request.compile
    return {
        "code": code_here(),
        "model": loaded.name,
        "device": own.device_name,
        "phases": list(graphs),
        "graphs": digest,
        "algo": list(own.options_of(MeshOptions).algo),
        "keep_quantised": list(own.keep_quantised),
        "meshes": list(request.meshes),
        "gpus": list(request.gpus),
        "batches": list(request.batches),
    }


@dataclass(frozen=True)
class _Tuner:
    loaded: LoadedModel
    request: CompileRequest
    results: Results
    workers: Workers
    watch: Watch

    def phase(self, phase: str, space: Space, measure: str) -> PhaseTuning:
        """What is found for a phase."""
        tried: dict[Configuration, Outcome] = {}

        def outcomes(configurations: Sequence[Configuration]) -> list[Outcome]:
            found = self.outcomes(configurations)
            tried.update((one.configuration, one) for one in found)
            return found

        space.explore(phase, outcomes)
        timed = [one for one in tried.values() if one.seconds is not None]
        usable = [one for one in timed if one.fits]
        best = tuple(front(usable or timed, measure))
        return PhaseTuning(phase, tuple(tried.values()), best, bool(usable))

    def outcomes(self, configurations: Sequence[Configuration]) -> list[Outcome]:
        """Outcomes of configurations, those alone computed that are not known."""
        known = self.results.known
        every = list(dict.fromkeys(configurations))
        jobs = [Job(self.loaded, self.request, one) for one in every if one not in known]

        def watch(done: int, count: int) -> None:
            phase = f"{every[0].phase}: " if every else ""
            self.watch(f"{self.loaded.name}, {phase}{done} of {count} configurations")

        self.workers.results(outcome_of, jobs, watch, self.results.add)
        return [known[one] for one in every]
