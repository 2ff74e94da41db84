"""Time of the kernels that read many tokens of a prompt at once on one GPU.

A block of a product has 64 rows of a matrix and goes through its width by sixteens: a step takes a
time of its own and more for each token. A block of attention has 64 queries and goes through the
tokens that they see. Blocks of a kernel run at the same time, one on each multiprocessor, in as
many turns as there are too many of them; kernels run one behind the other. The three times are
fitted to four chunks of Llama-3-8B on an H200, in which look-ups and norms are part of them, and
were measured of no other model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshc.cost.predictions import Part, Prediction, inputs_of
from meshc.cost.prompts import OWN_GROUPS, query_tiles, weight_bytes
from meshc.cost.served_attention import GroupedAttention
from meshc.cost.served_models import LayerShape, ServedModel
from meshc.cost.terms import NOTHING, Cost
from meshc.devices import Device
from meshc.support.diagnostics import fail

NS = 1e-9
STEP, TOKEN, SEEN = "chunk_step_ns", "chunk_token_ns", "chunk_seen_ns"
RATE = "stream_bytes_per_second"
_SIXTEEN, _EIGHT, _LANES = 16, 8, 128


@dataclass(frozen=True)
class PromptKernels:
    """Kernels on ``device`` that read up to ``tokens`` tokens of a prompt of ``model``, where
    ``least`` or more are left of it."""

    device: Device
    model: ServedModel
    tokens: int
    least: int

    def chunks(self, tokens: int) -> list[tuple[int, int]]:
        """Where they begin and end in a prompt of so many tokens; what is left is not theirs."""
        found, at = [], 0
        while tokens - at >= self.least:
            found.append((at, min(at + self.tokens, tokens)))
            at = found[-1][1]
        return found

    def predicted(self, chunks: Sequence[tuple[int, int]], logits: bool) -> Prediction:
        """What ``chunks`` take, in seconds, with ``logits`` behind the last one. The bound is the
        time of their multiply-adds at the device's rate, or of their weights' bytes if that is
        more. Raises ``device-number``."""
        parts, bound, read = [], 0.0, 0.0
        for name, matrices in self._products().items():
            cost = NOTHING
            for rows, width in matrices:
                for begin, end in chunks:
                    cost += self._product(rows, width, end - begin)
                    bound += self._least(rows, width, end - begin)
                    read += weight_bytes(rows, width)
            parts.append(Part(name, len(matrices) * len(chunks), cost))
        seen = sum(
            self._attention(layer, *chunk) for layer in self.model.layers for chunk in chunks
        )
        calls = len(self.model.layers) * len(chunks)
        parts.append(Part("attention", calls, Cost(compute=seen * self.device.real(SEEN) * NS)))
        if logits:
            size = weight_bytes(self.model.vocabulary, self.model.hidden)
            head = size / self.device.real(RATE)
            parts.append(Part("logits", 1, Cost(transfer=head)))
            bound, read = bound + head, read + size
        inputs = inputs_of(self.device, (STEP, TOKEN, SEEN, RATE, "cores"))
        kept = self.model.kv_bytes * len(self.model.layers)
        read += sum(kept * end for _, end in chunks)
        found = tuple(parts)
        return Prediction("chunks", "seconds", None, found, inputs, bound, _APART, bytes=read)

    @property
    def _grouped(self) -> GroupedAttention:
        """The attention of the model. Raises ``unsupported-architecture`` for another one, of whose
        kernels nothing was timed."""
        found = self.model.attention
        if not isinstance(found, GroupedAttention):
            fail(
                "unsupported-architecture",
                f"'{self.model.name}' has no grouped queries, the only ones whose kernels of "
                "prompts were timed",
            )
        return found

    def _products(self) -> dict[str, list[tuple[int, int]]]:
        """Rows and widths of the matrices of all layers."""
        model, own = self.model, self._grouped
        heads, keys = own.heads * own.head_dim, own.key_heads * own.head_dim
        found: dict[str, list[tuple[int, int]]] = {}
        for layer in model.layers:
            inner = layer.inward * layer.dense_width
            for name, rows, width in (
                ("projections", heads + 2 * keys, model.hidden),
                ("output projection", model.hidden, heads),
                ("inner products", inner, model.hidden),
                ("outer product", model.hidden, layer.dense_width),
            ):
                found.setdefault(name, []).append((rows, width))
        return found

    def _product(self, rows: int, width: int, tokens: int) -> Cost:
        turns = -(-rows // (_SIXTEEN * OWN_GROUPS) // self.device.cores)
        steps, eights = -(-width // _SIXTEEN), -(-tokens // _EIGHT) * _EIGHT
        return Cost(
            transfer=turns * steps * self.device.real(STEP) * NS,
            compute=turns * steps * eights * self.device.real(TOKEN) * NS,
        )

    def _least(self, rows: int, width: int, tokens: int) -> float:
        device = self.device
        rate = device.cores * device.real("f16_macs_per_cycle") * device.real("clock_hz")
        return max(rows * width * tokens / rate, weight_bytes(rows, width) / device.real(RATE))

    def _attention(self, layer: LayerShape, begin: int, end: int) -> float:
        """Tokens that blocks go through one behind the other, as if heads had 128 lanes: those of
        the block that sees most, or those of all over the multiprocessors if these are more."""
        heads = self._grouped
        own, positions = query_tiles(heads.heads // heads.key_heads)
        seen = [
            min(at + positions, end) - max(at + 1 - (layer.window or at + 1), 0)
            for at in range(begin, end, positions)
        ]
        each = sum(seen) * (heads.heads // own) / self.device.cores
        return max(max(seen), each) * heads.head_dim / _LANES


_APART = ("compute", "transfer")
