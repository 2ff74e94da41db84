"""The host: embedding, the loop over tokens and greedy sampling; the cores do the rest."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .memory import Array
from .phase import Phase


class HostError(Exception):
    """A request that the program cannot serve: ids, lengths or files that do not fit."""


def read_array(path: str | Path) -> Array:
    """The array in a ``.npy`` file, mapped into memory when used; HostError where it holds none."""
    try:
        found: Array = np.lib.format.open_memmap(path, mode="r")
    except ValueError as error:
        raise HostError(f"'{path}' holds no array of NumPy") from error
    return found


class Weights(Mapping[str, Array]):
    """The logical tensors in a folder, one ``<name>.npy`` each, mapped into memory when used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> Array:
        path = self._folder / f"{name}.npy"
        if path.parent != self._folder or not path.is_file():
            raise KeyError(name)
        return read_array(path)

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in sorted(self._folder.glob("*.npy")))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass
class Request:
    """A request on its way: the step to come reads ``token`` at ``position``, later ones those of
    the prompt ``ahead``; ``found`` are the tokens generated so far.

    One that has ended stays where it is: steps read its last token again, and nobody looks.
    """

    token: int = 0
    position: int = 0
    ahead: list[int] = field(default_factory=list)
    found: list[int] = field(default_factory=list)
    ended: bool = True

    def go_on(self, token: int) -> None:
        """The step after the one that was done reads ``token``."""
        self.token, self.position = token, self.position + 1


