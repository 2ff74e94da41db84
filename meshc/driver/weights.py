"""Weights for a compiled program: logical tensors by name, read when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.frontend.checkpoints import (
    Checkpoint,
    ModelConfig,
    catalogue_names,
    find_packaged_weights,
    open_checkpoint,
)
from meshc.ir.codes import CODE_FORMATS, CODES, CodeFormat, kept_name
from meshc.ir.stored import Layered, Scaled, floats
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.files import file_stamps
from meshc.support.output import Content

Array = NDArray[Any]
Progress = Callable[[str], None]

WEIGHTS_FOLDER = "weights"
PACKED_FOLDER = "packed"
AS_STORED = "stored"
"""Weights stay quantised in the formats of their files."""
IF_POSSIBLE = "possible"
"""The same of those that the mesh lets stay; the others are decoded."""


class CheckpointTensors(Mapping[str, Array]):
    """The tensors of a checkpoint; each look-up reads the file, so that only one is in memory."""

    def __init__(self, checkpoint: Checkpoint, on_read: Progress | None = None) -> None:
        self.checkpoint = checkpoint
        self._on_read = on_read

    @cached_property
    def _kept(self) -> dict[str, tuple[str, CodeFormat, str]]:
        """The weight, format and part that names of what stays quantised stand for."""
        return {
            kept_name(name, form, part): (name, form, part)
            for name in self.checkpoint.names()
            for form in CODE_FORMATS.values()
            if self.checkpoint.kept_format(name) == form or self.checkpoint.can_make(name, form)
            for part in (CODES, *form.parts)
        }

    def __getitem__(self, name: str) -> Array:
        if name not in self:
            raise KeyError(name)
        if self._on_read is not None:
            self._on_read(name)
        if name not in self.checkpoint.names():
            held = self._read_kept(name)
            layers = self.checkpoint.is_per_layer(self._kept[name][0])
            whole = [held[n] for n in range(held.shape[0])] if layers else [np.asarray(held)]
            found = [np.ascontiguousarray(floats(np.asarray(each))) for each in whole]
            return np.stack(found) if layers else found[0]
        return self.checkpoint.read(name)

    def _read_kept(self, name: str) -> Layered:
        weight, form, part = self._kept[name]
        if self.checkpoint.kept_format(weight) == form:
            return self.checkpoint.read_kept(weight, part)
        return self.checkpoint.make_kept(weight, form, part)

    def __contains__(self, name: object) -> bool:
        return name in self.checkpoint.names() or name in self._kept

    def stored(self, name: str) -> Layered | Scaled:
        """See :class:`meshc.ir.stored.StoredWeights`."""
        if name not in self:
            raise KeyError(name)
        if self._on_read is not None:
            self._on_read(name)
        known = name in self.checkpoint.names()
        return self.checkpoint.stored(name) if known else self._read_kept(name)

    def stamp(self) -> str | None:
        """See :class:`meshc.ir.stored.StoredWeights`."""
        return self.checkpoint.stamp()

    def save(self, name: str, path: Path) -> None:
        """Write the tensor ``name`` to ``path`` as `numpy.save` does, a piece of it in memory at a
        time; of one that stays quantised, all of it."""
        if name not in self.checkpoint.names():
            np.save(path, self[name], allow_pickle=False)
            return
        shape, done = self.checkpoint.shape(name), 0
        facts = {"descr": "<f4", "fortran_order": False, "shape": shape}
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, facts)
            for piece in self.checkpoint.pieces(name):
                if self._on_read is not None:
                    self._on_read(f"{name}, {100 * done // prod(shape)} %")
                file.write(piece.data)
                done += piece.size

    def __iter__(self) -> Iterator[str]:
        return iter((*self.checkpoint.names(), *self._kept))

    def __len__(self) -> int:
        return len(self.checkpoint.names()) + len(self._kept)


class FolderTensors(Mapping[str, Array]):
    """Tensors in a folder, one ``<name>.npy`` each, mapped into memory when used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> Array:
        path = self._folder / f"{name}.npy"
        if Path(name).name != name or not os.path.isfile(path):
            raise KeyError(name)
        try:
            found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            fail("bad-npy", f"'{path}' is no array: {str(error).splitlines()[0]}")
        if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiu":
            fail("bad-npy", f"'{path}' holds no numbers")
        return found

    def stored(self, name: str) -> Layered:
        """See :class:`meshc.ir.stored.StoredWeights`."""
        return self[name]

    def stamp(self) -> str:
        """See :class:`meshc.ir.stored.StoredWeights`."""
        return repr(file_stamps(sorted(self._folder.glob("*.npy"))))

    def __contains__(self, name: object) -> bool:
        own = isinstance(name, str) and Path(name).name == name
        return own and os.path.isfile(self._folder / f"{name}.npy")

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in sorted(self._folder.glob("*.npy")))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def find_weights(name: str, own: Path | None, given: str | None) -> Path | None:
    """Where the weights are: as given, those MODEL itself names, or an installed package.

    None when nothing is given and nothing can be found by the model's name.
    """
    if given is not None:
        return Path(given)
    if own is not None:
        return own
    return find_packaged_weights(name) if name in catalogue_names() else None


