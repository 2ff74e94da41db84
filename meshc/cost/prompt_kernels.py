"""Time of the kernels that read many tokens of a prompt at once on one GPU.

A block of a product has rows of a matrix and goes through its width by sixteens. Where warps
multiply, a step takes a time of its own and more for each token. A block of attention has 64
queries and goes through the tokens that they see. Blocks of a kernel run at the same time, one on
each multiprocessor, in as many turns as there are too many of them; kernels run one behind the
other. These three times are fitted to four chunks of Llama-3-8B on an H200, in which look-ups and
norms are part of them, and were measured of no other model.

Where warpgroups multiply, nothing was timed: a step takes what tensor cores take for it at the rate
of the data sheet, or what its bytes take that shared memory gives and gets, if that is more; the
product as a whole at least what L2 takes to give all of its bytes and memory to give the weights.
Each turn begins with a tile on its way and ends with results on theirs, beside which nothing is
multiplied; norms and heads take the bytes that they read and write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshc.cost.predictions import Part, Prediction, inputs_of
from meshc.cost.prompts import ProductTile, product_tile, query_tiles, weight_bytes
from meshc.cost.served_attention import GroupedAttention
from meshc.cost.served_models import LayerShape, ServedModel
from meshc.cost.terms import NOTHING, Cost
from meshc.devices import Device
from meshc.support.diagnostics import fail

NS = 1e-9
STEP, TOKEN, SEEN = "chunk_step_ns", "chunk_token_ns", "chunk_seen_ns"
RATE, LATENCY = "stream_bytes_per_second", "stream_latency_ns"
TENSOR, CACHE = "tensor_flops_per_second", "l2_bytes_per_second"
_SIXTEEN, _EIGHT, _LANES = 16, 8, 128
_BANK_BYTES = 128  # of shared memory in a cycle
_F32, _F16, _SECTOR, _PIECE = 4, 2, 32, 8


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
                    cost += self._product(name, rows, width, end - begin)
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
        if self._warpgroups:
            parts.append(Part("norms and heads", 2 * calls, self._beside(chunks)))
        timed = (TENSOR, CACHE, LATENCY, "clock_hz") if self._warpgroups else (STEP, TOKEN)
        inputs = inputs_of(self.device, (*timed, SEEN, RATE, "cores"))
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

    @property
    def _warpgroups(self) -> bool:
        return product_tile(self.device, self.model.hidden, self.tokens).warpgroups

    def _product(self, name: str, rows: int, width: int, tokens: int) -> Cost:
        tile = product_tile(self.device, rows, self.tokens)
        if tile.warpgroups:
            return self._product_of_warpgroups(tile, name, rows, width, tokens)
        turns = -(-tile.blocks(rows, tokens) // self.device.cores)
        steps, eights = -(-width // _SIXTEEN), -(-tokens // _EIGHT) * _EIGHT
        return Cost(
            transfer=turns * steps * self.device.real(STEP) * NS,
            compute=turns * steps * eights * self.device.real(TOKEN) * NS,
        )

    def _product_of_warpgroups(
        self, tile: ProductTile, name: str, rows: int, width: int, tokens: int
    ) -> Cost:
        device, rate = self.device, self.device.real(RATE)
        turns = -(-tile.blocks(rows, tokens) // device.cores)
        steps = turns * -(-width // _SIXTEEN)
        columns = min(tile.columns, tile.multiplied(tokens))
        macs = tile.groups * _SIXTEEN * columns * _SIXTEEN
        multiplied = steps * macs * 2 * device.cores / device.real(TENSOR)
        weights, values = tile.groups * _SIXTEEN * _SIXTEEN * _F16, columns * _SIXTEEN * _F16
        # Both come, fragments go to registers, and each warpgroup of four row groups reads values.
        shared = 2 * weights + values + tile.groups // 4 * values
        given = steps * shared / (_BANK_BYTES * device.real("clock_hz"))
        copied = tile.copied_bytes(rows, width, tokens) / device.real(CACHE)
        moving = max(multiplied, given, copied, weight_bytes(rows, width) / rate)
        ends = rows * tokens * self._result_bytes(name) / rate
        return Cost(
            compute=multiplied,
            transfer=moving - multiplied + ends,
            waits=turns * device.real(LATENCY) * NS,
        )

    def _result_bytes(self, name: str) -> float:
        """Bytes that go to memory and come from it for a row and a token of a product, as if pieces
        of eight bytes of columns were whole sectors."""
        if name == "inner products":
            gated = 2 if all(layer.gated for layer in self.model.layers) else 1
            return _F16 * _SECTOR / _PIECE / gated
        return _F32 if name == "projections" else 2 * _F32

    def _beside(self, chunks: Sequence[tuple[int, int]]) -> Cost:
        """Norms in front of both blocks of a layer, and heads that turn and enter caches."""
        own = self._grouped
        lanes = (own.heads + 2 * own.key_heads) * own.head_dim
        normed = 2 * self.model.hidden * (_F32 + _F16)
        each = len(self.model.layers) * (normed + lanes * (_F32 + _F16))
        waits = 3 * len(self.model.layers) * len(chunks) * self.device.real(LATENCY) * NS
        read = sum(end - begin for begin, end in chunks) * each
        return Cost(transfer=read / self.device.real(RATE), waits=waits)

    def _least(self, rows: int, width: int, tokens: int) -> float:
        device = self.device
        rate = device.cores * device.real("f16_macs_per_cycle") * device.real("clock_hz")
        if self._warpgroups:
            rate = device.real(TENSOR) / 2
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
