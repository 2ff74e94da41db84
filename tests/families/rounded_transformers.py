"""Logits of a model of transformers in float64, of what a CUDA program of f16 keeps and rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

EXACT = 4
"""Vectors that kernels multiply by in two values each, so that none is rounded."""


def half(values: torch.Tensor) -> torch.Tensor:
    """``values`` rounded to f16, in the type that they have."""
    return values.half().to(values.dtype)


class Noise:
    """What sums of f32 may be off by, before they are rounded: two units of it, drawn with a
    ``seed``, and nothing with 0."""

    def __init__(self, seed: int) -> None:
        self.dice = torch.Generator().manual_seed(seed) if seed else None

    def half(self, values: torch.Tensor) -> torch.Tensor:
        """``values``, off by as much, rounded to f16."""
        if self.dice is None:
            return half(values)
        off = torch.rand(values.shape, generator=self.dice, dtype=torch.float64) * 2 - 1
        return half(values * (1 + off * 2.0**-22))


class RoundedCache(DynamicCache):
    """Keys and values, or latents and turned keys, of ``network`` as caches of f16 hold them. What
    YaRN and LongRoPE multiply turned lanes of keys by is no part of them."""

    def __init__(self, network: Any, noise: Noise) -> None:
        super().__init__(config=network.config)
        self.half = noise.half
        self.factor, self.turned = 1.0, 0
        rotary = getattr(network.base_model, "rotary_emb", None)
        if hasattr(rotary, "attention_scaling"):
            self.factor, self.turned = rotary.attention_scaling, 2 * len(rotary.inv_freq)
        self.turns = getattr(network.config, "no_rope_layers", None)

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *more: Any, **named: Any
    ) -> Any:
        factors = torch.ones(keys.shape[-1], dtype=keys.dtype)
        if not self.turns or self.turns[layer]:
            factors[: self.turned] = self.factor
        rounded = self.half(keys / factors) * factors
        return super().update(rounded, self.half(values), layer, *more, **named)


class RoundedLeftSides(torch.overrides.TorchFunctionMode):
    """What products with weights multiply is rounded, but for latents of keys and values, which
    are as caches hold them."""

    def __init__(self, noise: Noise) -> None:
        super().__init__()
        self.half = noise.half

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, given: Any = (), named: Any = None
    ) -> Any:
        named = named or {}
        if function is torch.nn.functional.linear:
            first, *rest = given
            given = (self.half(first), *rest)
        elif function is torch.addmm:  # the layers of GPT-2
            bias, first, *rest = given
            given = (bias, self.half(first), *rest)
        return function(*given, **named)


def gated_experts(
    self: Any, hidden: torch.Tensor, chosen: torch.Tensor, gates: torch.Tensor
) -> torch.Tensor:
    """Chosen experts in the order in which kernels compute: features times gates, then the outer
    product. A registered implementation of experts for transformers; ``[tokens, lanes]`` and
    ``[tokens, choices]``."""

    def product(left: torch.Tensor, name: str) -> torch.Tensor:
        weight = getattr(self, name)[chosen].double()
        if not self.is_transposed:
            weight = weight.transpose(-1, -2)
        # As linear layers, so that a mode sees what is multiplied.
        rows = [
            torch.nn.functional.linear(one, of.T)
            for one, of in zip(left.flatten(0, 1), weight.flatten(0, 1), strict=True)
        ]
        return torch.stack(rows).view(*left.shape[:2], -1)

    each = hidden[:, None].expand(-1, chosen.shape[1], -1)
    features = product(each, "gate_up_proj")
    if self.has_bias:
        features = features + self.gate_up_proj_bias[chosen]
    weights = gates[..., None].to(hidden.dtype)
    found = product(self._apply_gate(features) * weights, "down_proj")
    if self.has_bias:
        found = found + self.down_proj_bias[chosen] * weights
    return found.sum(1)


def latents_attended(
    self: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor,
    *, scaling: float, **_: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Attention as prompts have it of latents, two products with weights more: of queries, and of
    latents weighed by the softmax, both rounded. An implementation of attention for transformers;
    ``[requests, heads, tokens, lanes]``."""
    plain = self.qk_nope_head_dim
    query = torch.cat((half(query[..., :plain]), query[..., plain:]), -1)
    scores = query @ key.transpose(-1, -2) * scaling + mask
    weight = self.kv_b_proj.weight.view(query.shape[1], -1, self.kv_lora_rank)
    latents = self.kv_b_proj.multiplied.view(len(query), 1, -1, self.kv_lora_rank)
    weighed = half(scores.softmax(-1) @ latents)
    return torch.einsum("bhtc,hvc->bthv", weighed, weight[:, plain:]), None


