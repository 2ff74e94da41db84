"""Programs of several nodes: each has the weights and caches of its share of the layers.

The GPUs of all nodes run the same kernels, one behind the other. Each passes its own layers, the
first one what stands in front of them as well and the last one what stands behind, and hands the
rows of tokens behind its layers on to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.launches import Launch
from meshc.backends.cuda.program import StepProgram, Weight
from meshc.backends.cuda.tasks.groups import HANDED_ON, LAYERS
from meshc.ir.stored import Layered, Layers, Scaled, StoredWeights, stored
from meshc.support.diagnostics import fail

Array = NDArray[Any]


class NodeMachine(Protocol):
    """What the GPU of a node does: a :class:`meshc.backends.cuda.host.Machine`."""

    def store(self, name: str, array: Array) -> None: ...

    def write(self, name: str, array: Array) -> None: ...

    def read(self, name: str) -> Array: ...

    def run(self, launches: Sequence[tuple[Launch, int]]) -> None: ...


class Links(Protocol):
    """What a process that is one ``node`` of ``count`` gives the others, and has of them."""

    @property
    def node(self) -> int:
        """Which of the nodes this process is."""

    @property
    def count(self) -> int:
        """How many there are."""

    def hand_on(self, rows: Array) -> None:
        """Give the next node ``rows``, which this one may then change."""

    def handed_on(self, like: Array) -> Array:
        """What the node in front gave next, of the shape and type of ``like``."""

    def of_last(self, array: Array) -> Array:
        """What the last node has in the place of ``array``; all nodes ask for it together."""


class Nodes:
    """The nodes of a program that are here, each on a machine of its own: all of them, or with
    ``links`` to the others one. What the host writes goes to those that are here; what it reads is
    that of the last node of all."""

    def __init__(
        self, program: StepProgram, machines: Sequence[NodeMachine], links: Links | None = None
    ) -> None:
        """Raises ``cuda-device`` for other nodes than the program has."""
        assert program.nodes is not None
        count = len(machines) if links is None else links.count
        if count != program.nodes.count:
            fail(
                "cuda-device",
                f"the program is of {program.nodes.count} nodes, and {count} processes run it",
                help=f"torchrun --nproc-per-node {program.nodes.count} starts as many on one "
                "machine",
            )
        first = 0 if links is None else links.node
        self._machines = dict(enumerate(machines, first))
        self._last, self._links = count - 1, links
        self._roles = {name: buffer.role for name, buffer in program.buffers.items()}

    @property
    def here(self) -> Sequence[int]:
        """Nodes that this process is."""
        return tuple(self._machines)

    def store_of(self, node: int, name: str, array: Array) -> None:
        """Memory called ``name`` of one of the nodes here that holds ``array``."""
        self._machines[node].store(name, array)

    def store(self, name: str, array: Array) -> None:
        """Memory called ``name`` of each node here that holds ``array``."""
        for machine in self._machines.values():
            machine.store(name, array.copy())

    def write(self, name: str, array: Array) -> None:
        """Replace what ``name`` holds on each node here."""
        for machine in self._machines.values():
            machine.write(name, array)

    def read(self, name: str) -> Array:
        """What ``name`` holds on the last node; of what no kernel writes any has the same."""
        found = self._machines[self.here[-1]].read(name)
        if self._links is None or self._roles.get(name) != "output":
            return found
        return self._links.of_last(found)

    def run(self, launches: Sequence[tuple[Launch, int]]) -> None:
        """The launches one after the other, each on one node after the other."""
        for launch, layer in launches:
            handed = [
                name
                for name in dict.fromkeys(map(str, launch.arguments))
                if self._roles.get(name) == HANDED_ON
            ]
            rows: list[Array] = []
            for node, machine in self._machines.items():
                if node and self._links is not None:
                    rows = [self._links.handed_on(machine.read(name)) for name in handed]
                if node:
                    for name, array in zip(handed, rows, strict=True):
                        machine.write(name, array)
                machine.run([(launch, layer)])
                if node == self._last:
                    continue
                rows = [machine.read(name) for name in handed]
                if self._links is not None:
                    for array in rows:
                        self._links.hand_on(array)


def layers_of(program: StepProgram, node: int) -> range:
    """The layers that ``node`` passes."""
    nodes = program.nodes
    assert nodes is not None
    return range(*(nodes.layers * end // nodes.count for end in (node, node + 1)))


def on_each(program: StepProgram) -> StepProgram:
    """What the GPU of a node has of ``program``: weights and caches of as many layers as a node
    passes at the most. Of one node it is the program itself."""
    if program.nodes is None:
        return program
    own = program.nodes.of_each

    def part(weight: Weight) -> Weight:
        if not weight.layers:
            return weight
        shapes = tuple((own, *rest) for _, *rest in weight.source_shapes)
        return replace(weight, layers=own, source_shapes=shapes)

    weights = {name: part(weight) for name, weight in program.weights.items()}
    buffers = {
        name: replace(b, shape=(own, *b.shape[1:])) if b.role == "state" else b
        for name, b in program.buffers.items()
    }
    return replace(program, weights=weights, buffers=buffers, nodes=None)


class NodeTensors(Mapping[str, Array]):
    """The model's ``tensors``, of which those of layers are of the layers of ``node``; where it has
    fewer than others, zeros stand behind them."""

    def __init__(self, program: StepProgram, tensors: Mapping[str, Array], node: int) -> None:
        assert program.nodes is not None
        weights = [weight for weight in program.weights.values() if weight.layers]
        self._stacked = {source for weight in weights for source in weight.sources}
        self._tensors, self._program, self._node = tensors, program, node
        self._layers, self._count = layers_of(program, node), program.nodes.of_each

    def __getitem__(self, name: str) -> Array:
        whole = np.asarray(self._tensors[name])
        if name not in self._stacked:
            return whole
        own = whole[self._layers.start : self._layers.stop]
        none = np.zeros((self._count - len(own), *own.shape[1:]), own.dtype)
        return np.concatenate([own, none]) if len(none) else own

    def stored(self, name: str) -> Layered | Scaled:
        """See :class:`meshc.ir.stored.StoredWeights`."""
        whole = stored(self._tensors, name)
        if name not in self._stacked or isinstance(whole, Scaled):
            return whole
        first, end = self._layers.start, self._layers.stop

        def read(layer: int) -> Array | Scaled:
            own = whole[min(first + layer, end - 1)]
            return own if first + layer < end else np.zeros(own.shape, np.float32)

        return Layers((self._count, *whole.shape[1:]), read)

    def stamp(self) -> str | None:
        """See :class:`meshc.ir.stored.StoredWeights`."""
        given = self._tensors
        whole = given.stamp() if isinstance(given, StoredWeights) else None
        return whole and repr((whole, self._program.nodes, self._node))

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def bounds_of(program: StepProgram, node: int) -> dict[str, Array]:
    """What kernels are told of the layers of ``node``, by the names of their buffers."""
    passed = layers_of(program, node)
    bounds = np.array([passed.start, passed.stop], np.int32)
    return {name: bounds for name in program.buffers if name.endswith(LAYERS)}
