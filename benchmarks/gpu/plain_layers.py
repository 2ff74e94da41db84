"""Layers in a plain layout, for other implementations: weights, caches and angles in memory that
they are given."""

from __future__ import annotations

import numpy as np
from kernels import Cubins, load, probes
from programs import Sizes, fill_noise

from meshc.backends.cuda.driver.device_memory import Buffer
from meshc.backends.cuda.driver.gpu import Device

EPSILON = 1e-5
POINTERS = ("input", "norm", "qkv", "out", "keys", "values", "cosines", "sines")
"""Row-major: the residual stream [batch, hidden], the gain of the norm [hidden], projections
[(heads + 2 kv_heads) head, hidden] and [hidden, heads head], caches [batch, kv_heads, capacity,
head], rotary halves [capacity, head / 2] in f32: value i pairs with i + head / 2."""


class Layers:
    """Memory of layers in the plain layout of :data:`POINTERS`, with noise in it."""

    def __init__(
        self, device: Device, found: Sizes, cached: int, cubins: Cubins | None = None
    ) -> None:
        """Raises MeshcError ``cuda-memory``."""
        self.sizes, self.layers, self.cached = found, found.layers, cached
        self.capacity = -(-(cached + 1) // 8) * 8
        kernels = load(device, probes(), cubins)
        width = (found.heads + 2 * found.kv_heads) * found.head
        pool = (found.batch, found.kv_heads, self.capacity, found.head)
        vector = (found.batch, found.hidden)
        self.shapes: dict[str, tuple[int, ...]] = {
            "input": vector, "norm": (found.hidden,),
            "qkv": (width, found.hidden), "out": (found.hidden, found.heads * found.head),
            "keys": pool, "values": pool,
        }  # fmt: skip
        self.memory: dict[str, Buffer] = {}
        for seed, (name, shape) in enumerate(self.shapes.items()):
            self.memory[name] = device.allocate(2 * self.stacked(name) * int(np.prod(shape)))
            spread = (3.0 / shape[-1]) ** 0.5 if name in ("qkv", "out") else 1.0
            fill_noise(device, kernels, self.memory[name], found.dtype, spread, seed)
        half = found.head // 2
        angles = np.arange(self.capacity)[:, None] * 10000.0 ** (-np.arange(half) / half)
        for name, table in (("cosines", np.cos(angles)), ("sines", np.sin(angles))):
            self.shapes[name] = angles.shape
            self.memory[name] = device.upload(table.astype(np.float32))

    def stacked(self, name: str) -> int:
        """How many layers have their own memory of a name."""
        return 1 if name in ("input", "cosines", "sines") else self.layers

    def addresses(self, layer: int) -> list[int]:
        """The addresses of a layer's arrays, in the order of ``POINTERS``."""
        found = []
        for name in POINTERS:
            buffer, count = self.memory[name], self.stacked(name)
            found.append(int(buffer.address(buffer.nbytes // count * (layer % count))))
        return found

    def free(self) -> None:
        """Give the memory back. Raises MeshcError."""
        for buffer in self.memory.values():
            buffer.free()
