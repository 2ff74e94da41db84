"""Estimates: each algorithm of a product on a mesh, compiled and counted in PLMR terms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm

from meshc.analysis.proofs.growth import faster
from meshc.backends import csl
from meshc.cost.programs import Profile, profile
from meshc.cost.terms import Cost
from meshc.devices import Device, Kind, device
from meshc.driver.growing import Laws, laws
from meshc.driver.questions import GEMVS, Question, tile_module
from meshc.ir.module import Module
from meshc.passes.manager import PassManager
from meshc.pipelines import resource_passes
from meshc.support.diagnostics import Diagnostic, MeshcError
from meshc.support.plmr import letter_of

_NEAR_HOPS, _NEAR_STAGES = 2, 1  # the least a step of a product can do with (WaferLLM section 5.2)


@dataclass(frozen=True)
class Estimate:
    """One algorithm: what it takes, how that grows with the mesh, and which letters of PLMR it
    violates, each with the reason.

    ``bytes`` and ``cost``, in cycles, are those of emitted CSL (predicted by its clock, which tells
    computing from waiting alone) on a device that has it, as ``emitted`` says; elsewhere those of
    the profile, by the device's numbers. ``inputs`` are the numbers that the cycles were computed
    from, by their kind.
    """

    kind: str
    algo: str
    profile: Profile
    laws: Laws
    bytes: int
    cost: Cost
    emitted: bool
    inputs: dict[Kind, tuple[str, ...]]
    violates: dict[str, str]


def estimates(question: Question) -> list[Estimate]:
    """All algorithms of GEMM and, for one row of A, of GEMV (WaferLLM Fig. 6 and Fig. 8). Raises
    what :meth:`Question.check` does."""
    question.check()
    row = replace(question, m=1)
    gemms = [estimate(question, "gemm", algo) for algo in question.gemms]
    return [*gemms, *(estimate(row, "gemv", algo) for algo in GEMVS)]


def estimate(question: Question, kind: str, algo: str) -> Estimate:
    """One algorithm of ``gemm`` or ``gemv``."""
    numbers = device(question.device)
    module = tile_module(question, kind, algo)
    watched = numbers.watched()
    counted = profile(module, watched)
    cost = counted.total.cost
    module.device = clocked = module.the_device().watched()
    needs = _needs(module, counted, numbers)
    emitted = needs.predicted is not None
    if needs.predicted is not None:
        watched, cost = clocked, _spent(needs.predicted)
    grows = laws(kind, algo, question.device)
    inputs = watched.inputs()
    found = Estimate(kind, algo, counted, grows, needs.bytes, cost, emitted, inputs, {})
    return replace(found, violates=violations(question, module, found, needs, numbers))


def _needs(module: Module, counted: Profile, numbers: Device) -> csl.Needs:
    """What the emitted program takes; for what is not CSL, what the tile program does."""
    if numbers.csl_arch is not None:
        try:
            return csl.needs(module, _refused(module))
        except MeshcError:  # a kernel or an element type that is not emitted
            pass
    return csl.Needs(counted.bytes, None)


def _spent(predicted: csl.Prediction) -> Cost:
    computing = sum(one.cycles for one in predicted.ops if one.kind == "computes")
    return Cost(compute=computing, waits=predicted.cycles - computing)


def _refused(module: Module) -> Diagnostic | None:
    """Why no core has what a program takes, if none does; else that is assigned."""
    try:
        PassManager(resource_passes()).run(module)
    except MeshcError as problem:
        return problem.diagnostics[0]
    return None


def violations(
    question: Question, module: Module, found: Estimate, needs: csl.Needs, numbers: Device
) -> dict[str, str]:
    """Letters of PLMR that a program violates."""
    reasons = {
        "P": _parallelism(question, found.kind),
        "L": _latency(question, found),
        "M": _memory(module, found, numbers),
        "R": _routing(module, found, numbers),
    }
    if needs.refused is not None and (letter := letter_of(needs.refused)):
        reasons[letter] = reasons[letter] or needs.refused.message
    return {letter: reason for letter, reason in reasons.items() if reason}


def _parallelism(question: Question, kind: str) -> str:
    """Cores without work: a dim that is shorter than the axes it is dealt to."""
    columns, rows = device(question.device).axes.size_of(question.mesh)
    extents = {"M": (question.m, rows), "K": (question.k, lcm(rows, columns))}
    if kind == "gemv":
        extents = {"K": (question.k, rows)}
    extents["N"] = (question.n, columns)
    idle = [
        f"{name} = {have} on {parts} parts"
        for name, (have, parts) in extents.items()
        if have < parts
    ]
    return f"cores without work ({', '.join(idle)})" if idle else ""


def _latency(question: Question, found: Estimate) -> str:
    """A way that grows with the mesh: of a step of a product; of a reduction, its stages, since to
    cross the mesh takes hops in any case."""
    step, total, how = found.profile.step, found.profile.total, found.laws
    if found.kind == "gemm":
        grows = (how.step_hops, how.step_stages) != ("1", "1")
        far = step.hops > _NEAR_HOPS or step.stages > _NEAR_STAGES
        ways = f"a step goes {step.hops} hops in {step.stages} stages"
        return f"{ways}, O({how.step})" if grows and far else ""
    _, rows = device(question.device).axes.size_of(question.mesh)
    if how.path_stages == "P" and total.stages >= rows > 3:
        return f"{total.stages} routing stages for {rows} cores, O({how.path})"
    return ""


def _memory(module: Module, found: Estimate, numbers: Device) -> str:
    """More than a core has, or a share of the operands that does not shrink with their tiles."""
    room = numbers.data_bytes
    if room is not None and found.bytes > room:
        return f"{found.bytes} bytes on a core that has {room}"
    own = sum(_own_bytes(module, port.buffer.name) for port in module.ports)
    if faster(found.laws.bytes, "1/P^2") and found.bytes > own:
        return f"{found.bytes} bytes for operands of {own}, O({found.laws.bytes}) of a fixed size"
    return ""


def _own_bytes(module: Module, name: str) -> int:
    """Bytes of the elements of a port's tensor, dealt to all cores once."""
    port = next(p for p in module.ports if p.buffer.name == name)
    total = port.tensor.dtype.bytes
    for extent in port.tensor.shape(module.dims):
        total *= extent
    return -(-total // module.the_mesh().cores)


def _routing(module: Module, found: Estimate, numbers: Device) -> str:
    """More colors at a router than are free, or input queues to tell all channels apart: a channel
    has one number on every core."""
    if numbers.routing is None:
        return ""
    inputs = len({channel.queue for channel in module.channels})
    colors, queues = numbers.routing.colors.count, numbers.routing.input_queues.count
    if found.profile.paths > colors:
        return f"{found.profile.paths} routing paths of {colors}"
    if inputs > queues:
        return f"{inputs} input queues of {queues}"
    return ""