class LanguageModel:
    """Maps prompt ids to token ids with a prefill phase (optional) and a decode phase.

    Prefill takes all tokens of a prompt but the last, as one block; decode takes one token of each
    of ``batch`` requests at a time. Without prefill prompts go through decode. ``capacity`` tokens
    of each request fit the KV cache. Prompts have ``least`` tokens or more: the rotary frequencies
    of some models are others for shorter sequences. Rows of ``learned`` positions are added to the
    embeddings of models that have them.

    A host that serves requests as they come calls ``begin``, ``read`` and ``step`` itself.
    ``loops`` are those of prefill over layers of which a run may pass some: the run-time scalars of
    the first layer and of their number, and how many layers there are. Such a run multiplies
    embeddings by ``row_scale`` before they pass the first layer.
    """

    def __init__(
        self,
        decode: Phase,
        prefill: Phase | None,
        embedding: Array,
        vocab: int,
        capacity: int,
        batch: int = 1,
        loops: Sequence[tuple[str, str, int]] = (),
        least: int = 1,
        learned: Array | None = None,
        row_scale: float = 1.0,
    ) -> None:
        self.decode, self.prefill, self.loops = decode, prefill, tuple(loops)
        self.embedding, self.vocab, self.capacity = embedding, vocab, capacity
        self.batch, self.least, self.learned = batch, least, learned
        self.row_scale = np.float32(row_scale)
        self.last_logits: Array = np.full(vocab, np.nan, np.float32)

    def generate(
        self,
        ids: Sequence[int],
        max_tokens: int,
        on_token: Callable[[int, Array], object] | None = None,
        stop: Container[int] = (),
    ) -> list[int]:
        """Up to ``max_tokens`` greedy tokens after ``ids``; a token in ``stop`` is the last.

        ``on_token`` is called with each token and its logits ``[vocab]``. Raises ``HostError``.
        """

        def tell(request: int, token: int, logits: Array) -> object:
            return on_token is not None and on_token(token, logits)

        return self.generate_all([ids], max_tokens, tell, stop)[0]

    def generate_all(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        on_token: Callable[[int, int, Array], object] | None = None,
        stop: Container[int] = (),
        choose: Callable[[int, Array], int] | None = None,
    ) -> list[list[int]]:
        """As ``generate``, for up to ``batch`` prompts at once.

        ``on_token`` is called with the number of a prompt, a token behind it and its logits; if it
        returns true, the token is the last. ``choose`` gives the next token for the number of a
        prompt and the logits behind it; without it that is the most likely one.
        """
        if not 1 <= len(prompts) <= self.batch:
            raise HostError(f"{len(prompts)} prompts, but the program takes 1 to {self.batch}")
        for ids in prompts:
            self._check(ids, max_tokens)
        self.decode.reset()
        requests = [self._begun(number, ids) for number, ids in enumerate(prompts)]
        while max_tokens > 0 and not all(request.ended for request in requests):
            logits = self._decode(requests)
            for number, request in enumerate(requests):
                if request.ended:
                    continue
                if request.ahead:
                    request.go_on(request.ahead.pop(0))
                    continue
                self.last_logits = logits[number]
                row = logits[number]
                token = int(row.argmax()) if choose is None else choose(number, row)
                request.found.append(token)
                request.ended = token in stop or len(request.found) == max_tokens
                if on_token is not None and on_token(number, token, row):
                    request.ended = True
                if not request.ended:
                    request.go_on(token)
        return [request.found for request in requests]

    def begin(self, request: int) -> None:
        """Forget what the caches of ``request`` hold: another prompt comes. Places that it does not
        fill are multiplied by zeros, and so must be numbers."""
        self.decode.reset(request if self.batch > 1 else None)

    def embedded(self, ids: Sequence[int], position: int | Sequence[int] = 0) -> Array:
        """The rows ``[tokens, lanes]`` that ``ids`` begin with. They stand behind each other from
        ``position`` on, or each at a position of its own."""
        rows = np.asarray(self.embedding[np.asarray(ids)], np.float32)
        if self.learned is None:
            return rows
        own = np.arange(len(ids)) + position if isinstance(position, int) else np.array(position)
        return rows + np.asarray(self.learned[np.maximum(own, 0)], np.float32)

    def read(
        self, request: int, rows: Array, position: int = 0, layers: range | None = None
    ) -> Array:
        """Let tokens of a prompt pass ``layers`` (all by default), which keeps them in the caches
        of ``request`` behind ``position`` tokens that are there already.

        ``rows`` ``[tokens, lanes]`` are their embeddings, or what the layers before gave; returns
        what these layers give. Raises ``HostError`` where the program cannot do that.
        """
        if position + len(rows) > self.capacity:
            words = f"{position + len(rows)} tokens do not fit a cache of {self.capacity}"
            raise HostError(words)
        if self.prefill is None:
            return self._read_by_steps(request, rows, position)
        if position and "pos" not in self.prefill.scalars:
            raise HostError("the program reads prompts whole")
        most = self.prefill.scalars["len"][1]
        if len(rows) > most:
            raise HostError(f"a chunk of {len(rows)} tokens, but the program reads {most} at most")
        known = {"len": len(rows), "request": request, "pos": position, **self._rounds(layers)}
        if self.row_scale != 1 and (layers is None or layers.start == 0):
            rows = rows * self.row_scale
        self._run(self.prefill, rows, known)
        found = self.prefill.output(self.prefill.outputs[0])
        return found.reshape(-1, found.shape[-1])

    def step(self, tokens: Mapping[int, tuple[int, int]]) -> dict[int, Array]:
        """Continue some requests: by number a token of each and its position. The logits behind
        each; the caches of other requests are left alone, which takes a program for serving."""
        self._check_alone(len(tokens))
        absent = Request(position=self._nowhere)
        known = {n: Request(token, position) for n, (token, position) in tokens.items()}
        logits = self._decode([known.get(number, absent) for number in range(self.batch)])
        return {number: logits[number] for number in tokens}

    @property
    def _nowhere(self) -> int:
        """The position of a place without a request, whose caches a step leaves alone if it can."""
        return min(0, self.decode.scalars["pos"][0])

    def _check_alone(self, requests: int) -> None:
        """Raise ``HostError`` where a step cannot continue so few ``requests``."""
        if requests < self.batch and not self._nowhere:
            raise HostError("the program continues all of its requests at once")

    def _read_by_steps(self, request: int, rows: Array, position: int) -> Array:
        """Let ``rows`` pass all layers one by one; what these give is of no use."""
        self._check_alone(1)
        for number, row in enumerate(rows):
            every = np.zeros((self.batch, *row.shape), np.float32)
            positions = [self._nowhere] * self.batch
            every[request], positions[request] = row, position + number
            self._run_step(every, positions)
        return rows

    def _rounds(self, layers: range | None) -> dict[str, int]:
        """The scalars that say which of ``layers`` each loop runs."""
        total = sum(count for _, _, count in self.loops)
        wanted = range(total) if layers is None else layers
        if not self.loops and layers is not None:
            raise HostError("the program passes all layers at once")
        if not 0 <= wanted.start < wanted.stop <= total and self.loops:
            raise HostError(f"there are no layers {wanted.start} to {wanted.stop - 1} of {total}")
        found: dict[str, int] = {}
        begin = 0
        for first, number, count in self.loops:
            low = min(max(wanted.start - begin, 0), count)
            high = min(max(wanted.stop - begin, 0), count)
            found |= {first: min(low, count - 1), number: max(high - low, 0)}
            begin += count
        return found

    def _check(self, ids: Sequence[int], max_tokens: int) -> None:
        if not ids:
            raise HostError("the prompt has no tokens")
        for token in ids:
            if not 0 <= token < self.vocab:
                raise HostError(f"token {token} is not in the vocabulary 0 .. {self.vocab - 1}")
        if len(ids) < self.least:
            raise HostError(
                f"{len(ids)} prompt tokens, but the program is for sequences of {self.least} or "
                f"more; compile with --seq {self.least - 1} or less for shorter ones"
            )
        if len(ids) + max_tokens - 1 > self.capacity:
            raise HostError(
                f"{len(ids)} prompt tokens and {max_tokens} new ones do not fit a cache of "
                f"{self.capacity} tokens; compile with a larger --seq"
            )

    def _begun(self, number: int, ids: Sequence[int]) -> Request:
        """Request ``number``, with what prefill reads of its prompt in the cache."""
        *before, last = ids
        if self.prefill is None or not before:
            return Request(ids[0], 0, list(ids[1:]), ended=False)
        multiple = self.prefill.multiples.get("pos", 1)
        most = self.prefill.scalars["len"][1]
        step = most - most % multiple
        for first in range(0, len(before), step):
            self.read(number, self.embedded(before[first : first + step], first), first)
        return Request(last, len(before), ended=False)

    def _decode(self, requests: Sequence[Request]) -> Array:
        """A step: the logits ``[batch, vocab]`` behind the token of each request."""
        absent = Request(position=self._nowhere)
        every = [*requests, *(absent for _ in range(self.batch - len(requests)))]
        positions = [request.position for request in every]
        self._run_step(self.embedded([request.token for request in every], positions), positions)
        return self.decode.output("logits").reshape(self.batch, -1)[:, : self.vocab]

    def _run_step(self, rows: Array, positions: Sequence[int]) -> None:
        """A step on ``rows`` ``[batch, lanes]`` at these ``positions``."""
        several = "pos" in self.decode.several
        self._run(self.decode, rows, {"pos": positions if several else positions[0]})

    def _run(self, phase: Phase, rows: Array, known: Mapping[str, int | Sequence[int]]) -> None:
        """Run a phase on ``rows`` ``[tokens, lanes]``."""
        ((name, shape),) = phase.inputs.items()
        scalars = {scalar: known[scalar] for scalar in phase.scalars}
        ones = (1,) * (len(shape) - 2)
        together = phase is self.decode and self.batch > 1
        rows = rows.reshape(shape if together else ones + rows.shape)
        phase.run({name: rows}, **scalars)


class TensorProgram:
    """A single phase without a cache: maps input tensors to output tensors."""

    def __init__(self, phase: Phase) -> None:
        self.phase = phase

    def run(self, inputs: Mapping[str, Array], **scalars: int | Sequence[int]) -> dict[str, Array]:
        """The outputs by name. A scalar not given is as large as it can be; of one that each
        request has of its own one number stands for as many."""
        missing = [name for name in self.phase.inputs if name not in inputs]
        unknown = [name for name in inputs if name not in self.phase.inputs]
        if missing or unknown:
            wanted = ", ".join(self.phase.inputs) or "none"
            raise HostError(f"the inputs of this program are: {wanted}")
        values: dict[str, int | Sequence[int]] = {}
        for name, (_, high) in self.phase.scalars.items():
            given, count = scalars.get(name, high), self.phase.several.get(name)
            values[name] = given
            if count is not None and isinstance(given, int):
                values[name] = [given] * count
        self.phase.run(inputs, **values)
        return {name: self.phase.output(name) for name in self.phase.outputs}
