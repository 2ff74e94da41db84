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
from math import hypot

from meshc.cost.expert_coverage import coverage_of, independent_tokens
from meshc.cost.served_models import LayerShape, ServedModel
from meshc.cost.serving_costs import Chunk, Part, ServingCosts
from meshc.devices import Device


class IterationCost(ServingCosts):
    """Costs that are fitted to published servers. Errors: those of :class:`ServingCosts`."""

    def __init__(self, model: ServedModel, device: Device, gpus: int) -> None:
        super().__init__(model, device, gpus)
        self._rates = _Rates.of(device, gpus)
        self._decode_layers: dict[tuple[LayerShape, int], Part] = {}

    def transfer_seconds(self, size: float) -> float:
        return self._rates.message_seconds + size / (self.gpus * self._rates.link)

    # --- parts

    def _beside(self, heads: int) -> Part:
        if not heads:
            return Part(self._rates.step, 0.0, 0.0, 0.0)
        parameters = self.model.vocabulary * self.model.hidden
        size, flops = parameters * self.model.element_bytes, 2.0 * parameters * heads
        seconds = hypot(size / self._rates.read, flops / self._rates.products)
        return Part(self._rates.step + seconds, 0.0, size, flops)

    def _layer(
        self, layer: LayerShape, decodes: int, context: int, chunks: Sequence[Chunk]
    ) -> Part:
        if not chunks:
            return self._decode_layer(layer, decodes, context)
        tokens = decodes + sum(stop - start for start, stop in chunks)
        independent = decodes + sum(independent_tokens(b - a) for a, b in chunks)
        part = self._products(layer, tokens, independent, True)
        works = [self.model.rank_attention.chunk(a, b, layer.window) for a, b in chunks]
        flops = self.gpus * sum(work.flops for work in works)
        beside = self.gpus * sum(work.values for work in works) * self.model.element_bytes
        behind = sum(min(a, layer.window or a) for a, _ in chunks)
        part = Part(
            part.seconds + flops / self._rates.attention + beside / self._rates.read,
            part.expert_bytes,
            part.bytes + behind * self.model.kv_bytes + beside,
            part.flops + flops,
        )
        return self._with_values(part, layer, decodes, context)

    def _decode_layer(self, layer: LayerShape, decodes: int, context: int) -> Part:
        """A layer that no prompt passes; what does not depend on contexts is remembered."""
        key = (layer, decodes)
        if key not in self._decode_layers:
            self._decode_layers[key] = self._products(layer, decodes, float(decodes), False)
        return self._with_values(self._decode_layers[key], layer, decodes, context)

    def _products(self, layer: LayerShape, tokens: int, independent: float, prompts: bool) -> Part:
        """Everything of a layer but attention: ``tokens`` pass it, ``prompts`` says whether some of
        them are of prompts."""
        model, rates = self.model, self._rates
        shared = model.shared_parameters(layer)
        size, flops = shared * model.weight_bytes, 2.0 * shared * tokens
        seconds = hypot(size / rates.read, flops / rates.products)
        loaded = 0.0
        if layer.experts:
            own = model.expert_parameters(layer)
            coverage = coverage_of(layer.experts, layer.top_k).of(independent)
            loaded = coverage * layer.experts * own * model.expert_weight_bytes
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
        return Part(seconds, loaded, size + loaded + moved * self.gpus, flops)

    def _with_values(self, part: Part, layer: LayerShape, decodes: int, context: int) -> Part:
        """``part`` and the attention of requests that decode."""
        if not decodes:
            return part
        seen = context if layer.window is None else min(context, decodes * layer.window)
        size = seen * self.model.kv_bytes
        flops = self.gpus * self.model.rank_attention.step_flops * seen
        return Part(
            part.seconds + max(size / self._rates.read, flops / self._rates.attention),
            part.expert_bytes,
            part.bytes + size,
            part.flops + flops,
        )


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
        )