ALL_EXPERTS_FUNCTIONS.register("gated", gated_experts)
ALL_ATTENTION_FUNCTIONS.register("latents", latents_attended)
ALL_MASK_ATTENTION_FUNCTIONS.register("latents", ALL_MASK_ATTENTION_FUNCTIONS["eager"])


@contextmanager
def rounding(network: Any, noise: Noise) -> Iterator[None]:
    """What products with weights multiply is rounded within."""
    attention, hooks = network.config._attn_implementation, []
    for name, module in network.named_modules():
        if name.endswith("kv_b_proj"):
            hooks.append(module.register_forward_pre_hook(_keep))
    if hooks:
        network.set_attn_implementation("latents")
    with RoundedLeftSides(noise):
        yield
    network.set_attn_implementation(attention)
    for hook in hooks:
        hook.remove()


def _keep(module: Any, given: tuple[torch.Tensor]) -> None:
    (module.multiplied,) = given


def of_stored_weights(network: Any, gains_less_one: bool) -> Any:
    """``network`` in float64, of the weights of a program of f16: gains of norms that a checkpoint
    stores less one are rounded whole, and where YaRN or LongRoPE makes some lanes of heads larger,
    or those of some layers, these are so in the weights of queries."""
    network = network.double()
    cache = RoundedCache(network, Noise(0))
    with torch.no_grad():
        for name, param in network.named_parameters():
            if gains_less_one and name.endswith("norm.weight"):
                param.copy_(half(1 + param) - 1)
            lanes = getattr(network.config, "head_dim", None) or 0
            if cache.turns and ".q_proj." in name and cache.turns[int(name.split(".")[2])]:
                param.copy_(half(param * cache.factor**2) / cache.factor**2)
            if name.endswith("qkv_proj.weight") and 0 < cache.turned < lanes:
                queries = param[: network.config.num_attention_heads * lanes]
                turned = queries.unflatten(0, (-1, lanes))[:, : cache.turned]
                turned.copy_(half(turned * cache.factor**2) / cache.factor**2)
    return network


def rounded_logits(
    network: Any, prompt: Sequence[int], following: Sequence[int], together: int, seed: int = 0
) -> np.ndarray:
    """Logits ``[tokens, vocabulary]`` behind the last token of ``prompt`` and behind each of the
    ``following`` ones, of a ``network`` in float64. ``together`` tokens of a prompt are read at
    once, 0 where steps read them; the last one is read by a step. With a ``seed`` what is rounded
    is off before by what sums of f32 are off by."""
    if hasattr(network.config, "num_experts_per_tok"):
        network.config._experts_implementation = "gated"
    noise, first = Noise(seed), len(prompt) - 1
    cache = RoundedCache(network, noise)

    def read(tokens: Sequence[int]) -> torch.Tensor:
        given = torch.tensor([list(tokens)])
        found: torch.Tensor = network(input_ids=given, past_key_values=cache, use_cache=True).logits
        return found[0]

    with torch.no_grad():
        if together > EXACT:
            with rounding(network, noise):
                read(prompt[:first])
        else:
            read(prompt[:first])
        steps = [read([token])[-1] for token in (prompt[first], *following)]
    return torch.stack(steps).double().numpy()
