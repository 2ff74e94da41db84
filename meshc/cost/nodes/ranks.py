"""The kernels of a layer on one GPU of a node in tensor parallel, and the collectives between.

Heads and features are split over GPUs, so each product has a part of its columns or of what it sums
over; behind the projection of attention and behind the feed-forward part stand a sum over all GPUs,
the residual and a norm. In a sum by the switch (multimem, NVLink SHARP) a GPU sends its values
once and gets its share of the sums, then sends that share and gets all; without, each share goes to
every peer. A fused collective does residual and norm on its way, on rows that it holds anyway, but
needs enough blocks to keep links busy (TokenWeave, Figures 5 and 10).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, hypot
from typing import NamedTuple

from meshc.analysis.cuda.stream_turns import blocks_alone
from meshc.cost.expert_coverage import coverage_of, independent_tokens
from meshc.cost.expert_shares import busiest_reached, busiest_rows
from meshc.cost.nodes.iteration_batches import Batch, tokens_of
from meshc.cost.nodes.products import Product, ProductRates
from meshc.cost.served_models import LayerShape, ServedModel
from meshc.devices import Device
from meshc.support.diagnostics import fail

_SHARPNESS = 3.5
"""How suddenly a collective goes over from as fast as its blocks to as fast as its links: with the
fixed time and link rate of TokenWeave's microbenchmark this form has its Figure 10 from 2 to 32
blocks within 12 %, 3 % in the mean."""
_EXPERT_ROWS = 64
"""Rows of a tile of an expert's product, to which its rows are padded."""


class Kernel(NamedTuple):
    """One kernel of a GPU: what it takes, the ``bytes`` of memory that it reads and writes, and its
    arithmetic on values of 16 bits."""

    name: str
    seconds: float
    bytes: float
    flops: float = 0.0


Kernels = tuple[Kernel, ...]


@dataclass(frozen=True)
class Half:
    """A layer of some tokens on one GPU: what stands before each of its two collectives."""

    attention: Kernels
    feed_forward: Kernels

    @property
    def seconds(self) -> float:
        """Seconds of all kernels."""
        return sum(kernel.seconds for kernel in (*self.attention, *self.feed_forward))


