"""The logical tensors of a model, the params of its ``model.mesh``, and how files store each.

Their dims and extents come from the model itself; names and the order of dims in files from
``tensors.toml`` of its family.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshc.frontend.checkpoints.family_model import layers_without_rope, model_of, turning_lanes
from meshc.frontend.checkpoints.model_config import ModelConfig
from meshc.frontend.checkpoints.stored_layout import StoredLayout, Stretch, stored_layout
from meshc.frontend.families import StoredParam, family_named
from meshc.frontend.language import elaborate
from meshc.ir.module import Module
from meshc.ir.ops.graph import Repeat
from meshc.ir.types import TensorType


@dataclass(frozen=True)
class LogicalTensor:
    """One logical tensor. For one of a loop over layers, ``shape`` is that of a single layer.

    ``stored`` is its name in the files, with ``{n}`` for the layer. ``layers`` is how many
    layers the loop has, 0 for a tensor of none, and ``first`` the number of the loop's first layer.
    Files hold it in ``parts`` tensors of ``layout``, numbered by ``{each}``, which are stacked
    along ``axis``; 0 where it is one tensor. No file has a ``constant`` one, all of whose
    elements are that number. Every ``skip``-th layer, if that is not 0, turns nothing, so that no
    lanes of it are stretched.
    """

    name: str
    stored: str
    layout: StoredLayout
    layers: int = 0
    first: int = 0
    parts: int = 0
    axis: int = 0
    constant: float | None = None
    skip: int = 0

    def layout_of(self, layer: int) -> StoredLayout:
        """How files hold layer ``layer`` of its loop."""
        turns = not self.skip or (self.first + layer + 1) % self.skip
        return self.layout if turns else replace(self.layout, stretch=None)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor, or of one layer."""
        one = self.layout.shape()
        return (*one[: self.axis], self.parts, *one[self.axis :]) if self.parts else one

    @property
    def per_layer(self) -> bool:
        """Whether it is one of a loop over layers."""
        return self.layers > 0

    def stored_names(self, layer: int) -> tuple[str, ...]:
        """The names in the files of its parts, for layer ``layer`` of its loop when it is per
        layer."""
        if self.constant is not None:
            return ()
        template = self.stored.replace("{n}", str(self.first + layer))
        return tuple(template.replace("{each}", str(n)) for n in range(max(1, self.parts)))

    def assembled(self, stored: Sequence[np.ndarray], layer: int) -> np.ndarray:
        """The tensor, or layer ``layer`` of it, C-contiguous, from what files hold of its parts."""
        if self.constant is not None:
            return np.full(self.shape, self.constant, np.float32)
        read = [self.layout_of(layer).read(part) for part in stored]
        return np.stack(read, self.axis) if self.parts else read[0]


def logical_tensors(
    config: ModelConfig, gguf: bool = False, bare: bool = False
) -> tuple[LogicalTensor, ...]:
    """Every logical tensor of ``config``, in the order of its family's ``tensors.toml``, as a
    ``gguf`` file holds it or files of Hugging Face do; the latter may have ``bare`` names, which
    lack the prefix of the family.

    A tied head is one of them, read from the embedding. Raises MeshcError where the model of the
    family does not take the config's numbers.
    """
    module = elaborate(model_of(replace(config, tied_embeddings=False)), "decode", seq=1)
    stages, stretch, skip = _stages(module), turning_lanes(config), layers_without_rope(config)
    types = {p.value.name: p.value.type for p in module.function.params if p.role == "weight"}
    entries = family_named(config.family).params
    unnamed = sorted(set(types) - set(entries))
    assert not unnamed, f"tensors.toml of {config.family} has no {unnamed}"
    found = []
    for name, entry in entries.items():
        if name in types:
            kind = types[name]
            assert isinstance(kind, TensorType)
            names = entries[entry.tied] if entry.tied and config.tied_embeddings else entry
            stored = names.gguf if gguf else names.hf
            if bare:
                stored = stored.removeprefix(family_named(config.family).prefix)
            form = _of_gguf(entry) if gguf else replace(entry, gguf_pairs="")
            found.append(_tensor(name, kind.dims, form, stored, module, stages, stretch, skip))
    return tuple(found)


def _of_gguf(entry: StoredParam) -> StoredParam:
    """``entry`` with the axes that GGUF files have in the place of those of Hugging Face."""
    return replace(entry, stored=entry.gguf_axes(), each="", offset=0.0)


def _tensor(
    name: str,
    dims: tuple[str, ...],
    entry: StoredParam,
    stored: str,
    module: Module,
    stages: Mapping[str, tuple[int, int]],
    stretch: tuple[int, float] | None,
    skip: int,
) -> LogicalTensor:
    """The param ``name`` of ``dims``, ``stored`` under this name as ``entry`` says; ``stretch`` is
    how many lanes of a head turn, and what their scores are multiplied by, but for every
    ``skip``-th layer."""
    first, layers = stages.get(dims[0], (0, 0))
    own = dims[1:] if layers else dims
    one = tuple(dim for dim in own if dim != entry.each)
    layout = stored_layout(
        entry.stored, one, module.dims, entry.part, entry.gguf_pairs, entry.offset
    )
    if entry.turning and stretch is not None:
        layout = replace(layout, stretch=Stretch(entry.turning, *stretch))
    parts = (module.dims[entry.each], own.index(entry.each)) if entry.each else (0, 0)
    return LogicalTensor(name, stored, layout, layers, first, *parts, entry.constant, skip)


def parameter_count(config: ModelConfig) -> int:
    """The number of weights of ``config``, a tied head counted once."""
    return sum(
        max(tensor.layers, 1) * math.prod(tensor.shape)
        for tensor in logical_tensors(config)
        if tensor.constant is None
        and not (config.tied_embeddings and family_named(config.family).params[tensor.name].tied)
    )


def _stages(module: Module) -> dict[str, tuple[int, int]]:
    """The number of the first layer of each loop over layers, and how many it has, by the dim of
    the loop."""
    found: dict[str, tuple[int, int]] = {}
    first = 0
    for op in module.function.body.ops:
        if isinstance(op, Repeat):
            found[op.dim] = (first, module.dims[op.dim])
            first += module.dims[op.dim]
    return found
