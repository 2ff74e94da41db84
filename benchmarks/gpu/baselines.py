"""Attention blocks in a plain layout, for other implementations, and any library that has one.

Weights, caches and angles lie in memory that all of them are given.
"""

from __future__ import annotations

import ctypes as ct
from pathlib import Path
from typing import Any

import numpy as np
from kernels import Cubins, load, probes
from numpy.typing import NDArray
from programs import Sizes, fill_noise
from references import plain_block, values

from meshc.backends.cuda.driver.device import Device
from meshc.backends.cuda.driver.device_memory import Buffer
from meshc.backends.cuda.driver.streams import Graph

EPSILON = 1e-5
# What a library is given for a layer, by place: bytes per value, and extents in ``Sizes``.
POINTERS = (
    "input", "output", "norm", "qkv", "out", "keys", "values", "cosines", "sines",
)  # fmt: skip
HOOK = """
--theirs LIB.so --entry NAME times another implementation of the attention block. The library has

    int NAME(const void** pointers, const long long* sizes, void* stream);

which starts the block of one layer on the CUstream `stream` and returns 0, or anything else to
refuse. It is called once per layer while the stream is captured into a CUDA graph, so it must not
wait, allocate or copy from the host. It may also have

    int NAME_set_up(const void** pointers, const long long* sizes, void* stream);

which is called for every layer before any is started, outside of a capture and untimed: there it
may allocate, wait and keep weights in another order. Each layer runs once before it is captured.
Matrices are row-major; T is f16 or bf16, as --dtype says.
  pointers[0]  input   [batch, hidden] T             residual stream
  pointers[1]  output  [batch, hidden] T             input + attention block; holds zeros at first
  pointers[2]  norm    [hidden] T                    gain of the RMSNorm (epsilon 1e-5)
  pointers[3]  qkv     [(heads + 2 kv_heads) head, hidden] T
  pointers[4]  out     [hidden, heads head] T
  pointers[5]  keys    [batch, kv_heads, capacity, head] T
  pointers[6]  values  [batch, kv_heads, capacity, head] T
  pointers[7]  cosines [capacity, head / 2] f32      rotary halves: value i pairs with i + head / 2
  pointers[8]  sines   [capacity, head / 2] f32
  sizes        batch, hidden, heads, kv_heads, head, cached, capacity, layer
Keys and values of `cached` tokens are there; those of the new one, at position `cached`, are to be
written. Each layer has weights and caches of its own.
"""


