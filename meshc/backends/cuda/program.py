"""A decode step as data: kernels, buffers, how weights are packed, launches in order.

What is written into ``manifest.json`` and read back to run a compiled directory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from meshc.support.diagnostics import fail

FORMAT = 1


@dataclass(frozen=True)
class Kernel:
    """A kernel of ``file``; ``shared`` names the parts of its shared memory, [offset, bytes]."""

    file: str
    blocks: int
    threads: int
    cluster: int
    shared_bytes: int
    shared: dict[str, tuple[int, int]]
    dsmem_bytes: int = 0


@dataclass(frozen=True)
class Buffer:
    """Memory of the device. ``role``: input (the host writes it), output (the host reads it),
    state (kept from step to step), scratch or constant. ``dtype``: f32, i32 or a 16-bit type."""

    dtype: str
    shape: tuple[int, ...]
    role: str


@dataclass(frozen=True)
class Weight:
    """A packed weight: ``sources`` are logical tensors, ``pack`` says how they are laid out.

    ``layers`` is the number of stacked layers, 0 for a tensor that all share; ``paired`` names
    the sources whose lanes are to be put in the order of interleaved rotary pairs; ``parts`` is
    into how many parts lanes are split, each block of a cluster having one.
    """

    dtype: str
    pack: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    layers: int = 0
    paired: tuple[str, ...] = ()
    parts: int = 1


@dataclass(frozen=True)
class Launch:
    """A kernel with its arguments: names of buffers and weights, or integers.

    A name with ``[]`` behind it stands for the part of the layer that is computed.
    """

    kernel: str
    arguments: tuple[str | int, ...]


@dataclass(frozen=True)
class StepProgram:
    """A decode step of ``layers`` layers: ``before`` once, ``layer`` for each, ``after`` once."""

    model: str
    device: str
    batch: int
    capacity: int
    vocabulary: int
    page: int
    layers: int
    frequencies: tuple[float, ...]
    kernels: dict[str, Kernel]
    buffers: dict[str, Buffer]
    weights: dict[str, Weight]
    before: tuple[Launch, ...]
    layer: tuple[Launch, ...]
    after: tuple[Launch, ...]

    def to_json(self) -> str:
        """The text of ``manifest.json``."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"

    def launches(self) -> list[tuple[Launch, int]]:
        """Every launch of a step, with its layer."""
        found = [(launch, 0) for launch in self.before]
        found += [(launch, n) for n in range(self.layers) for launch in self.layer]
        return found + [(launch, 0) for launch in self.after]


def from_json(text: str) -> StepProgram:
    """The program of a ``manifest.json``. Raises ``no-program`` for what is none."""
    try:
        found = json.loads(text)
        if found.pop("format") != FORMAT:
            raise ValueError("another format")
        return _program(found)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        fail("no-program", f"the manifest describes no decode step: {problem}")


def _program(found: Mapping[str, Any]) -> StepProgram:
    values = dict(found)
    values["frequencies"] = tuple(float(f) for f in values["frequencies"])
    values["kernels"] = {name: _kernel(k) for name, k in values["kernels"].items()}
    values["buffers"] = {
        name: Buffer(b["dtype"], tuple(map(int, b["shape"])), b["role"])
        for name, b in values["buffers"].items()
    }
    values["weights"] = {name: _weight(w) for name, w in values["weights"].items()}
    for part in ("before", "layer", "after"):
        values[part] = tuple(Launch(x["kernel"], tuple(x["arguments"])) for x in values[part])
    return StepProgram(**values)


def _kernel(found: Mapping[str, Any]) -> Kernel:
    shared = {name: (int(at), int(size)) for name, (at, size) in found["shared"].items()}
    return Kernel(**{**found, "shared": shared})


def _weight(found: Mapping[str, Any]) -> Weight:
    tuples = {name: tuple(found[name]) for name in ("sources", "shape", "paired")}
    return Weight(**{**found, **tuples})
