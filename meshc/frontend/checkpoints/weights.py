"""Checkpoints: the logical tensors of a model, read on demand from GGUF or safetensors files."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from meshc.frontend.checkpoints.checkpoint_files import find_source
from meshc.frontend.checkpoints.fields import MESSAGE_LIMIT
from meshc.frontend.checkpoints.logical import LogicalTensor, logical_tensors
from meshc.frontend.checkpoints.model_config import SIZE_LIMITS, ModelConfig
from meshc.frontend.checkpoints.quantised.making import quantised
from meshc.frontend.checkpoints.stored_layout import StoredLayout
from meshc.frontend.checkpoints.tensor_source import FLOATS, Part, TensorSource
from meshc.frontend.checkpoints.tied_head import stored_head, stores_own_head
from meshc.frontend.families import family_named
from meshc.ir.codes import CODE_FORMATS, CODES, CodeFormat
from meshc.ir.stored import Layered, Layers, Scaled
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.files import file_stamps

# Buffers that old Hugging Face checkpoints carry, masks among them, and the factors that the config
# of a GGUF file has read or refused.
_IGNORED = re.compile(
    r"(.*\.)?rotary_emb\.inv_freq|rope_freqs\.weight|rope_factors_(long|short)\.weight|"
    r"(.*\.)?(attn|attention)\.(masked_)?bias"
)

# Of a tensor at a time, where it can be read in pieces.
_PIECE_BYTES = 256 << 20


@dataclass(frozen=True)
class Checkpoint:
    """Weights that were checked against ``config`` and are read when asked for.

    ``layers`` is how many layers of the model, from the first, are offered. ``bare`` says that
    names of stored tensors lack the prefix of the family.
    """

    config: ModelConfig
    layers: int
    source: TensorSource
    gguf_names: bool
    bare: bool = False

    @cached_property
    def _logical(self) -> dict[str, LogicalTensor]:
        tensors = logical_tensors(self.config, self.gguf_names, self.bare)
        return {tensor.name: tensor for tensor in tensors}

    def layout(self) -> str:
        """All that says, beside the files, what is read of them: equal texts mean equal tensors."""
        tensors = tuple(self._logical.values())
        return repr((self.config, self.layers, self.gguf_names, self.bare, tensors))

    def names(self) -> tuple[str, ...]:
        """Every logical tensor, in the order of the tables of its family."""
        return tuple(self._logical)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the logical tensor ``name``; a per-layer one leads with the layers."""
        tensor = self._logical[name]
        return (self._count(tensor), *tensor.shape) if tensor.per_layer else tensor.shape

    def _count(self, tensor: LogicalTensor) -> int:
        """How many layers of the loop of ``tensor`` are offered."""
        return min(tensor.layers, max(0, self.layers - tensor.first))

    def is_per_layer(self, name: str) -> bool:
        """Whether the tensor ``name`` has a leading layer dimension."""
        return self._logical[name].per_layer

    def read(self, name: str) -> np.ndarray:
        """The whole tensor ``name``: float32, C-contiguous, of ``shape(name)``."""
        if not self.is_per_layer(name):
            return self._read(self._logical[name], 0)
        stacked = np.empty(self.shape(name), dtype=np.float32)
        for layer in range(stacked.shape[0]):
            stacked[layer] = self.read_layer(name, layer)
        return stacked

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """The tensor ``name`` piece by piece, in the order of its elements: float32, C-contiguous.

        A piece is a layer, or less where that would be more than a few hundred megabytes and files
        hold its first dim in one place.
        """
        tensor = self._logical[name]
        for layer in range(self._count(tensor) if tensor.per_layer else 1):
            yield from self._pieces(tensor, layer)

    def _pieces(self, tensor: LogicalTensor, layer: int) -> Iterator[np.ndarray]:
        names = tensor.stored_names(layer)
        if tensor.parts and tensor.axis == 0:
            for name in names:
                yield tensor.layout_of(layer).read(self.source.read(name))
            return
        slabs = self._slabs(tensor, layer) if names else []
        for part, layout in slabs:
            yield layout.read(self.source.read(names[0], part))
        if not slabs:
            yield self._read(tensor, layer)

    def _slabs(self, tensor: LogicalTensor, layer: int) -> list[tuple[Part, StoredLayout]]:
        """What holds layer ``layer`` of ``tensor`` in slabs along its first dim; none if it is
        small, or if files do not hold it so."""
        lanes = tensor.shape[0]
        step = max(1, _PIECE_BYTES * lanes // (4 * math.prod(tensor.shape)))
        if tensor.parts or step >= lanes:
            return []
        layout = tensor.layout_of(layer)
        slabs = [layout.slab(start, min(lanes, start + step)) for start in range(0, lanes, step)]
        found = [slab for slab in slabs if slab is not None]
        return found if len(found) == len(slabs) else []

    def kept_format(self, name: str) -> CodeFormat | None:
        """How the files hold the tensor ``name``, where codes and scales of it can be read; None
        where they have numbers, or layers are stored in different ways."""
        tensor = self._logical[name]
        stored = [
            (self.source.tensors[each].kept, self.source.tensors[each].along)
            for layer in range(self._count(tensor) if tensor.per_layer else 1)
            for each in tensor.stored_names(layer)
        ]
        kept, along = stored[0] if len(set(stored)) == 1 else ((), -1)
        forms = [CODE_FORMATS[each] for each in kept]
        return next((form for form in forms if tensor.layout.by_groups(form.span, along)), None)

    def of_experts(self, name: str) -> bool:
        """Whether ``name`` is more than a matrix, or has a stored tensor for each expert."""
        return self._logical[name].parts > 0 or len(self._logical[name].layout.axes) > 2

    def encoding(self, name: str) -> str:
        """How files say that the tensor ``name`` is quantised, empty where they hold numbers."""
        tensor = self._logical[name]
        found = {
            self.source.tensors[each].dtype
            for layer in range(self._count(tensor) if tensor.per_layer else 1)
            for each in tensor.stored_names(layer)
        }
        return " and ".join(sorted(found - {*FLOATS}))

    def read_kept(self, name: str, part: str) -> Layered:
        """The codes (as `Encoded` has them) or another part (float32) of the tensor ``name``, which
        has a `kept_format`: in its shape, but for as many groups as a part has for elements. Layers
        are read when they are asked for, and elements not moved."""
        tensor, form = self._logical[name], self.kept_format(name)
        assert form is not None
        layout, along = tensor.layout, self.source.tensors[tensor.stored_names(0)[0]].along
        if part != CODES:
            fewer = layout.by_groups(form.elements(part), along)
            assert fewer is not None
            layout = fewer
        source = self.source

        def of_layer(layer: int) -> np.ndarray:
            names = tensor.stored_names(layer)
            held = [source.read_encoded(stored, form).part(part) for stored in names]
            if not tensor.parts:
                return layout.view(held[0])
            return np.moveaxis(layout.view(np.stack(held)), 0, tensor.axis)

        return self._layers(tensor, replace(tensor, layout=layout).shape, of_layer)

    def can_make(self, name: str, form: CodeFormat) -> bool:
        """Whether codes in ``form`` can be made of the tensor ``name``: files hold whole groups of
        numbers, or of codes that cannot be kept."""
        tensor = self._logical[name]
        layers = range(self._count(tensor) if tensor.per_layer else 1)
        stored = [each for layer in layers for each in tensor.stored_names(layer)]
        kept = any(self.source.tensors[each].kept for each in stored)
        makes = not form.block and not kept
        return makes and tensor.layout.by_groups(form.group) is not None

    def make_kept(self, name: str, form: CodeFormat, part: str) -> Layered:
        """As :meth:`read_kept`, of codes in ``form`` that are made of the numbers of the tensor."""
        tensor = self._logical[name]
        fewer = tensor.layout.by_groups(form.group)
        assert fewer is not None
        groups = replace(tensor, layout=fewer).shape

        def of_layer(layer: int) -> np.ndarray:
            return quantised(self._read(tensor, layer), groups, form).part(part)

        return self._layers(tensor, tensor.shape if part == CODES else groups, of_layer)

    def _layers(
        self, tensor: LogicalTensor, shape: tuple[int, ...], of_layer: Callable[[int], np.ndarray]
    ) -> Layered:
        """All layers of ``tensor``, each of ``shape``, or the one that all share."""
        if not tensor.per_layer:
            return of_layer(0)
        return Layers((self._count(tensor), *shape), of_layer)

    def read_layer(self, name: str, layer: int) -> np.ndarray:
        """One layer of the per-layer tensor ``name``: float32, C-contiguous.

        Raises IndexError for a layer that is not offered and ValueError for a tensor without
        layers; both are mistakes of the caller, not of a file.
        """
        tensor = self._logical[name]
        if not tensor.per_layer:
            raise ValueError(f"tensor '{name}' has no layers")
        if not 0 <= layer < self._count(tensor):
            raise IndexError(f"layer {layer} of {self._count(tensor)}")
        return self._read(tensor, layer)

    def stored(self, name: str) -> Layered | Scaled:
        """The tensor ``name`` as files hold its elements, mapped into memory where they need not be
        decoded or moved together; float32 where they must."""
        tensor = self._logical[name]
        if tensor.per_layer:
            return Layers(self.shape(name), lambda layer: self._stored(tensor, layer))
        return self._stored(tensor, 0)

    def _stored(self, tensor: LogicalTensor, layer: int) -> np.ndarray | Scaled:
        names, layout = tensor.stored_names(layer), tensor.layout_of(layer)
        mapped = [self.source.mapped(name) for name in names]
        whole = None if layout.offset or layout.stretch else _joined(mapped)
        if whole is None:
            return self._read(tensor, layer)

        def order(stored: np.ndarray) -> np.ndarray:
            if not tensor.parts:
                return layout.view(stored)
            each = stored.reshape(len(names), -1, *stored.shape[1:])
            return np.moveaxis(layout.view(each), 0, tensor.axis)

        return whole.then(order) if isinstance(whole, Scaled) else order(whole)

    def stamp(self) -> str | None:
        """A text that changes when files are written or replaced, or are read as another model;
        None for tensors that are in no file."""
        files = self.source.files
        return repr((self.config, self.layers, file_stamps(files))) if files else None

    def _read(self, tensor: LogicalTensor, layer: int) -> np.ndarray:
        names = tensor.stored_names(layer)
        return tensor.assembled(list(map(self.source.read, names)), layer)


def _joined(held: Sequence[np.ndarray | Scaled | None]) -> np.ndarray | Scaled | None:
    """Stored tensors of one kind, one behind the other; None where they are not of one."""
    arrays = [each for each in held if isinstance(each, np.ndarray)]
    scaled = [each for each in held if isinstance(each, Scaled)]
    kinds = {array.dtype for array in arrays} | {each.group for each in scaled}
    if len(kinds) != 1 or len(held) not in (len(arrays), len(scaled)):
        return None
    if len(held) == 1:
        return held[0]
    if arrays:
        return np.concatenate(arrays)
    codes, scales = ([getattr(each, part) for each in scaled] for part in ("codes", "scales"))
    return Scaled(np.concatenate(codes), np.concatenate(scales), scaled[0].group)


def open_checkpoint(
    path: str | Path,
    config: ModelConfig,
    layers: int | None = None,
    diagnostics: Diagnostics | None = None,
) -> Checkpoint:
    """The checkpoint at ``path``, checked against ``config``; no weight is read yet.

    ``path`` is a GGUF file, a safetensors file, an index of safetensors shards, or a directory
    with one of these. ``layers`` keeps the first so many layers. Stored tensors that are known
    to be needless give remarks to ``diagnostics``.

    Errors: ``weights-not-found``, ``weights-adapter``, ``pickle-refused``, ``gguf-invalid``,
    ``safetensors-invalid``, ``weights-config-mismatch``, ``weights-missing-tensor``,
    ``weights-surplus-tensor``, ``weights-shape-mismatch``, ``weights-unsupported-dtype``,
    ``missing-extra``.
    """
    kept = _kept_layers(config, layers)
    source, gguf_names = find_source(Path(path), config)
    return _checked(source, gguf_names, config, kept, diagnostics)


def checkpoint_in_memory(
    source: TensorSource,
    config: ModelConfig,
    layers: int | None = None,
    diagnostics: Diagnostics | None = None,
) -> Checkpoint:
    """As :func:`open_checkpoint`, of a ``source`` that has the tensors of a model in memory by the
    names that Hugging Face files have."""
    return _checked(source, False, config, _kept_layers(config, layers), diagnostics)


def _kept_layers(config: ModelConfig, layers: int | None) -> int:
    """How many layers are read where ``layers`` are asked for. Errors: ``weights-layers``."""
    kept = config.layers if layers is None else layers
    if not 1 <= kept <= config.layers:
        fail(
            "weights-layers",
            f"{kept} layers are asked of '{config.name}', which has {config.layers}",
            help=f"ask for 1 to {config.layers} layers",
        )
    return kept


def _checked(
    source: TensorSource,
    gguf_names: bool,
    config: ModelConfig,
    kept: int,
    diagnostics: Diagnostics | None,
) -> Checkpoint:
    """The checkpoint in ``source``, whose tensors are those of ``config``."""
    found = Diagnostics()
    prefix = family_named(config.family).prefix
    bare = bool(prefix) and not any(name.startswith(prefix) for name in source.tensors)
    _check_tensors(source, config, gguf_names, bare, kept, found)
    found.raise_errors()
    if diagnostics is not None:
        for message in found.messages:
            diagnostics.add(message)
    return Checkpoint(config, kept, source, gguf_names, bare)


def _check_tensors(
    source: TensorSource,
    config: ModelConfig,
    gguf_names: bool,
    bare: bool,
    layers: int,
    found: Diagnostics,
) -> None:
    known = {
        name: (tensor, tensor.first + layer)
        for tensor in logical_tensors(config, gguf_names, bare)
        for layer in range(max(tensor.layers, 1))
        for name in tensor.stored_names(layer)
    }
    needed = {name: tensor for name, (tensor, layer) in known.items() if layer < layers}
    missing = [name for name in needed if name not in source.tensors]
    if missing:
        found.error(
            "weights-missing-tensor",
            f"'{source.label}' lacks {len(missing)} of {len(needed)} tensors of '{config.name}'",
            notes=_listed("missing", missing),
            help="the checkpoint belongs to another model, or is incomplete",
        )
    for name, tensor in needed.items():
        if name in source.tensors:
            _check_tensor(source, name, tensor, found)
    surplus = [n for n in source.tensors if n not in known and not _IGNORED.fullmatch(n)]
    for name in [n for n in surplus if _is_zero_bias(source, n)]:
        surplus.remove(name)
        found.remark("weights-unused-tensor", f"'{name}' is not read: all of it is 0")
    _check_surplus(source, config, surplus, found)


def _check_tensor(
    source: TensorSource, name: str, tensor: LogicalTensor, found: Diagnostics
) -> None:
    stored = source.tensors[name]
    if len(found.errors) >= MESSAGE_LIMIT:
        return
    if stored.shape != tensor.layout.stored_shape():
        found.error(
            "weights-shape-mismatch",
            f"tensor '{name}' has shape {list(stored.shape)}; "
            f"the model needs {list(tensor.layout.stored_shape())}",
            notes=(f"in '{source.label}'",),
            help="the checkpoint belongs to another model",
        )
    elif not stored.readable:
        found.error(
            "weights-unsupported-dtype",
            f"tensor '{name}' has type {stored.dtype}, which meshc does not read",
            notes=(f"in '{source.label}'",),
            help="meshc reads F32, F16, BF16 and the encodings of docs/weights.md",
        )


def _check_surplus(
    source: TensorSource, config: ModelConfig, surplus: list[str], found: Diagnostics
) -> None:
    family = family_named(config.family)
    head = stored_head(source, family) if config.tied_embeddings else ""
    if head in surplus and not stores_own_head(source, family):
        # Some writers store the tied head a second time.
        surplus.remove(head)
        found.remark("weights-unused-tensor", f"'{head}' is not read: it is the embedding")
    if surplus:
        found.error(
            "weights-surplus-tensor",
            f"'{source.label}' has {len(surplus)} tensors that '{config.name}' does not use",
            notes=_listed("surplus", surplus),
            help="a tensor that meshc ignores would change the result; check the model's config",
        )


def _is_zero_bias(source: TensorSource, name: str) -> bool:
    """Whether a bias adds nothing: some writers of GPTQ give one to every matrix."""
    stored = source.tensors[name]
    small = len(stored.shape) == 1 and stored.shape[0] <= SIZE_LIMITS["ffn"]
    return name.endswith(".bias") and stored.readable and small and not source.read(name).any()


def _listed(word: str, names: Iterable[str]) -> tuple[str, ...]:
    shown = sorted(names)
    notes = tuple(f"{word}: {name}" for name in shown[:8])
    return (*notes, f"and {len(shown) - 8} more") if len(shown) > 8 else notes
