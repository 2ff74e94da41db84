"""The units of a run, each for a process of its own: what one of them does on a device."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

import baselines
import numpy as np
import pytorch
from ceiling import active_clusters, latencies, reads, spreads
from checks import check
from kernels import load, probes
from prepared import Prepared, opened
from programs import Step, block_bytes, sizes, step_bytes
from records import Records
from tables import machine
from timing import Task, Timed, in_turn

from meshc.backends.cuda.driver.device import Device
from meshc.backends.cuda.executor import Grid

MIB = 1 << 20
PARTS = ("checks", "ceiling", "decode", "torch")
AGREEING_RUNS = 20
# As a share of the largest logit: f32 sums of atomic adds in another order, through all layers.
AGREEMENT = {"f16": 1e-3, "bf16": 1e-3}


def unit_names(found: Prepared, options: argparse.Namespace) -> Iterator[str]:
    """The units of the parts that are asked for, the simplest first."""
    yield "machine"
    contexts = options.contexts
    if "checks" in options.parts:
        yield from (f"check:{n}" for n, _ in enumerate(found.cases(contexts)))
    if "ceiling" in options.parts:
        yield from ("reads", "clusters", "latencies")
    if "decode" in options.parts:
        # The attention of a persistent step is no launch of its own.
        persistent = any(kernel.whole_grid for kernel in found.program.kernels.values())
        kinds = ("same", "step") if persistent else ("same", "step", "block")
        if options.beside is not None:
            kinds = ("beside", *kinds)
        yield from (f"{kind}:{cached}" for cached in sorted(contexts) for kind in kinds)
    if "torch" in options.parts:
        kinds = ("torch-block", "torch-step")
        yield from (f"{kind}:{cached}" for cached in sorted(contexts) for kind in kinds)


def do(
    unit: str, device: Device, found: Prepared, records: Records, options: argparse.Namespace
) -> bool:
    """Do a unit and write what it finds; whether all was right. Raises MeshcError and Refused."""
    name, _, number = unit.partition(":")
    if number:
        return _NUMBERED[name](device, found, records, options, int(number))
    return _PLAIN[name](device, found, records, options)


def _machine(
    device: Device, found: Prepared, records: Records, options: argparse.Namespace
) -> bool:
    """The device, whether it loads the program's kernels, and how many of their clusters it holds.

    This is the first that touches the device: a driver that is too old shows here.
    """
    facts = machine(device.facts)
    records.add("machine", **asdict(facts), free_bytes=device.free_bytes)
    own = {"model": found.program.model, "dtype": sizes(found.program).dtype}
    records.add("program", **own, batch=found.program.batch, capacity=found.program.capacity)
    for name in dict.fromkeys(launch.kernel for launch, _ in found.program.launches()):
        planned = found.program.kernels[name]
        kernel = load(device, found.texts[planned.file], found.cubins)[name]
        records.add(
            "kernel", name=name, cluster=planned.cluster,
            clusters=planned.blocks // planned.cluster,
            at_once=kernel.active_clusters(Grid.of(planned)), needs=asdict(kernel.needs),
        )  # fmt: skip
    return True


def _check(
    device: Device, found: Prepared, records: Records, options: argparse.Namespace, number: int
) -> bool:
    case = next(case for n, case in enumerate(found.cases(options.contexts)) if n == number)
    passed = False
    for one in check(device, case, found.cubins, options.executor):
        passed = one.passed
        records.add("check", **asdict(one), passed=passed)
    return passed


def _reads(device: Device, found: Prepared, records: Records, options: argparse.Namespace) -> bool:
    kernels = load(device, probes(), found.cubins)
    for one in reads(device, kernels, options.read_mib * MIB, options.repeats):
        records.add("read", **asdict(one), bandwidth=one.timed.bandwidth)
    return True


def _clusters(
    device: Device, found: Prepared, records: Records, options: argparse.Namespace
) -> bool:
    kernels = load(device, probes(), found.cubins)
    for size, whole, half in active_clusters(device, kernels):
        records.add("clusters", size=size, whole=whole, half=half)
    for spread in spreads(device, kernels):
        records.add("spread", **asdict(spread))
    return True


def _latencies(
    device: Device, found: Prepared, records: Records, options: argparse.Namespace
) -> bool:
    kernels = load(device, probes(), found.cubins)
    for one in latencies(device, kernels, options.repeats):
        records.add("latency", **asdict(one))
    return True


def _step(device: Device, found: Prepared, cached: int) -> Step:
    step = Step(device, found.program, found.texts, found.cubins)
    step.set_cached(cached)
    return step


def _same(
    device: Device, found: Prepared, records: Records, options: argparse.Namespace, cached: int
) -> bool:
    """Logits of the captured step, whose kernels overlap, beside those of a step whose kernels run
    alone."""
    step = _step(device, found, cached)
    launches = found.program.launches()
    step.alone(launches)
    wanted = step.logits()
    graph = step.capture(launches)
    largest, equal = 0.0, 0
    scale = float(np.abs(wanted).max())
    for _ in range(AGREEING_RUNS):
        graph.launch()
        logits = step.logits()
        difference = float(np.abs(logits - wanted).max()) / scale
        largest = math.nan if math.isnan(difference) else max(largest, difference)
        equal += bool(np.array_equal(logits, wanted))
    bound = AGREEMENT[sizes(found.program).dtype]
    passed = largest <= bound
    records.add(
        "same", cached=cached, runs=AGREEING_RUNS, equal=equal, largest=largest, bound=bound,
        largest_logit=scale, passed=passed,
    )  # fmt: skip
    step.free()
    return passed


def _beside(
    device: Device, found: Prepared, records: Records, options: argparse.Namespace, cached: int
) -> bool:
    """Logits of a step beside those of another program with the same weights and caches."""
    rows = []
    for one in (found, opened(options.beside)):
        step = _step(device, one, cached)
        step.alone(one.program.launches())
        rows.append(step.logits())
        step.free()
    own, other = rows
    scale = float(np.abs(other).max())
    largest = float(np.abs(own - other).max()) / scale
    bound = AGREEMENT[sizes(found.program).dtype]
    records.add(
        "beside", cached=cached, program=str(options.beside), largest=largest, bound=bound,
        largest_logit=scale, passed=largest <= bound,
    )  # fmt: skip
    return largest <= bound


def _time_step(
    device: Device, found: Prepared, records: Records, options: argparse.Namespace, cached: int
) -> bool:
    """The whole step, and what its attention blocks take of it: the step less one without them."""
    step, program = _step(device, found, cached), found.program
    step.alone(program.launches())
    whole, count = step.capture(program.launches()), step_bytes(program, cached)
    tasks = [Task("meshc", whole.launch, count)]
    if not step.blocks():
        (timed,) = in_turn(device, tasks, options.repeats)
        _timed(records, "step", cached, replace(timed, name="meshc, one kernel"))
        step.free()
        return True
    tasks.append(Task("without attention", step.capture(step.rest()).launch))
    timed, without = in_turn(device, tasks, options.repeats)
    _timed(records, "step", cached, timed)
    layers = program.layers
    pairs = zip(timed.seconds, without.seconds, strict=True)
    seconds = tuple((with_it - rest_of) / layers for with_it, rest_of in pairs)
    read = block_bytes(sizes(program), cached)
    _timed(records, "block", cached, Timed("meshc, within the step", seconds, read))
    step.free()
    return True


def _time_block(
    device: Device, found: Prepared, records: Records, options: argparse.Namespace, cached: int
) -> bool:
    """The attention blocks of all layers, ours and another library's in turn."""
    step, program = _step(device, found, cached), found.program
    _note_small(device, found, records)
    step.alone(program.launches())
    read = block_bytes(sizes(program), cached)
    tasks = [Task("meshc", step.capture(step.blocks()).launch, read, program.layers)]
    errors: dict[str, float] = {}
    if options.theirs is not None:
        layers = baselines.Layers(device, sizes(program), program.layers, cached, found.cubins)
        theirs = baselines.Theirs(options.theirs, options.entry)
        graph, errors[theirs.name] = theirs.checked(layers)
        tasks.append(Task(theirs.name, graph.launch, read, program.layers))
    for timed in in_turn(device, tasks, options.repeats):
        _timed(records, "block", cached, timed, errors.get(timed.name))
    return True