def open_weights(
    place: Path,
    config: ModelConfig | None,
    layers: int | None,
    report: Diagnostics,
    on_read: Progress | None = None,
) -> Mapping[str, Array]:
    """The tensors at ``place``: a checkpoint when there is a config, else a folder of ``.npy``.

    Raises ``weights-not-found``, ``bad-npy`` and what :func:`open_checkpoint` raises.
    """
    if config is not None and not _is_npy_folder(place):
        return CheckpointTensors(open_checkpoint(place, config, layers, report), on_read)
    if not os.path.isdir(place):
        fail(
            "weights-not-found",
            f"'{place}' is no directory of weights",
            help="the weights of a .mesh model are a directory with one NAME.npy for each param",
        )
    return FolderTensors(place)


def check_present(names: Sequence[str], tensors: Mapping[str, Array]) -> None:
    """Raise one ``weights-missing-tensor`` for each of ``names`` that is not there."""
    found = Diagnostics()
    for name in names:
        if name not in tensors:
            found.error("weights-missing-tensor", f"there are no weights for '{name}'")
    found.raise_errors()


def known_formats(streamed: bool) -> tuple[str, ...]:
    """The formats in which weights can stay quantised: those that are ``streamed`` may be in more
    than cores of a mesh decode."""
    return tuple(f.name for f in CODE_FORMATS.values() if f.on_cores or streamed)


def kept_formats(checkpoint: Checkpoint, streamed: bool = False) -> tuple[str, ...]:
    """The weights that can stay quantised as their files hold them, each with its format, as the
    passes keep-quantised and stream-quantised take them; ``streamed`` those in other encodings as
    well, with the words of files for these. Fails with ``keep-quantised`` where none can."""
    known, found = known_formats(streamed), {}
    for name in checkpoint.names():
        form, whole = checkpoint.kept_format(name), not checkpoint.of_experts(name)
        if form is not None and form.name in known and (whole or streamed):
            found[name] = form.name
    if not found:
        fail(
            "keep-quantised",
            f"'{checkpoint.source.label}' has no weights that can stay quantised",
            help=f"formats that can: {', '.join(known)} (docs/weights.md)",
        )
    if streamed:
        encodings = {n: checkpoint.encoding(n) for n in checkpoint.names() if n not in found}
        found |= {name: encoding for name, encoding in encodings.items() if encoding}
    return tuple(f"{name}={form}" for name, form in found.items())


def formats_to_keep(
    asked: str,
    place: Path | None,
    config: ModelConfig | None,
    layers: int | None,
    streamed: bool = False,
) -> tuple[str, ...]:
    """What the passes keep-quantised and, where weights are ``streamed``, stream-quantised are
    given for ``asked``: a format for all weights, `AS_STORED` for those of the file at ``place``,
    or `IF_POSSIBLE` for as many of these as can be. Fails with ``bad-argument``,
    ``keep-quantised``, ``weights-not-found`` and what :func:`open_checkpoint` raises."""
    formats = known_formats(streamed)
    if asked in formats:
        return (f"all={asked}",)
    if asked not in (AS_STORED, IF_POSSIBLE):
        known = ", ".join((AS_STORED, IF_POSSIBLE, *formats))
        fail("bad-argument", f"--keep-quantised cannot be '{asked}'", help=f"it is one of {known}")
    if place is None or config is None:
        fail(
            "weights-not-found",
            "nothing says where the quantised weights are",
            help=f"give them with --weights, or a format: {', '.join(formats)}",
        )
    found = kept_formats(open_checkpoint(place, config, layers), streamed)
    return found if asked == AS_STORED else tuple(f"{text}?" for text in found)


def weight_files(names: Sequence[str], tensors: Mapping[str, Array]) -> dict[str, Content]:
    """A ``weights/<name>.npy`` for each name, written when the directory is."""
    return {f"{WEIGHTS_FOLDER}/{name}.npy": _saver(name, tensors) for name in names}


def _saver(name: str, tensors: Mapping[str, Array]) -> Callable[[Path], None]:
    def save(path: Path) -> None:
        if isinstance(tensors, CheckpointTensors):
            tensors.save(name, path)
        else:
            np.save(path, np.asarray(tensors[name], np.float32), allow_pickle=False)

    return save


def _is_npy_folder(place: Path) -> bool:
    return os.path.isdir(place) and any(place.glob("*.npy"))
