"""Compiled programs in this process: NumPy arrays or tokens in, arrays or tokens out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike

from meshc.backends import cuda
from meshc.backends.host_protocols import Host, Loading
from meshc.backends.hosts import PythonHost
from meshc.backends.target import target_named
from meshc.driver.backends import load_host, opened
from meshc.driver.generating import (
    Answer,
    Continuation,
    Given,
    OnToken,
    OnTokenOf,
    generated,
    read_prompts,
)
from meshc.driver.serving_facts import Serving
from meshc.driver.weights import Array, check_present, open_weights
from meshc.frontend.checkpoints import ModelConfig
from meshc.serving.sampling import GREEDY, Sampling
from meshc.support.diagnostics import Diagnostics, fail


@dataclass(frozen=True)
class Program:
    """An emitted program that can be loaded, with what belongs to it.

    ``weights`` is where its weights are, or None when nothing says so; ``names`` are those it
    reads, where they are known. It ``makes_tokens``, or maps arrays to arrays. ``mesh`` is None
    where it is of none. Weights that are packed for GPUs are kept in the folder ``packed``, None
    for nowhere. ``serving`` is there for one that was compiled to serve.
    """

    folder: Path
    name: str
    target: str
    mesh: str | None
    config: ModelConfig | None
    layers: int | None
    weights: Path | None
    names: tuple[str, ...] = ()
    makes_tokens: bool = True
    packed: Path | None = None
    serving: Serving | None = None


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
        check_generates(program)
        self._program = program
        with ExitStack() as stack:
            self._backend = stack.enter_context(opened(program.target, backend))
            if self._backend.remark:
                report.remark("backend", self._backend.remark)
            given = _weights(program, report) if tensors is None else tensors
            check_present(program.names, given)
            where = program.folder, self._backend
            self._host = load_host(Loading(*where, given, report, packed=program.packed))
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
        prompt: Given,
        max_tokens: int = 16,
        *,
        ignore_eos: bool = False,
        sampling: Sampling = GREEDY,
        seed: int = 0,
        stop: Sequence[str] = (),
        on_token: OnToken | None = None,
        logits: bool = True,
        steps: int | None = None,
    ) -> Answer:
        """Continue ``prompt``, a text, token ids or a conversation, by at most ``max_tokens``
        tokens, each the one with the largest logit or drawn by ``sampling`` with ``seed``.

        A token that ends a text is the last unless ``ignore_eos``, and the text ends before one of
        the texts ``stop``. ``on_token`` is called with each token and the text so far. Where no
        ``logits`` are wanted, a program for CUDA chooses tokens itself, in launches of so many
        ``steps`` (16 on a GPU, 1 on the CPU in its place), and the answer has none.

        Raises ``no-tokens`` for a program that maps arrays to arrays,
        ``bad-argument``, ``no-tokenizer`` and ``run-refused``.
        """
        tell = None if on_token is None else partial(_told, on_token)
        ends, given = self._ends(ignore_eos), (sampling, seed, logits, steps)
        how = Continuation(max_tokens, ends, tuple(stop), *given)
        return self._generated([prompt], how, tell)[0]

    def generate_all(
        self,
        prompts: Sequence[Given],
        max_tokens: int = 16,
        *,
        ignore_eos: bool = False,
        sampling: Sampling = GREEDY,
        seed: int = 0,
        stop: Sequence[str] = (),
        on_token: OnTokenOf | None = None,
        logits: bool = True,
        steps: int | None = None,
    ) -> list[Answer]:
        """Continue several prompts at once, at most as many as the program was compiled for
        (``batch``). Arguments and errors are those of :meth:`generate`, but that ``on_token`` is
        given the number of the prompt as well, before the token."""
        ends, given = self._ends(ignore_eos), (sampling, seed, logits, steps)
        how = Continuation(max_tokens, ends, tuple(stop), *given)
        return self._generated(prompts, how, on_token)

    def _ends(self, ignore_eos: bool) -> tuple[int, ...]:
        """The tokens that end a text."""
        config = self._program.config
        return () if ignore_eos or config is None else config.eos_ids

    def _generated(
        self,
        prompts: Sequence[Given],
        how: Continuation,
        on_token: OnTokenOf | None,
    ) -> list[Answer]:
        program = self._program
        if not program.makes_tokens:
            no_tokens(program.name, "run(arrays) maps arrays to arrays")
        how.check()
        read = read_prompts(prompts, program.config, program.weights, program.name)
        return generated(self._host, read, how, program.mesh, self._backend.name, on_token)

    @property
    def host(self) -> Host:
        """The language model that is loaded."""
        return self._host

    @property
    def device(self) -> cuda.Device | None:
        """The GPU that it runs on, None for this CPU."""
        return self._backend.device

    def close(self) -> None:
        """Give a GPU back. The program cannot be used any more."""
        self._open.close()

    def __enter__(self) -> Executable:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Executable {self._program.name} on {self._backend.name}>"


def _told(on_token: OnToken, _: int, token: int, text: str) -> None:
    on_token(token, text)


def check_generates(program: Program) -> None:
    """Raise ``bad-argument`` for a program whose requests have the pages that a server gives."""
    if program.serving is not None and not target_named(program.target).served_by_passes():
        fail(
            "bad-argument",
            f"'{program.name}' was compiled to serve, and a server says where its requests have "
            "their pages",
            help="meshc serve DIR; or compile it without --serving",
        )


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