class Ranks:
    """Costs of ``model`` on ``gpus`` GPUs of ``device``; ``in_switch`` says that the switch sums.

    Errors: ``bad-argument`` when the device is no node or has fewer GPUs; ``device-number`` when it
    does not give a number that is needed.
    """

    def __init__(
        self, model: ServedModel, device: Device, gpus: int, in_switch: bool = True
    ) -> None:
        if device.kind != "node":
            fail("bad-argument", f"'{device.name}' is no node of GPUs", help="take h100x8")
        if not 2 <= gpus <= device.cores:
            fail(
                "bad-argument",
                f"GPUs in tensor parallel are 2 to {device.cores} of '{device.name}', not {gpus}",
            )
        self.model, self.device, self.gpus = model.on(gpus), device, gpus
        self.rates = ProductRates.of(device, "bf16")
        self.multiprocessors = self.rates.multiprocessors
        self.blocks = device.whole("collective_blocks")
        self.alone = blocks_alone(self.blocks)
        self._in_switch = in_switch
        self._attention_rate = device.real("attention_flops_per_second")
        self._norm_start = device.real("norm_seconds")
        self.start_seconds = device.real("collective_seconds")
        self.link_bytes_per_second = device.real("link_bytes_per_second")
        self._block_rate = device.real("block_bytes_per_second")
        self.slowdown = device.real("overlap_slowdown")
        self.overlap_seconds = device.real("overlap_seconds")
        self.iteration_seconds = device.real("iteration_seconds")

    # --- kernels

    def layer(self, shape: LayerShape, batch: Batch, multiprocessors: int) -> Half:
        """The kernels of a layer for ``batch`` on so many multiprocessors, without norms."""
        return Half(
            self._attention(shape, batch, multiprocessors),
            self._feed_forward(shape, batch, multiprocessors),
        )

    def widest(self, shape: LayerShape, tokens: int) -> Product:
        """The product of a layer that has most blocks: into the features behind the norm, or the
        widest one in front of attention where all features are experts'."""
        if shape.dense_width:
            columns = shape.inward * ceil(shape.dense_width / self.gpus)
            return Product(tokens, columns, self.model.hidden)
        front, _ = self.model.rank_attention.projections(self.model.hidden)
        widest = max(front, key=lambda one: one.columns * one.inner)
        return Product(tokens, widest.columns, widest.inner)

    def norm(self, tokens: int) -> Kernel:
        """Residual sum and norm of all rows, on each GPU: two tensors read and two written."""
        size = 4 * self._row_bytes * tokens
        return Kernel("norm", self._norm_start + size / self.rates.bytes, size)

    def all_reduce(self, tokens: int) -> Kernel:
        """The sum of all rows over all GPUs."""
        seconds = self.start_seconds + self._link_seconds(tokens)
        return Kernel("all_reduce", seconds, 2 * self._row_bytes * tokens)

    def fused(self, tokens: int, blocks: int) -> Kernel:
        """Sum, residual and norm in one kernel of ``blocks`` blocks on each GPU."""
        by_blocks = self._row_bytes * tokens / (self._block_rate * blocks)
        both = (self._link_seconds(tokens) ** _SHARPNESS + by_blocks**_SHARPNESS) ** (
            1 / _SHARPNESS
        )
        own = 2 / self.gpus  # of the residual a GPU reads and writes its share of the rows
        return Kernel(
            "all_reduce_norm", self.start_seconds + both, (2 + own) * self._row_bytes * tokens
        )

    def head(self, rows: int) -> Kernel:
        """The product with a GPU's part of the matrix of the vocabulary."""
        columns = ceil(self.model.vocabulary / self.gpus)
        shape = Product(rows, columns, self.model.hidden)
        return self._product("head", shape, self.multiprocessors, self.model.element_bytes)

    def expert_bytes(self, shape: LayerShape, batch: Batch) -> float:
        """Bytes of the experts that ``batch`` reaches on a GPU, in the mean of all, by the law of
        skewed routing of :mod:`meshc.cost.expert_coverage`."""
        if not shape.experts:
            return 0.0
        share = 1 if self._deals_features else self.gpus
        reached = self._reached(shape, batch) / share
        return reached * self._expert_parameters(shape) * self.model.expert_weight_bytes

    # --- parts

    @property
    def _row_bytes(self) -> int:
        return self.model.hidden * self.model.element_bytes

    def _product(
        self, name: str, shape: Product, multiprocessors: int, weight_bytes: float | None = None
    ) -> Kernel:
        """A product with weights of a layer, or of values of ``weight_bytes``."""
        weight = self.model.weight_bytes if weight_bytes is None else weight_bytes
        others = (shape.rows * (shape.inner + shape.columns)) * self.model.element_bytes
        size = others + weight * shape.inner * shape.columns
        seconds = self.rates.seconds(shape, multiprocessors, size)
        return Kernel(name, seconds, size, 2.0 * shape.rows * shape.columns * shape.inner)

    def _moved(self, name: str, values: float) -> Kernel:
        size = values * self.model.element_bytes
        return Kernel(name, self.rates.start + size / self.rates.bytes, size)

    def _attention(self, shape: LayerShape, batch: Batch, multiprocessors: int) -> Kernels:
        tokens, own = tokens_of(batch), self.model.rank_attention
        works = [own.chunk(chunk.start, chunk.stop, shape.window) for chunk in batch]
        share = multiprocessors / self.multiprocessors
        flops = sum(work.flops for work in works)
        computing = flops / (self._attention_rate * share)
        seen = sum(min(chunk.stop, (shape.window or chunk.stop) + chunk.tokens) for chunk in batch)
        values = seen * own.cached_values + sum(work.values for work in works)
        reading = values * self.model.element_bytes
        seconds = self.rates.start + max(computing, reading / self.rates.bytes)
        front, behind = (
            [
                self._product(one.name, Product(tokens, one.columns, one.inner), multiprocessors)
                for one in side
            ]
            for side in own.projections(self.model.hidden)
        )
        return (
            *front,
            self._moved("rope", 3 * tokens * own.prepared_values),
            Kernel("attention", seconds, reading, flops),
            *behind,
        )

    def _feed_forward(self, shape: LayerShape, batch: Batch, multiprocessors: int) -> Kernels:
        tokens, hidden, found = tokens_of(batch), self.model.hidden, []
        if shape.dense_width:
            width = ceil(shape.dense_width / self.gpus)
            found += [
                self._product("up", Product(tokens, shape.inward * width, hidden), multiprocessors),
                self._moved("gate", (shape.inward + 1) * tokens * width),
                self._product("down", Product(tokens, hidden, width), multiprocessors),
            ]
        if shape.experts:
            found.append(self._experts(shape, batch, multiprocessors))
        return tuple(found)

    def _experts(self, shape: LayerShape, batch: Batch, multiprocessors: int) -> Kernel:
        """Routing, both products of all experts in one kernel each, and the sum of a token's rows:
        the 2-norm of reading and arithmetic, as in ``serving_iterations``. Of GPUs with whole
        experts it is the busiest."""
        tokens, parameters = tokens_of(batch), self._expert_parameters(shape)
        own, reached = shape.experts, self._reached(shape, batch)
        rows = float(tokens * shape.top_k)
        flops = 2.0 * parameters * rows
        if not self._deals_features:
            own, flops = -(-own // self.gpus), flops / self.gpus
            law, alike = coverage_of(shape.experts, shape.top_k), self._independent(batch)
            rows = busiest_rows(law, self.gpus, tokens, alike)
            reached = busiest_reached(self.gpus, own, reached)
        reading = reached * parameters * self.model.expert_weight_bytes / self.rates.bytes
        filled = ceil(rows / own / _EXPERT_ROWS) * _EXPERT_ROWS
        rate = self.device.real("expert_flops_per_second") * multiprocessors / self.multiprocessors
        computing = 2 * parameters * reached * filled / rate
        passes = self.device.real("expert_passes") * rows * self._row_bytes
        kernels = 4 * self.rates.start
        seconds = kernels + hypot(reading, computing) + passes / self.rates.bytes
        return Kernel("experts", seconds, self.expert_bytes(shape, batch) + passes, flops)

    @property
    def _deals_features(self) -> bool:
        """Whether each GPU has a share of the features of all experts."""
        return self.gpus == 1 or not self.model.whole_experts

    def _independent(self, batch: Batch) -> float:
        return sum(independent_tokens(chunk.tokens) for chunk in batch)

    def _reached(self, shape: LayerShape, batch: Batch) -> float:
        """Experts of a layer to which a token of ``batch`` is routed."""
        law = coverage_of(shape.experts, shape.top_k)
        return shape.experts * law.of(self._independent(batch))

    def _expert_parameters(self, shape: LayerShape) -> int:
        """Parameters of an expert on a GPU that has it, or its share of the expert."""
        width = shape.expert_width
        if self._deals_features:
            width = ceil(width / self.gpus)
        return (shape.inward + 1) * width * self.model.hidden

    def _link_seconds(self, tokens: int) -> float:
        """Seconds that a GPU's link is busy in its busier direction, for the sum of ``tokens``
        rows."""
        others = (self.gpus - 1) / self.gpus
        passes = 1 + 1 / self.gpus if self._in_switch else 2 * others
        return passes * self._row_bytes * tokens / self.link_bytes_per_second
