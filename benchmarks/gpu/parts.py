"""The units of a run, each for a process of its own: what one of them does on a device."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict

import numpy as np
import pytorch
from ceiling import active_clusters, latencies, reads, spreads
from checks import check
from kernels import load, probes
from plain_layers import Layers
from prepared import Prepared, opened
from programs import Step, sizes, step_bytes
from records import Records
from tables import machine
from timing import Task, Timed, in_turn

from meshc.backends.cuda.driver.gpu import Device
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
        yield from (f"check:{n}" for n, _ in enumerate(found.cases()))
    if "ceiling" in options.parts:
        yield from ("reads", "clusters", "latencies")
    if "decode" in options.parts:
        kinds: tuple[str, ...] = ("same", "step")
        if options.beside is not None:
            kinds = ("beside", *kinds)
        yield from (f"{kind}:{cached}" for cached in sorted(contexts) for kind in kinds)
    if "torch" in options.parts:
        yield from (f"torch-step:{cached}" for cached in sorted(contexts))


def do(
    unit: str, device: Device, found: Prepared, records: Records, options: argparse.Namespace
) -> bool:
    """Do a unit and write what it finds; whether all was right. Raises MeshcError."""
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
    case = next(case for n, case in enumerate(found.cases()) if n == number)
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
    """Logits of the captured step, launched again and again, beside those of a first one."""
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
    """The whole step."""
    step, program = _step(device, found, cached), found.program
    step.alone(program.launches())
    whole, count = step.capture(program.launches()), step_bytes(program, cached)
    (timed,) = in_turn(device, [Task("meshc", whole.launch, count)], options.repeats)
    _timed(records, "step", cached, timed)
    step.free()
    return True


def _torch_step(
    device: Device, found: Prepared, records: Records, options: argparse.Namespace, cached: int
) -> bool:
    """PyTorch's steps, in the one context that it shares with the memory it is given."""
    torch = pytorch.torch_with_cuda()
    if torch is None:
        records.add("note", words="PyTorch was not timed: it is not here, or sees no GPU")
        return True
    layers = Layers(device, sizes(found.program), cached, found.cubins)
    graphs, left_out = pytorch.steps(torch, layers)
    for words in left_out:
        records.add("note", words=words)
    read = step_bytes(found.program, cached)
    tasks = [Task(name, pytorch.on_stream(torch, device, graph), read) for name, graph in graphs]
    for timed in in_turn(device, tasks, options.repeats) if tasks else ():
        _timed(records, "step", cached, timed)
    return True


def _timed(records: Records, of: str, cached: int, timed: Timed) -> None:
    records.add("timed", of=of, cached=cached, **asdict(timed))


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
    "torch-step": _torch_step,
}
