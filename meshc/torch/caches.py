"""Keys and values of a compiled program as a ``Cache`` of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from transformers import Cache

from meshc.backends.cuda import StepProgram
from meshc.support.diagnostics import fail

_KINDS = {
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "e4m3": torch.uint8,
}  # fmt: skip


class ProgramCache(Cache):  # type: ignore[misc]
    """The caches of a compiled program, in tensors that its kernels read and write in place.

    ``tensors`` are those of the program, by the names of its manifest in their order there; each is
    [layers, pages, ...], with the pages of one request behind those of the other. ``seen`` is a
    mask [rows, columns] on the CPU of what was read: a column that is false in a row was padding,
    of which nothing is kept. A row is a request of the program, which has room for ``batch`` of
    them and for ``capacity`` tokens of each.
    """

    def __init__(self, program: StepProgram, layers: int, device: torch.device) -> None:
        """Caches that hold nothing yet, of a model of so many ``layers``, on ``device``."""
        self.layers: list[Any] = []
        self.batch, self.capacity = program.batch, program.capacity
        self.tensors = [
            torch.zeros(buffer.shape, dtype=_KINDS[buffer.dtype], device=device)
            for buffer in states_of(program).values()
        ]
        self.seen = torch.zeros((0, 0), dtype=torch.bool)
        self._layers = layers

    @property
    def counts(self) -> torch.Tensor:
        """How many tokens each row has, int64 [rows]."""
        return self.seen.sum(1)

    def extended(self, given: torch.Tensor) -> torch.Tensor:
        """``seen`` with the mask ``given`` [rows, columns] behind it. Raises ``run-refused`` for
        another number of rows than before, or more than there is room for."""
        rows = len(given)
        if not 1 <= rows <= self.batch:
            fail(
                "run-refused",
                f"{rows} rows of tokens were given to a program of {self.batch}",
                help=f"compile it with batch={rows}" if rows else "",
            )
        if not self.seen.numel():
            return given
        if len(self.seen) != rows:
            words = f"the cache has {len(self.seen)} rows, and {rows} rows of tokens were given"
            fail("run-refused", words)
        return torch.cat([self.seen, given], 1)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns that were read, padding included."""
        return int(self.seen.shape[1])

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Tokens that each row has room for."""
        return self.capacity

    get_max_cache_shape = get_max_length

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        """The columns that a mask has with those that are read next, and how many it leaves out."""
        count = query_length if isinstance(query_length, int) else len(query_length)
        return self.get_seq_length() + count, 0

    def update(self, *arrays: Any, **named: Any) -> NoReturn:
        """Refused: the kernels of the program write their caches themselves."""
        fail("run-refused", "a ProgramCache is written by the program that it was made for")

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last columns: so many for a number below 0, none for 0; a number above 0 says
        how many are left."""
        columns = self.get_seq_length()
        left = columns + tokens_to_remove if tokens_to_remove <= 0 else tokens_to_remove
        self.seen = self.seen[:, : max(0, min(left, columns))]

    def reset(self) -> None:
        """Forget everything."""
        self.seen = torch.zeros((0, 0), dtype=torch.bool)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Let each row be what the row ``beam_idx`` says was, int64 [rows]."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Let each row be there ``repeats`` times, one behind the other."""
        self.batch_select_indices(torch.arange(len(self.seen)).repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Let the rows be those of ``indices``, int64 [rows], in this order."""
        if len(indices) > self.batch:
            fail("run-refused", f"{len(indices)} rows do not fit a program of {self.batch}")
        self.seen = self.seen[indices.cpu()]
        for tensor in self.tensors:
            rows = tensor.unflatten(1, (self.batch, -1))
            rows[:, : len(indices)] = rows[:, indices.to(tensor.device)]

    @property
    def is_compileable(self) -> bool:
        """No: which kernels run goes by how many tokens there are."""
        return False

    @property
    def is_linear(self) -> list[bool]:
        """No layer keeps a sum in the place of its tokens."""
        return [False] * self._layers

    @property
    def is_sliding(self) -> list[bool]:
        """Every layer keeps all tokens, also those that its window has left."""
        return [False] * self._layers

    @property
    def is_initialized(self) -> bool:
        """Yes."""
        return True

    @property
    def is_croppable(self) -> bool:
        """Yes."""
        return True

    def __len__(self) -> int:
        return self._layers

    def __repr__(self) -> str:
        rows, columns = self.seen.shape
        return f"<ProgramCache of {rows} rows, {columns} of {self.capacity} columns>"


def states_of(program: StepProgram) -> Mapping[str, Any]:
    """The buffers of ``program`` that are kept from step to step, by name."""
    return {name: each for name, each in program.buffers.items() if each.role == "state"}


def check_caches(program: StepProgram, tensors: Sequence[torch.Tensor], device: str) -> None:
    """Raise ``run-refused`` for other ``tensors`` than those of a :class:`ProgramCache` of
    ``program`` on a ``device`` of this kind: kernels trust their shapes."""
    wanted = states_of(program)
    if len(tensors) != len(wanted):
        fail("run-refused", f"{len(tensors)} caches were given, and the program has {len(wanted)}")
    for tensor, (name, buffer) in zip(tensors, wanted.items(), strict=True):
        fits = tensor.shape == buffer.shape and tensor.dtype == _KINDS[buffer.dtype]
        if not fits or tensor.device.type != device or not tensor.is_contiguous():
            fail(
                "run-refused",
                f"'{name}' is {buffer.dtype} {list(buffer.shape)}, contiguous, on {device}, not "
                f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}",
            )
