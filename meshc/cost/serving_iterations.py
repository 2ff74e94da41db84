"""What an iteration of a serving system costs on GPUs in tensor parallel: seconds, bytes, joules.

In each layer, products with weights take the 2-norm of the time to read them and the time to
compute with them: reading hides behind arithmetic but for the beginning and end of each product.
This form fits Figure 2 of arXiv 2510.08055 within 3 %, a sum or a maximum of both does not (20 %).
Beside them a layer takes attention over prompts (arithmetic), reading of the keys and values of
requests that decode, two all-reduces, passes over activations, and a fixed time that is larger
where prompts are read. An iteration takes a fixed time more, and the matrix of the vocabulary once.

All rates are numbers of a device of kind ``node``, whose cores are GPUs; its file says which are
calibrated on which published rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import hypot
from typing import NamedTuple

from meshc.cost.expert_coverage import Coverage, independent_tokens
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


class _Part(NamedTuple):
    """One layer's or several layers' share of a load."""

    seconds: float
    expert_bytes: float
    bytes: float
    flops: float


class IterationCost:
    """Costs of iterations of ``model`` on ``gpus`` GPUs of ``device``.

    Errors: ``bad-argument`` when the device is no node of GPUs or has fewer; ``device-number``
    when it does not give a number that is needed.
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
        self.model, self.device, self.gpus = model, device, gpus
        self._rates = _Rates.of(device, gpus)
        self._decode_layers: dict[tuple[LayerShape, int], _Part] = {}
        self._counts: dict[range, dict[LayerShape, int]] = {}

    @cached_property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values have room on all GPUs together."""
        room = self.device.data_bytes
        return 10**12 if room is None else self.model.kv_tokens(room * self.gpus)

    def transfer_seconds(self, tokens: int) -> float:
        """Time to send the keys and values of ``tokens`` from one pool of GPUs to another."""
        size = tokens * self.model.kv_bytes * len(self.model.layers)
        return self._rates.message_seconds + size / self._rates.link

    def layer_costs(self, tokens: int = 512) -> tuple[float, ...]:
        """Seconds of each layer for a prompt of ``tokens``: what groups of layers balance."""
        parts = {x: self._layer(x, 0, 0, [(0, tokens)]) for x in alike(self.model.layers)}
        return tuple(parts[layer].seconds for layer in self.model.layers)

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
            if reading:
                part = self._layer(layer, decodes, context, chunks)
                seconds += reading * part.seconds
                loaded += reading * part.expert_bytes
                size += reading * part.bytes
                flops += reading * part.flops
            if decodes and total > reading:
                part = self._decode_layer(layer, decodes, context)
                seconds += (total - reading) * part.seconds
                loaded += (total - reading) * part.expert_bytes
                size += (total - reading) * part.bytes
                flops += (total - reading) * part.flops
        words = self._vocabulary(decodes + heads)
        seconds = self._rates.step + words.seconds + seconds
        size, flops = words.bytes + size, words.flops + flops
        return Load(seconds, loaded, size, flops, self._joules(seconds, size, flops))

    def idle_joules(self, seconds: float) -> float:
        """Energy of all GPUs over ``seconds`` without work."""
        return self._rates.idle_watts * seconds

    # --- parts

    def _joules(self, seconds: float, size: float, flops: float) -> float:
        """Energy of all GPUs over ``seconds`` in which kernels run."""
        rates = self._rates
        moved = rates.joules_per_byte * size + rates.joules_per_flop * flops
        return rates.busy_watts * seconds + moved

    def _count(self, layers: range) -> dict[LayerShape, int]:
        if layers not in self._counts:
            self._counts[layers] = alike(self.model.layers[layers.start : layers.stop])
        return self._counts[layers]

    def _vocabulary(self, tokens: int) -> _Part:
        if not tokens:
            return _Part(0.0, 0.0, 0.0, 0.0)
        parameters = self.model.vocabulary * self.model.hidden
        size, flops = parameters * self.model.element_bytes, 2.0 * parameters * tokens
        seconds = hypot(size / self._rates.read, flops / self._rates.products)
        return _Part(seconds, 0.0, size, flops)

    def _decode_layer(self, layer: LayerShape, decodes: int, context: int) -> _Part:
        """A layer that no prompt passes; what does not depend on contexts is remembered."""
        key = (layer, decodes)
        if key not in self._decode_layers:
            self._decode_layers[key] = self._products(layer, decodes, float(decodes), False)
        return self._with_values(self._decode_layers[key], layer, decodes, context)

    def _layer(
        self, layer: LayerShape, decodes: int, context: int, chunks: Sequence[Chunk]
    ) -> _Part:
        tokens = decodes + sum(stop - start for start, stop in chunks)
        independent = decodes + sum(independent_tokens(b - a) for a, b in chunks)
        part = self._products(layer, tokens, independent, True)
        width = 4.0 * self.model.heads * self.model.head_dim
        flops = width * sum(pairs_seen(a, b, layer.window) for a, b in chunks)
        behind = sum(min(a, layer.window or a) for a, _ in chunks)
        part = _Part(
            part.seconds + flops / self._rates.attention,
            part.expert_bytes,
            part.bytes + behind * self.model.kv_bytes,
            part.flops + flops,
        )
        return self._with_values(part, layer, decodes, context)

    def _products(self, layer: LayerShape, tokens: int, independent: float, prompts: bool) -> _Part:
        """Everything of a layer but attention: ``tokens`` pass it, ``prompts`` says whether some of
        them are of prompts."""
        model, rates = self.model, self._rates
        shared = model.shared_parameters(layer)
        size, flops = shared * model.element_bytes, 2.0 * shared * tokens
        seconds = hypot(size / rates.read, flops / rates.products)
        loaded = 0.0
        if layer.experts:
            own = model.expert_parameters(layer)
            coverage = self._coverage(layer).of(independent)
            loaded = coverage * layer.experts * own * model.element_bytes
            routed = 2.0 * layer.top_k * own * tokens
            seconds += hypot(loaded / rates.expert_read, routed / rates.experts)
            flops += routed
        activations = tokens * model.hidden * model.element_bytes
        share = 1.0 if layer.experts else rates.dense_share
        moved = share * rates.passes * activations
        fixed = rates.prompt_layer if prompts else rates.layer
        seconds += moved / rates.own_read + share * fixed
        if self.gpus > 1:
            sent = 2 * (self.gpus - 1) / self.gpus * activations
            seconds += 2 * (rates.message_seconds + sent / rates.link)
        return _Part(seconds, loaded, size + loaded + moved * self.gpus, flops)

    def _with_values(self, part: _Part, layer: LayerShape, decodes: int, context: int) -> _Part:
        """``part`` and the attention of requests that decode."""
        if not decodes:
            return part
        seen = context if layer.window is None else min(context, decodes * layer.window)
        size = seen * self.model.kv_bytes
        return _Part(
            part.seconds + size / self._rates.read,
            part.expert_bytes,
            part.bytes + size,
            part.flops + 4.0 * self.model.heads * self.model.head_dim * seen,
        )

    def _coverage(self, layer: LayerShape) -> Coverage:
        return _coverage_of(layer.experts, layer.top_k)


@dataclass(frozen=True)
class _Rates:
    """A device's numbers for ``gpus`` GPUs together, but for ``own_read``: what each of them reads
    whose activations are all GPUs' alike."""

    read: float
    own_read: float
    expert_read: float
    experts: float
    products: float
    attention: float
    passes: float
    layer: float
    prompt_layer: float
    dense_share: float
    step: float
    link: float
    message_seconds: float
    idle_watts: float
    busy_watts: float
    joules_per_byte: float
    joules_per_flop: float

    @classmethod
    def of(cls, device: Device, gpus: int) -> _Rates:
        link = device.link.words_per_cycle * device.link.word_bytes * device.clock_hz
        return cls(
            read=gpus * device.read_bytes_per_second,
            own_read=device.read_bytes_per_second,
            expert_read=gpus * device.real("expert_bytes_per_second"),
            experts=gpus * device.real("expert_flops_per_second"),
            products=gpus * device.real("product_flops_per_second"),
            attention=gpus * device.real("attention_flops_per_second"),
            passes=device.real("activation_passes"),
            layer=device.real("layer_seconds"),
            prompt_layer=device.real("prompt_layer_seconds"),
            dense_share=device.real("dense_share"),
            step=device.real("iteration_seconds"),
            link=link,
            message_seconds=device.seconds(device.link.hop_cycles),
            idle_watts=gpus * device.real("idle_watts"),
            busy_watts=gpus * device.real("busy_watts"),
            joules_per_byte=device.real("joules_per_byte"),
            joules_per_flop=device.real("joules_per_flop"),
        )


_COVERAGES: dict[tuple[int, int], Coverage] = {}


def _coverage_of(experts: int, top_k: int) -> Coverage:
    """One table of coverage for all layers alike."""
    return _COVERAGES.setdefault((experts, top_k), Coverage(experts, top_k))


def pairs_seen(start: int, stop: int, window: int | None) -> float:
    """Pairs of a token of a chunk and a token that it sees, itself included."""
    if window is None or stop <= window:
        return (stop - start) * (start + stop + 1) / 2
    free = max(start, window)
    return (
        (stop - free) * window + pairs_seen(start, free, None)
        if start < free
        else (stop - start) * float(window)
    )