def _note_small(device: Device, found: Prepared, records: Records) -> None:
    rotated = found.program.layers * block_bytes(sizes(found.program), 0)
    if found.program.layers < 8 or rotated < 4 * device.facts.l2_bytes:
        words = (
            f"{found.program.layers} layers have {rotated / MIB:.0f} MiB of weights of attention, "
            "which L2 may hold in part: their times are no measure of memory"
        )
        records.add("note", words=words)


def _torch_block(
    device: Device, found: Prepared, records: Records, options: argparse.Namespace, cached: int
) -> bool:
    return _torch(device, found, records, options, cached, "block")


def _torch_step(
    device: Device, found: Prepared, records: Records, options: argparse.Namespace, cached: int
) -> bool:
    return _torch(device, found, records, options, cached, "step")


def _torch(
    device: Device,
    found: Prepared,
    records: Records,
    options: argparse.Namespace,
    cached: int,
    of: str,
) -> bool:
    """PyTorch's blocks or steps, in the one context that it shares with the memory it is given."""
    torch = pytorch.torch_with_cuda()
    if torch is None:
        records.add("note", words="PyTorch was not timed: it is not here, or sees no GPU")
        return True
    program = found.program
    layers = baselines.Layers(device, sizes(program), program.layers, cached, found.cubins)
    errors: dict[str, float] = {}
    if of == "block":
        made, left_out = pytorch.blocks(torch, layers)
        errors = {one.name: one.error for one in made}
        graphs = [(one.name, one.graph) for one in made]
        read, parts = block_bytes(layers.sizes, cached), layers.layers
    else:
        graphs, left_out = pytorch.steps(torch, layers)
        read, parts = step_bytes(program, cached), 1
    for words in left_out:
        records.add("note", words=words)
    tasks = [
        Task(name, pytorch.on_stream(torch, device, graph), read, parts) for name, graph in graphs
    ]
    for timed in in_turn(device, tasks, options.repeats) if tasks else ():
        _timed(records, of, cached, timed, errors.get(timed.name))
    return True


def _timed(
    records: Records, of: str, cached: int, timed: Timed, error: float | None = None
) -> None:
    records.add("timed", of=of, cached=cached, **asdict(timed), error=error)


_PLAIN: dict[str, Callable[..., bool]] = {
    "machine": _machine,
    "reads": _reads,
    "clusters": _clusters,
    "latencies": _latencies,
}
_NUMBERED: dict[str, Callable[..., bool]] = {
    "check": _check,
    "beside": _beside,
    "same": _same,
    "step": _time_step,
    "block": _time_block,
    "torch-block": _torch_block,
    "torch-step": _torch_step,
}
