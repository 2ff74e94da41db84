"""The shape of a model as serving sees it: what its layers load and compute for a token."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from meshc.cost.served_attention import ServedAttention
from meshc.support.diagnostics import fail


@dataclass(frozen=True)
class LayerShape:
    """What one layer has beside attention.

    ``experts`` of ``expert_width`` values, of which a token passes ``top_k``; ``dense_width``
    values that every token passes (a dense feed-forward part or shared experts). ``window``: the
    latest tokens that attention sees; None for all of them. ``gated``: feed-forward parts have
    three matrices, else two.
    """

    experts: int
    top_k: int
    expert_width: int
    dense_width: int
    window: int | None
    gated: bool = True

    @property
    def inward(self) -> int:
        """Matrices into the features of a feed-forward part."""
        return 2 if self.gated else 1


@dataclass(frozen=True)
class ServedModel:
    """A decoder of feed-forward parts and attention, dealt to ``ranks`` GPUs.

    ``element_bytes`` is the width of activations, keys, values and tables of the vocabulary, of
    which there is one where they are ``tied``; ``weight_bytes`` that of weights of layers and
    ``expert_weight_bytes`` that of their experts, scales included. With ``whole_experts`` each rank
    has some of the experts, else a share of the features of each. A sequence has up to so many
    ``positions``; None where nothing says how many. Where these are ``learned`` no longer one can
    be read.
    """

    name: str
    hidden: int
    attention: ServedAttention
    vocabulary: int
    layers: tuple[LayerShape, ...]
    tied: bool = False
    element_bytes: int = 2
    weight_bytes: float = 2.0
    expert_weight_bytes: float = 2.0
    ranks: int = 1
    whole_experts: bool = False
    positions: int | None = None
    learned: bool = False

    @property
    def experts(self) -> int:
        """Experts of the layer that has most; 0 for a dense model."""
        return max(layer.experts for layer in self.layers)

    @cached_property
    def rank_attention(self) -> ServedAttention:
        """The attention of one rank."""
        return self.attention.share(self.ranks)

    @cached_property
    def attention_parameters(self) -> int:
        """Parameters of the projections of a layer, on all ranks together."""
        return self.ranks * self.rank_attention.parameters(self.hidden)

    def expert_parameters(self, layer: LayerShape) -> int:
        """Parameters of one expert."""
        return (layer.inward + 1) * self.hidden * layer.expert_width

    def shared_parameters(self, layer: LayerShape) -> int:
        """Parameters of a layer that every token passes."""
        router = self.hidden * layer.experts
        dense = (layer.inward + 1) * self.hidden * layer.dense_width
        return self.attention_parameters + dense + router

    @property
    def parameters(self) -> int:
        """All matrices; norms and biases are left out."""
        experts = sum(x.experts * self.expert_parameters(x) for x in self.layers)
        return self._beside_experts + experts

    @property
    def active_parameters(self) -> int:
        """Those that a token passes, the matrices of the vocabulary included."""
        return self._beside_experts + sum(x.top_k * self.expert_parameters(x) for x in self.layers)

    @property
    def _beside_experts(self) -> int:
        return self._words + sum(map(self.shared_parameters, self.layers))

    @property
    def _words(self) -> int:
        """Parameters of the tables of the vocabulary."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def expert_bytes(self) -> float:
        """Bytes of all experts of all layers: what one pass loads at most."""
        parameters = sum(x.experts * self.expert_parameters(x) for x in self.layers)
        return parameters * self.expert_weight_bytes

    @property
    def bytes(self) -> float:
        """Bytes of all matrices."""
        shared = sum(map(self.shared_parameters, self.layers)) * self.weight_bytes
        return self._words * self.element_bytes + shared + self.expert_bytes

    @property
    def kv_bytes(self) -> int:
        """Bytes that caches of one layer keep of a token, on all ranks together."""
        return self.ranks * self.rank_attention.cached_values * self.element_bytes

    def on(self, gpus: int) -> ServedModel:
        """The model on ``gpus`` GPUs, with what these have together: padding of heads that do not
        come out even, copies of key heads that are fewer than GPUs, and latents, which each GPU
        keeps whole."""
        return replace(self, ranks=gpus)

    def with_whole_experts(self) -> ServedModel:
        """The model with some of the experts on each rank. Raises ``bad-argument`` where it has
        none."""
        if not self.experts:
            fail("bad-argument", f"'{self.name}' has no experts that GPUs could have whole")
        return replace(self, whole_experts=True)

    def kv_tokens(self, memory_bytes: float) -> int:
        """Tokens whose keys and values have room in ``memory_bytes`` beside the weights; layers
        with a window keep as many as the others (nothing is reused)."""
        left = memory_bytes - self.bytes
        return max(0, int(left // (self.kv_bytes * len(self.layers))))


def alike(layers: Iterable[LayerShape]) -> dict[LayerShape, int]:
    """How many layers there are of each shape."""
    found: dict[LayerShape, int] = {}
    for layer in layers:
        found[layer] = found.get(layer, 0) + 1
    return found
