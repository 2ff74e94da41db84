"""What costs of iterations of a serving system have in common: the interface that the serving
simulator asks, memory for keys and values, energy.

``serving_iterations`` has costs that are fitted to published servers, ``nodes.iterations`` costs
kernel by kernel. All rates are numbers of a device of kind ``node``, whose cores are GPUs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from meshc.cost.served_models import LayerShape, ServedModel, alike
from meshc.devices import Device
from meshc.support.diagnostics import fail

Chunk = tuple[int, int]
"""Tokens of a prompt: the first and the one after the last."""


class Load(NamedTuple):
    """What an iteration takes: ``seconds``; ``expert_bytes`` of weights that are loaded, summed
    over all GPUs; ``bytes`` of memory traffic and ``flops`` in all; ``joules`` of all GPUs."""

    seconds: float
    expert_bytes: float
    bytes: float
    flops: float
    joules: float


class Part(NamedTuple):
    """The share of a load that one layer has, or what stands beside all layers: ``bytes`` and
    ``flops`` of all GPUs together."""

    seconds: float
    expert_bytes: float
    bytes: float
    flops: float


class ServingCosts(ABC):
    """Costs of iterations of ``model``, whose heads are dealt to ``gpus`` GPUs of ``device``.

    Errors: ``bad-argument`` when the device is no node of GPUs or has fewer; ``device-number`` when
    it does not give a number that is needed.
    """

    def __init__(self, model: ServedModel, device: Device, gpus: int) -> None:
        if device.kind != "node":
            fail(
                "bad-argument",
                f"'{device.name}' is no node of GPUs, which is what models are served on",
                help="take h100x2",
            )
        if not 1 <= gpus <= device.cores:
            fail("bad-argument", f"'{device.name}' has 1 to {device.cores} GPUs, not {gpus}")
        self.model, self.device, self.gpus = model.on(gpus), device, gpus
        self._idle_watts = gpus * device.real("idle_watts")
        self._busy_watts = gpus * device.real("busy_watts")
        self._joules_per_byte = device.real("joules_per_byte")
        self._joules_per_flop = device.real("joules_per_flop")
        self._counts: dict[range, dict[LayerShape, int]] = {}

    def iteration(
        self,
        decodes: int,
        context: int,
        chunks: Sequence[Chunk] = (),
        layers: range = range(0),
        heads: int = 0,
    ) -> Load:
        """An iteration in which ``decodes`` requests, which have ``context`` tokens together, get a
        token, and the prompt tokens of ``chunks`` pass ``layers``. ``heads`` prompts get their
        first token from the matrix of the vocabulary.

        A window of attention counts as if all requests had the mean context. GPUs that only read
        prompts (no ``decodes``) compute nothing in the other layers.
        """
        read = self._count(layers) if chunks else {}
        seconds = loaded = size = flops = 0.0
        for layer, total in self._count(range(len(self.model.layers))).items():
            reading = read.get(layer, 0)
            for times, prompts in ((reading, chunks), (total - reading, ())):
                if times and (prompts or decodes):
                    part = self._layer(layer, decodes, context, prompts)
                    seconds += times * part.seconds
                    loaded += times * part.expert_bytes
                    size += times * part.bytes
                    flops += times * part.flops
        beside = self._beside(decodes + heads)
        seconds = beside.seconds + seconds
        size, flops = beside.bytes + size, beside.flops + flops
        return Load(seconds, loaded, size, flops, self._joules(seconds, size, flops))

    def layer_costs(self, tokens: int = 512) -> tuple[float, ...]:
        """Seconds of each layer for a prompt of ``tokens``: what groups of layers balance."""
        parts = {x: self._layer(x, 0, 0, [(0, tokens)]) for x in alike(self.model.layers)}
        return tuple(parts[layer].seconds for layer in self.model.layers)

    @abstractmethod
    def _layer(
        self, layer: LayerShape, decodes: int, context: int, chunks: Sequence[Chunk]
    ) -> Part:
        """A layer that requests which decode and the tokens of ``chunks`` pass."""

    @abstractmethod
    def _beside(self, heads: int) -> Part:
        """What an iteration takes beside its layers, in which ``heads`` tokens are chosen."""

    @abstractmethod
    def transfer_seconds(self, size: float) -> float:
        """Time in which ``size`` bytes leave these GPUs for others, or come to them: each GPU sends
        or takes its share over its own link."""

    def transfer_joules(self, size: float) -> float:
        """Energy of reading ``size`` bytes of one pool's memory and writing them into another's."""
        return 2 * self._joules_per_byte * size

    def cache_bytes(self, tokens: int, layers: int) -> int:
        """Bytes that caches of so many ``layers`` keep of ``tokens``, on all GPUs together."""
        return tokens * layers * self.model.kv_bytes

    @cached_property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values have room on all GPUs together."""
        room = self.device.data_bytes
        return 10**12 if room is None else self.model.kv_tokens(room * self.gpus)

    def idle_joules(self, seconds: float) -> float:
        """Energy of all GPUs over ``seconds`` without work."""
        return self._idle_watts * seconds

    def _joules(self, seconds: float, size: float, flops: float) -> float:
        """Energy of all GPUs over ``seconds`` in which kernels run."""
        moved = self._joules_per_byte * size + self._joules_per_flop * flops
        return self._busy_watts * seconds + moved

    def _count(self, layers: range) -> dict[LayerShape, int]:
        """How many of ``layers`` there are of each shape."""
        if layers not in self._counts:
            self._counts[layers] = alike(self.model.layers[layers.start : layers.stop])
        return self._counts[layers]