class Layers:
    """Memory of attention blocks in the plain layout of ``HOOK``, with noise in it."""

    def __init__(
        self, device: Device, found: Sizes, layers: int, cached: int, cubins: Cubins | None = None
    ) -> None:
        """Raises MeshcError ``cuda-memory``."""
        self.device, self.sizes, self.layers, self.cached = device, found, layers, cached
        self.capacity = -(-(cached + 1) // 8) * 8
        kernels = load(device, probes(), cubins)
        width = (found.heads + 2 * found.kv_heads) * found.head
        pool = (found.batch, found.kv_heads, self.capacity, found.head)
        vector = (found.batch, found.hidden)
        self.shapes: dict[str, tuple[int, ...]] = {
            "input": vector, "output": vector, "norm": (found.hidden,),
            "qkv": (width, found.hidden), "out": (found.hidden, found.heads * found.head),
            "keys": pool, "values": pool,
        }  # fmt: skip
        self.memory: dict[str, Buffer] = {}
        for seed, (name, shape) in enumerate(self.shapes.items()):
            self.memory[name] = device.allocate(2 * self.stacked(name) * int(np.prod(shape)))
            if name == "output":
                self.memory[name].fill()
                continue
            spread = (3.0 / shape[-1]) ** 0.5 if name in ("qkv", "out") else 1.0
            fill_noise(device, kernels, self.memory[name], found.dtype, spread, seed)
        half = found.head // 2
        angles = np.arange(self.capacity)[:, None] * 10000.0 ** (-np.arange(half) / half)
        for name, table in (("cosines", np.cos(angles)), ("sines", np.sin(angles))):
            self.shapes[name] = angles.shape
            self.memory[name] = device.upload(table.astype(np.float32))

    def stacked(self, name: str) -> int:
        """How many layers have their own memory of a name."""
        return 1 if name in ("input", "output", "cosines", "sines") else self.layers

    def addresses(self, layer: int) -> list[int]:
        """The addresses of a layer's arrays, in the order of ``POINTERS``."""
        found = []
        for name in POINTERS:
            buffer, count = self.memory[name], self.stacked(name)
            found.append(int(buffer.address(buffer.nbytes // count * (layer % count))))
        return found

    def words(self, name: str, layer: int = 0) -> NDArray[Any]:
        """A copy of a layer's array: words of 16 bits, f32 for angles. Raises MeshcError."""
        buffer, count = self.memory[name], self.stacked(name)
        kind = np.float32 if name in ("cosines", "sines") else np.uint16
        at = buffer.nbytes // count * (layer % count)
        return buffer.read(kind, self.shapes[name], at)

    def error(self) -> float:
        """How far the output is from float64 for layer 0, as a share of the largest value
        expected. Raises MeshcError."""
        given = {name: self.words(name) for name in POINTERS}
        expected = plain_block(given, self.sizes.dtype, self.cached, EPSILON)
        found = values(given["output"], self.sizes.dtype)
        return float(np.abs(found - expected).max() / np.abs(expected).max())

    def free(self) -> None:
        """Give the memory back. Raises MeshcError."""
        for buffer in self.memory.values():
            buffer.free()


# --- another library


class Refused(Exception):
    """Why another implementation cannot be timed, in words."""


def _typed(function: Any) -> Any:
    function.restype = ct.c_int
    function.argtypes = (ct.POINTER(ct.c_void_p), ct.POINTER(ct.c_longlong), ct.c_void_p)
    return function


class Theirs:
    """An entry point of a shared library, as ``HOOK`` describes it."""

    def __init__(self, library: Path, entry: str) -> None:
        """Raises Refused when there is no such library or entry."""
        try:
            loaded = ct.CDLL(str(library.resolve()))
            self._call = _typed(getattr(loaded, entry))
        except (OSError, AttributeError) as problem:
            raise Refused(f"{library} cannot be used: {problem}") from problem
        set_up = getattr(loaded, f"{entry}_set_up", None)
        self._set_up = _typed(set_up) if set_up is not None else None
        self.name = f"{library.stem}: {entry}"

    def start(self, layers: Layers, layer: int) -> None:
        """Start a layer on the device's stream. Raises Refused."""
        self._called(self._call, layers, layer)

    def _called(self, function: Any, layers: Layers, layer: int) -> None:
        s = layers.sizes
        addresses = layers.addresses(layer)
        pointers = (ct.c_void_p * len(addresses))(*addresses)
        numbers = (
            s.batch, s.hidden, s.heads, s.kv_heads, s.head, layers.cached, layers.capacity, layer,
        )  # fmt: skip
        values = (ct.c_longlong * len(numbers))(*numbers)
        code = function(pointers, values, layers.device.stream.handle)
        if code:
            raise Refused(f"{self.name} returned {code} for layer {layer}")

    def checked(self, layers: Layers) -> tuple[Graph, float]:
        """A graph of all layers, one after the other, and the error of the first one beside
        float64. All are set up, and run once, before. Raises Refused and MeshcError."""
        stream = layers.device.stream
        for layer in range(layers.layers if self._set_up else 0):
            self._called(self._set_up, layers, layer)
        stream.synchronize()
        self.start(layers, 0)
        stream.synchronize()
        error = layers.error()
        for layer in range(1, layers.layers):
            self.start(layers, layer)
        stream.synchronize()
        with stream.capture() as graph:
            for layer in range(layers.layers):
                self.start(layers, layer)
        return graph, error
