"""Compiled programs in this process: NumPy arrays or tokens in, arrays or tokens out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike

from meshc.driver.generating import (
    Answer,
    OnToken,
    OnTokenOf,
    Prompt,
    generated,
    generated_all,
    most_tokens,
    read_prompts,
)
from meshc.driver.hosts import PythonHost, load_host, opened
from meshc.driver.weights import Array, check_present, open_weights
from meshc.frontend.checkpoints import ModelConfig
from meshc.support.diagnostics import Diagnostics, fail


@dataclass(frozen=True)
class Program:
    """An emitted program that can be loaded, with what belongs to it.

    ``weights`` is where its weights are, or None when nothing says so; ``names`` are those it
    reads, where they are known. It ``makes_tokens``, or maps arrays to arrays.
    """

    folder: Path
    name: str
    target: str
    mesh: str
    config: ModelConfig | None
    layers: int | None
    weights: Path | None
    names: tuple[str, ...] = ()
    makes_tokens: bool = True


class Executable:
    """A program in this process with its weights packed: what ``Compiled.load`` gives.

    Programs for Python run here in NumPy, those for CUDA on a GPU or in the executor on this CPU.
    One that holds a GPU gives it back by :meth:`close` or at the end of a ``with`` block.
    """

    def __init__(
        self,
        program: Program,
        tensors: Mapping[str, Array] | None,
        backend: str,
        report: Diagnostics,
    ) -> None:
        """``tensors`` are the weights, None for those that the program names. Raises what
        :meth:`meshc.driver.compiled.Compiled.load` does."""
        self._program = program
        with ExitStack() as stack:
            self._backend = stack.enter_context(opened(program.target, backend))
            if self._backend.remark:
                report.remark("backend", self._backend.remark)
            given = _weights(program, report) if tensors is None else tensors
            check_present(program.names, given)
            self._host = load_host(program.folder, self._backend, given)
            self._open = stack.pop_all()

    def run(
        self, arrays: Mapping[str, ArrayLike] | None = None, /, **scalars: int | Sequence[int]
    ) -> dict[str, Array]:
        """The outputs of a tensor program by name, for ``arrays`` by the names of its inputs.

        A run-time scalar that is not given is as large as it can be; of ``pos`` there may be one
        for each request of a batch. Raises ``run-refused`` for
        inputs that are missing, unknown or ill-shaped, and for a language model.
        """
        if self._program.makes_tokens or not isinstance(self._host, PythonHost):
            fail(
                "run-refused",
                f"'{self._program.name}' maps tokens to tokens",
                help="generate(prompt) gives them",
            )
        given = {name: np.asarray(array) for name, array in (arrays or {}).items()}
        for name, array in given.items():
            if array.dtype.kind not in "biuf":
                fail("run-refused", f"'{name}' holds {array.dtype}, not real numbers")
        return self._host.run(given, scalars)

    def generate(
        self,
        prompt: str | Sequence[int],
        max_tokens: int = 16,
        *,
        ignore_eos: bool = False,
        on_token: OnToken | None = None,
    ) -> Answer:
        """Continue ``prompt``, a text or token ids, by at most ``max_tokens`` tokens, each
        the one with the largest logit.

        A token that ends a text is the last unless ``ignore_eos``. ``on_token`` is called with each
        token and the text so far. Raises ``no-tokens`` for a program that maps arrays to arrays,
        ``bad-argument``, ``no-tokenizer`` and ``run-refused``.
        """
        (read,), stop = self._read([prompt], max_tokens, ignore_eos)
        mesh, backend = self._program.mesh, self._backend.name
        return generated(self._host, read, max_tokens, stop, mesh, backend, on_token)

    def generate_all(
        self,
        prompts: Sequence[str | Sequence[int]],
        max_tokens: int = 16,
        *,
        ignore_eos: bool = False,
        on_token: OnTokenOf | None = None,
    ) -> list[Answer]:
        """Continue several prompts at once, at most as many as the program was compiled for
        (``batch``). Arguments and errors are those of :meth:`generate`, but that ``on_token`` is
        given the number of the prompt as well, before the token."""
        read, stop = self._read(prompts, max_tokens, ignore_eos)
        mesh, backend = self._program.mesh, self._backend.name
        return generated_all(self._host, read, max_tokens, stop, mesh, backend, on_token)

    def _read(
        self, prompts: Sequence[str | Sequence[int]], max_tokens: int, ignore_eos: bool
    ) -> tuple[list[Prompt], tuple[int, ...]]:
        """The prompts as token ids, and the tokens that end a text."""
        program = self._program
        if not program.makes_tokens:
            no_tokens(program.name, "run(arrays) maps arrays to arrays")
        most_tokens(max_tokens)
        read = read_prompts(prompts, program.config, program.weights, program.name)
        stop = () if ignore_eos or program.config is None else program.config.eos_ids
        return read, stop

    def close(self) -> None:
        """Give a GPU back. The program cannot be used any more."""
        self._open.close()

    def __enter__(self) -> Executable:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Executable {self._program.name} on {self._backend.name}>"


def no_tokens(name: str, instead: str) -> NoReturn:
    """Raise ``no-tokens``; ``instead`` says what the program can do."""
    fail(
        "no-tokens",
        f"'{name}' does not map tokens to tokens, so there is nothing to generate",
        help=instead,
    )


def _weights(program: Program, report: Diagnostics) -> Mapping[str, Array]:
    if program.weights is not None:
        return open_weights(program.weights, program.config, program.layers, report)
    if program.names:
        fail(
            "weights-not-found",
            f"nothing says where the weights of '{program.name}' are",
            notes=[f"it reads {', '.join(program.names)}"],
            help="load(weights) takes arrays by these names, or a path",
        )
    return {}
