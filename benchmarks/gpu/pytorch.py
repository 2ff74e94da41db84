"""The same layers by PyTorch: linear products and attention of its own, in CUDA graphs.

PyTorch is imported by its name, and only when it is asked for.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plain_layers import EPSILON, POINTERS, Layers
from programs import Sizes

from meshc.backends.cuda.driver.gpu import Device


@dataclass(frozen=True)
class Attended:
    """An attention block in PyTorch: a function of a layer's tensors by the names of
    ``POINTERS``."""

    sizes: Sizes
    cached: int
    torch: Any

    def __call__(self, x: Any, layer: dict[str, Any]) -> Any:
        """The residual stream [batch, hidden] behind the block."""
        s, f = self.sizes, self.torch.nn.functional
        normed = f.rms_norm(x, (s.hidden,), layer["norm"], EPSILON)
        rows = f.linear(normed, layer["qkv"]).view(s.batch, -1, s.head)
        q, k, v = rows.split([s.heads, s.kv_heads, s.kv_heads], dim=1)
        angles = layer["cosines"][self.cached], layer["sines"][self.cached]
        q, k = self._rotated(q, *angles), self._rotated(k, *angles)
        layer["keys"][:, :, self.cached] = k
        layer["values"][:, :, self.cached] = v
        seen = self.cached + 1
        attended = f.scaled_dot_product_attention(
            q[:, :, None], layer["keys"][:, :, :seen], layer["values"][:, :, :seen],
            enable_gqa=s.heads != s.kv_heads,
        )  # fmt: skip
        return x + f.linear(attended.reshape(s.batch, -1), layer["out"])

    def _rotated(self, x: Any, cosines: Any, sines: Any) -> Any:
        first, second = x.float().chunk(2, dim=-1)
        turned = (first * cosines - second * sines, second * cosines + first * sines)
        return self.torch.cat(turned, dim=-1).to(x.dtype)


def torch_with_cuda() -> Any:
    """PyTorch where it is installed and sees a GPU; None otherwise."""
    if importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    return torch if torch.cuda.is_available() else None


@dataclass(frozen=True)
class _Array:
    """Memory of a device as other libraries take it."""

    address: int
    shape: tuple[int, ...]
    typestr: str

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "data": (self.address, False), "shape": self.shape, "typestr": self.typestr,
            "strides": None, "version": 3,
        }  # fmt: skip


def kind_of(torch: Any, dtype: str) -> Any:
    """PyTorch's name of a type."""
    return torch.float16 if dtype == "f16" else torch.bfloat16


def tensors(torch: Any, layers: Layers, layer: int) -> dict[str, Any]:
    """A layer's memory as PyTorch's tensors, by name."""
    kind = kind_of(torch, layers.sizes.dtype)
    found = {}
    for name, address in zip(POINTERS, layers.addresses(layer), strict=True):
        angles = name in ("cosines", "sines")
        array = _Array(address, layers.shapes[name], "<f4" if angles else "<i2")
        tensor = torch.as_tensor(array, device="cuda")
        found[name] = tensor if angles else tensor.view(kind)
    return found


@dataclass(frozen=True)
class Layer:
    """An attention block and the feed-forward block behind it."""

    block: Attended

    def __call__(self, x: Any, layer: dict[str, Any]) -> Any:
        """The residual stream [batch, hidden] behind the layer."""
        f = self.block.torch.nn.functional
        x = self.block(x, layer)
        normed = f.rms_norm(x, (self.block.sizes.hidden,), layer["norm_of_ffn"], EPSILON)
        gate, up = f.linear(normed, layer["gate_up"]).chunk(2, dim=-1)
        return x + f.linear(f.silu(gate) * up, layer["down"])


def logits(torch: Any, x: Any, head: dict[str, Any]) -> Any:
    """Logits [batch, vocabulary] behind the last norm."""
    f = torch.nn.functional
    return f.linear(f.rms_norm(x, x.shape[-1:], head["norm"], EPSILON), head["matrix"])


def weights_of_step(torch: Any, layers: Layers, place: str = "cuda") -> Any:
    """The tensors of layers by name, feed-forward weights too, and those of the logits."""
    s = layers.sizes
    kind = kind_of(torch, s.dtype)

    def noise(*extents: int) -> Any:
        spread = (3.0 / extents[-1]) ** 0.5
        return torch.empty(extents, dtype=kind, device=place).uniform_(-spread, spread)

    every = []
    for n in range(layers.layers):
        layer = tensors(torch, layers, n)
        layer["gate_up"], layer["down"] = (
            noise(2 * s.features, s.hidden),
            noise(s.hidden, s.features),
        )
        layer["norm_of_ffn"] = layer["norm"]
        every.append(layer)
    return every, {"norm": every[0]["norm"], "matrix": noise(s.vocabulary, s.hidden)}


def captured(torch: Any, once: Callable[[], object]) -> Any:
    """A CUDA graph of PyTorch's of what ``once`` does, which has run before."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.inference_mode():
        with torch.cuda.stream(stream):
            for _ in range(3):
                once()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            once()
    return graph


def compiled(torch: Any, block: Callable[..., Any]) -> Callable[..., Any]:
    """``block`` by torch.compile, for its shapes alone."""
    found: Callable[..., Any] = torch.compile(
        block, mode="max-autotune-no-cudagraphs", fullgraph=True, dynamic=False
    )
    return found


def _reason(problem: RuntimeError) -> str:
    """The first two lines of what was said, the first of which may name a back end alone."""
    return " ".join(str(problem).split("\n")[:2])


def steps(torch: Any, layers: Layers) -> tuple[list[tuple[str, Any]], list[str]]:
    """Graphs of whole steps, and why others do not run here; the backend of attention is PyTorch's
    own choice."""
    try:
        every, head = weights_of_step(torch, layers)
    except torch.OutOfMemoryError as problem:
        return [], [f"PyTorch's whole step: {str(problem).splitlines()[0]}"]
    plain = Layer(Attended(layers.sizes, layers.cached, torch))
    made, left_out = [], []
    for name in ("PyTorch graph", "torch.compile in a graph"):
        layer_of = plain if name == "PyTorch graph" else compiled(torch, plain)

        def once(layer_of: Any = layer_of) -> None:
            x = every[0]["input"]
            for layer in every:
                x = layer_of(x, layer)
            logits(torch, x, head)

        try:
            made.append((name, captured(torch, once)))
        except RuntimeError as problem:
            left_out.append(f"{name}: {_reason(problem)}")
    return made, left_out


def on_stream(torch: Any, device: Device, graph: Any) -> Callable[[], None]:
    """Launch a graph of PyTorch's on the device's stream."""
    stream = torch.cuda.ExternalStream(device.stream.handle)

    def launch() -> None:
        with torch.cuda.stream(stream):
            graph.replay()

    return launch
