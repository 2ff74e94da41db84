"""The host: embedding, the loop over tokens and greedy sampling; the cores do the rest."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from .memory import Array
from .phase import Phase


class HostError(Exception):
    """A request that the program cannot serve: ids, lengths or files that do not fit."""


class Weights(Mapping[str, Array]):
    """The logical tensors in a folder, one ``<name>.npy`` each, mapped into memory when used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> Array:
        path = self._folder / f"{name}.npy"
        if path.parent != self._folder or not path.is_file():
            raise KeyError(name)
        found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        return found

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in sorted(self._folder.glob("*.npy")))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class LanguageModel:
    """Maps prompt ids to token ids with a prefill phase (optional) and a decode phase.

    Prefill takes all prompt tokens but the last, as one block; decode takes one token at a time.
    Without prefill the prompt goes through decode. ``capacity`` tokens fit the KV cache.
    """

    def __init__(
        self, decode: Phase, prefill: Phase | None, embedding: Array, vocab: int, capacity: int
    ) -> None:
        self.decode, self.prefill = decode, prefill
        self.embedding, self.vocab, self.capacity = embedding, vocab, capacity
        self.last_logits: Array = np.full(vocab, np.nan, np.float32)

    def generate(
        self,
        ids: Sequence[int],
        max_tokens: int,
        on_token: Callable[[int, Array], None] | None = None,
        stop: Container[int] = (),
    ) -> list[int]:
        """Up to ``max_tokens`` greedy tokens after ``ids``; a token in ``stop`` is the last.

        ``on_token`` is called with each token and its logits ``[vocab]``. Raises ``HostError``.
        """
        self._check(ids, max_tokens)
        self.decode.reset()
        position = self._read(ids[:-1])
        token, found = ids[-1], list[int]()
        while len(found) < max_tokens:
            self._decode(token, position)
            position += 1
            logits = self.decode.output("logits").reshape(-1)[: self.vocab]
            self.last_logits = logits
            token = int(logits.argmax())
            found.append(token)
            if on_token is not None:
                on_token(token, logits)
            if token in stop:
                break
        return found

    def _check(self, ids: Sequence[int], max_tokens: int) -> None:
        if not ids:
            raise HostError("the prompt has no tokens")
        for token in ids:
            if not 0 <= token < self.vocab:
                raise HostError(f"token {token} is not in the vocabulary 0 .. {self.vocab - 1}")
        if len(ids) + max_tokens - 1 > self.capacity:
            raise HostError(
                f"{len(ids)} prompt tokens and {max_tokens} new ones do not fit a cache of "
                f"{self.capacity} tokens; compile with a larger --seq"
            )

    def _read(self, ids: Sequence[int]) -> int:
        """Fill the cache with ``ids``; returns how many tokens it holds."""
        if self.prefill is not None and ids:
            self._run(self.prefill, ids, 0)
        elif ids:
            for position, token in enumerate(ids):
                self._decode(token, position)
        return len(ids)

    def _decode(self, token: int, position: int) -> None:
        self._run(self.decode, [token], position)

    def _run(self, phase: Phase, ids: Sequence[int], position: int) -> None:
        """Run a phase on the embeddings of ``ids``, which follow ``position`` cached tokens."""
        ((name, shape),) = phase.inputs.items()
        rows = np.asarray(self.embedding[np.asarray(ids)], np.float32)
        known = {"pos": position, "len": len(ids)}
        scalars = {scalar: known[scalar] for scalar in phase.scalars}
        phase.run({name: rows.reshape((1,) * (len(shape) - 2) + rows.shape)}, **scalars)


class TensorProgram:
    """A single phase without a cache: maps input tensors to output tensors."""

    def __init__(self, phase: Phase) -> None:
        self.phase = phase

    def run(self, inputs: Mapping[str, Array], **scalars: int) -> dict[str, Array]:
        """The outputs by name. A scalar not given is as large as it can be."""
        missing = [name for name in self.phase.inputs if name not in inputs]
        unknown = [name for name in inputs if name not in self.phase.inputs]
        if missing or unknown:
            wanted = ", ".join(self.phase.inputs) or "none"
            raise HostError(f"the inputs of this program are: {wanted}")
        values = {name: scalars.get(name, high) for name, (_, high) in self.phase.scalars.items()}
        self.phase.run(inputs, **values)
        return {name: self.phase.output(name) for name in self.phase.outputs}
