"""What a program uses of a core and what is left: ``report.json``, and its summary in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from meshc.analysis.csl.codes import KERNEL
from meshc.analysis.csl.ends import colors_on
from meshc.analysis.traffic.channels import line_of
from meshc.backends.csl.pe.core_memory import CoreMemory
from meshc.backends.csl.pe.pe_file import PeFile
from meshc.backends.csl.region_report import regions_of, told
from meshc.backends.csl.timing.breakdown import Prediction
from meshc.devices.csl import Targets
from meshc.ir.codes import CODES
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute
from meshc.ir.types import BufferType

_VERBS = ("send", "recv")
_Told = TypeVar("_Told")


def report(module: Module, pe: PeFile, targets: Targets) -> dict[str, Any]:
    """Bytes by buffer, colors, queues and hops by channel, ids by task, and what is left."""
    mesh = module.the_mesh()
    buffers = {b.value.name: b.type.bytes for b in module.buffers}
    channels: dict[str, dict[str, Any]] = {}
    taken: set[int] = set()
    for (name, verb), end in pe.ends.of.items():
        colors = sorted(colors_on(end.colors, mesh))
        taken |= set(colors)
        entry = channels.setdefault(name, {"hops": line_of(end.channel, mesh).hops})
        entry[verb] = {"colors": colors, "queue": end.queue}
    used = {verb: {e.queue for e in pe.ends.of.values() if e.verb == verb} for verb in _VERBS}
    return {
        "arch": list(targets.archs),
        "mesh": [mesh.columns, mesh.rows],
        **({"regions": regions_of(module)} if mesh.regions > 1 else {}),
        "predicted_cycles": _of_runs(pe, lambda one: one.cycles),
        "bound_cycles": _of_runs(pe, lambda one: one.bound),
        "cycles_by_op": _of_runs(pe, _by_op),
        "inputs": _tensors(module, "in"),
        "outputs": _tensors(module, "out"),
        "memory": {"buffers": buffers, **_quantised(module), **_memory(pe.memory)},
        "channels": channels,
        "colors": {"used": sorted(taken), "left": len(targets.colors) - len(taken)},
        "queues": {
            side: {"used": sorted(used[verb]), "left": len(set(free) - used[verb])}
            for verb, side, free in (
                ("send", "output", targets.output_queues),
                ("recv", "input", targets.input_queues),
            )
        },
        "tasks": {"ids": pe.tasks, "left": len({*targets.task_ids} - taken - {*pe.tasks.values()})},
    }


def _of_runs(pe: PeFile, what: Callable[[Prediction], _Told]) -> _Told | dict[str, _Told]:
    """What is predicted of a run, of each phase where there are several."""
    told = {name: what(one) for name, one in pe.predicted.items()}
    return told if len(told) > 1 else next(iter(told.values()))


def _by_op(found: Prediction) -> list[dict[str, Any]]:
    """The ops of a run with their cycles, bound and the ratio of both; ``each`` of a kernel are
    those of one time, vector steps among them."""
    return [
        {
            "op": one.op,
            "kind": one.kind,
            "times": one.times,
            "cycles": one.cycles,
            "bound": one.bound,
            "ratio": round(one.cycles / one.bound, 2) if one.bound else None,
            **({"each": one.each} if one.each else {}),
        }
        for one in found.ops
    ]


def _quantised(module: Module) -> dict[str, Any]:
    """Bytes of a core by weight that stays quantised: of its codes and of the numbers of its
    groups, of the block of it that is decoded at a time, and of all of it if it were decoded. Empty
    where none stays quantised."""
    found = {}
    for op in module.walk():
        if isinstance(op, Compute) and op.kernel == KERNEL:
            numbers, *parts = op.views()
            codes, block = parts[0].buffer_type, numbers.buffer_type
            found[parts[0].buffer.name.removesuffix(f".{CODES}")] = {
                "bytes": sum(part.buffer_type.bytes for part in parts),
                "block": block.bytes,
                "decoded": BufferType(block.dtype, codes.shape).bytes,
            }
    return {"quantised": dict(sorted(found.items()))} if found else {}


def _memory(taken: CoreMemory) -> dict[str, Any]:
    """Bytes of a core: ``data`` is exact, ``code`` an estimate, ``padding`` the most there is."""
    code = taken.code
    return {
        "scratch": taken.of("scratch"),
        "tables": taken.of("table"),
        "variables": taken.of("variable"),
        "data": taken.data,
        "padding": taken.padding,
        "code": {
            "kind": "estimate",
            "statements": code.statements,
            "runtime": code.runtime,
            "own": code.own,
            "margin": code.margin,
            "bytes": code.bytes,
        },
        "left": taken.left,
    }


def _tensors(module: Module, direction: str) -> dict[str, list[int]]:
    """Shapes of the tensors that the host gives or gets."""
    return {
        port.name: list(port.tensor.shape(module.dims))
        for port in module.ports
        if port.direction == direction and port.name not in module.constants
    }


def summary(found: Mapping[str, Any]) -> list[str]:
    """A few lines for people."""
    memory, queues, tasks = found["memory"], found["queues"], found["tasks"]
    colors = found["colors"]
    lines = told(found["regions"], found["mesh"]) if "regions" in found else []
    lines += [
        f"{memory['data']} bytes of data per PE and about {memory['code']['bytes']} of code, "
        f"{memory['left']} left",
        f"{_count(len(colors['used']), 'color')}, {colors['left']} left; "
        + "; ".join(
            f"{_count(len(queues[side]['used']), f'{side} queue')}, {queues[side]['left']} left"
            for side in ("input", "output")
        )
        + f"; {_count(len(tasks['ids']), 'task id')}, {tasks['left']} left",
    ]
    if "quantised" in memory:
        each = memory["quantised"].values()
        kept, decoded = (sum(one[key] for one in each) for key in ("bytes", "decoded"))
        lines.append(f"{kept} bytes of weights that stay quantised instead of {decoded}")
    for name, channel in found["channels"].items():
        taken = sorted({c for verb in _VERBS if verb in channel for c in channel[verb]["colors"]})
        listed = ", ".join(map(str, taken))
        word = "color" if len(taken) == 1 else "colors"
        lines.append(f"{name}: {_count(channel['hops'], 'hop')}, {word} {listed}")
    cycles, bounds = (_each(found[key]) for key in ("predicted_cycles", "bound_cycles"))
    lines += [
        f"{name}{': ' if name else ''}{count} cycles predicted, no fewer than {bounds[name]}"
        for name, count in cycles.items()
    ]
    return lines


def _each(told: Any) -> dict[str, Any]:
    """What is told of each phase, or of the only run, which has no name."""
    return told if isinstance(told, dict) else {"": told}


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
