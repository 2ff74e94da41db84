"""Weights that were decoded once and are kept in the user's cache, mapped into memory when used.

What is kept of a checkpoint lies in a folder that is named after the content of its files, the
model and the code that decodes; a tensor is a file that is named after itself and the sum of its
elements, so that a damaged one is not taken for what it was. All checkpoints together take
`MOST_BYTES` at most: those that were not used for the longest time go first.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from hashlib import file_digest, sha256
from io import BytesIO
from math import prod
from pathlib import Path

import numpy as np

from meshc.driver.weights import Array, CheckpointTensors
from meshc.support.cache import cache_folder
from meshc.support.code import code_here
from meshc.support.files import put_file
from meshc.support.room import make_room, use

MOST_BYTES = 4 << 30
"""Bytes of all that is kept."""
LEAST_BYTES = 64 << 20
"""Weights that take less are decoded sooner than they are looked up."""


def kept(tensors: Mapping[str, Array]) -> Mapping[str, Array]:
    """``tensors``, from the cache where they are of a checkpoint that is worth it: decoded it has
    `LEAST_BYTES` or more, and half of `MOST_BYTES` at most."""
    if not isinstance(tensors, CheckpointTensors):
        return tensors
    checkpoint = tensors.checkpoint
    size = 4 * sum(prod(checkpoint.shape(name)) for name in checkpoint.names())
    return KeptTensors(tensors) if LEAST_BYTES <= size <= MOST_BYTES // 2 else tensors


class KeptTensors(Mapping[str, Array]):
    """The ``tensors`` of a checkpoint. Each is decoded when it is first asked for; later look-ups,
    also those of other processes, map the file that was written then. Where the cache cannot be
    used they are decoded each time.
    """

    def __init__(self, tensors: CheckpointTensors) -> None:
        self._tensors = tensors
        self._mapped: dict[str, Array] = {}

    @cached_property
    def folder(self) -> Path:
        """Where the tensors are kept."""
        checkpoint = self._tensors.checkpoint
        digest = sha256(f"{code_here()} {checkpoint.layout()}".encode())
        files = checkpoint.source.files
        beside = sorted({path.parent / "config.json" for path in files})
        for path in (*files, *filter(Path.is_file, beside)):
            with path.open("rb") as stream:
                digest.update(file_digest(stream, "sha256").digest())
        return _all_kept() / digest.hexdigest()[:32]

    def __getitem__(self, name: str) -> Array:
        if name not in self._tensors:
            raise KeyError(name)
        if name not in self._mapped:
            try:
                found = self._recalled(name)
                self._mapped[name] = self._kept(name) if found is None else found
            except OSError:
                return self._tensors[name]
        return self._mapped[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def _recalled(self, name: str) -> Array | None:
        """The tensor ``name`` as it is kept, None where it is not, or is damaged."""
        for path in self.folder.glob(f"{name}.*.npy"):
            with suppress(ValueError, EOFError):
                found = np.load(path, mmap_mode="r", allow_pickle=False)
                if path.name == _file_name(name, found):
                    use(self.folder)
                    return np.asarray(found)
        return None

    def _kept(self, name: str) -> Array:
        """The tensor ``name``, decoded and written down. Raises OSError."""
        decoded = self._tensors[name]
        make_room(_all_kept(), self.folder, decoded.nbytes, MOST_BYTES)
        self.folder.mkdir(parents=True, exist_ok=True)
        stream = BytesIO()
        np.save(stream, decoded, allow_pickle=False)
        put_file(self.folder / _file_name(name, decoded), stream.getvalue(), beside=cache_folder())
        return decoded


def _all_kept() -> Path:
    return cache_folder() / "weights"


def _file_name(name: str, array: Array) -> str:
    return f"{name}.{zlib.crc32(np.ascontiguousarray(array).data):08x}.npy"
