"""``meshc::step``: tokens through a compiled program, as an operator of torch.

It changes the caches that it is given and nothing else that anybody sees, so graphs of
``torch.compile`` and ``torch.export`` hold it as one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from weakref import WeakValueDictionary

import numpy as np
import torch

from meshc.backends import cuda
from meshc.support.diagnostics import fail
from meshc.torch.caches import check_caches, states_of

NO_TOKEN = -1
"""What stands among tokens in a column that is padding."""
_SCHEMA = "(Tensor tokens, Tensor cached, Tensor(a!)[] caches, str program, int kept) -> Tensor"


class LoadedProgram:
    """A program that the operator finds by its ``key``, as long as somebody holds this object."""

    def __init__(self, name: str, model: cuda.LanguageModel) -> None:
        self.model = model
        self.key = f"{name}#{next(_numbers)}"
        _programs[self.key] = self

    def run(self, tokens: Sequence[Sequence[int]], cached: Sequence[int], kept: int) -> np.ndarray:
        """Logits [rows, kept, vocabulary] behind the last ``kept`` columns of ``tokens``, zeros
        where there is no token; each row has so many ``cached`` before. Raises ``run-refused``."""
        program, rows, columns = self.model.program, len(tokens), len(tokens[0])
        held = [*cached, *(0 for _ in range(program.batch - rows))]
        logits = np.zeros((rows, kept, program.vocabulary), np.float32)
        first = columns - kept
        if first:
            for row, line in enumerate(tokens):
                given = [token for token in line[: first + 1] if token != NO_TOKEN]
                if given:
                    found = self.model.prefill(given, row, held, held[row])
                    logits[row, 0] = 0 if line[first] == NO_TOKEN else found
                    held[row] += len(given)
        for at in range(first + bool(first), columns):
            column = [line[at] for line in tokens]
            here = [row for row, token in enumerate(column) if token != NO_TOKEN]
            given = [0 if token == NO_TOKEN else token for token in column]
            given += [0] * (program.batch - rows)
            found = self.model.step(given, held)
            for row in here:
                logits[row, at - first] = found[row]
                held[row] += 1
        return logits


_numbers = count(1)
_programs: WeakValueDictionary[str, LoadedProgram] = WeakValueDictionary()


def program_of(key: str) -> LoadedProgram:
    """The program called ``key``. Raises ``run-refused`` where it was given up."""
    found = _programs.get(key)
    if found is None:
        fail("run-refused", f"there is no loaded program '{key}'", help="keep its CompiledModel")
    return found


def _on_cpu(
    tokens: torch.Tensor,
    cached: torch.Tensor,
    caches: Sequence[torch.Tensor],
    program: str,
    kept: int,
) -> torch.Tensor:
    loaded = program_of(program)
    machine = loaded.model.machine
    if not isinstance(machine, cuda.CpuMachine):
        fail("run-refused", f"'{program}' runs on a GPU, and the tokens are on the CPU")
    check_caches(loaded.model.program, caches, "cpu")
    for name, tensor in zip(states_of(loaded.model.program), caches, strict=True):
        words = tensor.view(torch.uint16) if tensor.element_size() == 2 else tensor
        machine.lend(name, words.numpy())
    return torch.from_numpy(_computed(loaded, tokens, cached, kept))


def _on_gpu(
    tokens: torch.Tensor,
    cached: torch.Tensor,
    caches: Sequence[torch.Tensor],
    program: str,
    kept: int,
) -> torch.Tensor:
    loaded = program_of(program)
    machine = loaded.model.machine
    if not isinstance(machine, cuda.GpuMachine):
        fail("run-refused", f"'{program}' runs on the CPU, and the tokens are on a GPU")
    check_caches(loaded.model.program, caches, "cuda")
    own = torch.device("cuda", machine.device.index)
    for (name, _), tensor in zip(states_of(loaded.model.program).items(), caches, strict=True):
        if tensor.device != own:
            fail("run-refused", f"'{name}' is on {tensor.device}, and the program on {own}")
        machine.lend(name, tensor)
    # What torch was asked to do with the caches comes first; behind the logits all is done.
    torch.cuda.current_stream(own).synchronize()
    return torch.from_numpy(_computed(loaded, tokens, cached, kept)).to(tokens.device)


def _computed(
    loaded: LoadedProgram, tokens: torch.Tensor, cached: torch.Tensor, kept: int
) -> np.ndarray:
    program = loaded.model.program
    if tokens.ndim != 2 or not 1 <= len(tokens) <= program.batch or not tokens.shape[1]:
        words = f"tokens are [rows, columns] of up to {program.batch} rows"
        fail("run-refused", f"{words}, not {list(tokens.shape)}")
    if cached.shape != tokens.shape[:1]:
        fail("run-refused", f"there is one number of cached tokens a row, not {list(cached.shape)}")
    if tokens.is_floating_point() or cached.is_floating_point():
        fail("run-refused", "tokens and numbers of cached ones are whole numbers")
    if not 1 <= kept <= tokens.shape[1]:
        words = f"logits are of 1 to {tokens.shape[1]} columns"
        fail("run-refused", f"{words}, not of {kept}")
    return loaded.run(tokens.tolist(), cached.tolist(), kept)


def _fake(
    tokens: torch.Tensor,
    cached: torch.Tensor,
    caches: Sequence[torch.Tensor],
    program: str,
    kept: int,
) -> torch.Tensor:
    vocabulary = program_of(program).model.program.vocabulary
    return tokens.new_empty((tokens.shape[0], kept, vocabulary), dtype=torch.float32)


step = torch.library.custom_op(
    "meshc::step", _on_cpu, mutates_args={"caches"}, device_types="cpu", schema=_SCHEMA
)
"""Logits f32 [rows, ``kept``, vocabulary] behind the last ``kept`` columns of ``tokens``, int64
[rows, columns], of which -1 is padding; each row has so many tokens ``cached``, int64 [rows], in
the ``caches``, which are the tensors of a :class:`meshc.torch.ProgramCache` and have the new ones
as well behind it. ``program`` is the key of a :class:`meshc.torch.CompiledModel`. Raises MeshcError
``run-refused``."""
step.register_kernel("cuda", _on_gpu)
step.register_fake(_fake)
