"""Programs of one rank among several: their weights, and what the host does between kernels.

A fused block of a rank leaves its part of a sum over the ranks. ``folded`` takes the ``all_reduce``
behind it and the residual sum into the block; its launches then end with one of :data:`ALL_REDUCE`,
which is no kernel: the host adds up what the machines of all ranks have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from threading import Barrier, BrokenBarrierError, Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.host import LanguageModel, Machine
from meshc.backends.cuda.program import ALL_REDUCE, Launch, StepProgram
from meshc.ir.core import tensor_type
from meshc.ir.module import Module

Array = NDArray[Any]
Found = TypeVar("Found")


class RankTensors(Mapping[str, Array]):
    """The parts that ``rank`` has of the model's ``tensors``, by what the header of ``module``
    says; padding is zero."""

    def __init__(self, module: Module, tensors: Mapping[str, Array], rank: int) -> None:
        self._module = module
        self._tensors = tensors
        self._rank = rank
        self._kinds = {p.value.name: tensor_type(p.value) for p in module.function.params}

    def __getitem__(self, name: str) -> Array:
        found = np.asarray(self._tensors[name])
        for axis, dim in enumerate(self._kinds[name].dims):
            part = self._module.ranks.part_of(dim) if self._module.ranks else None
            if part is not None:
                places = part.elements(self._rank, self._module.dims)
                taken = [found.take(p or 0, axis) * (p is not None) for p in places]
                found = np.stack(taken, axis)
        return found

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._kinds if name in self._tensors)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Node:
    """``count`` machines, one for each rank, that meet in collectives; one of them computes at a
    time."""

    def __init__(self, count: int) -> None:
        self.barrier = Barrier(count)
        self.computing = Lock()
        self.brought: dict[int, Array] = {}

    def total(self, rank: int, array: Array) -> Array:
        """The sum of what all ranks bring, in their order."""
        self.brought[rank] = array
        self.barrier.wait()
        total = self.brought[0].copy()
        for other in range(1, self.barrier.parties):
            total += self.brought[other]
        self.barrier.wait()
        return total


class RankMachine:
    """The machine of a rank, which runs kernels on ``machine`` and collectives on the host."""

    def __init__(self, machine: Machine, node: Node, rank: int) -> None:
        self._machine = machine
        self._node = node
        self._rank = rank
        self.store, self.write, self.read = machine.store, machine.write, machine.read

    def run(self, launches: Sequence[tuple[Launch, int]]) -> None:
        """The launches of a step, one after the other."""
        for meets, part in groupby(launches, lambda one: one[0].kernel == ALL_REDUCE):
            if not meets:
                with self._node.computing:
                    self._machine.run(list(part))
                continue
            for launch, _ in part:
                self._all_reduce(*map(str, launch.arguments))

    def total(self, array: Array) -> Array:
        """The sum of what the machines of all ranks bring, in the order of ranks."""
        return self._node.total(self._rank, array)

    def _all_reduce(self, sums: str, residual: str, cleared: str) -> None:
        """``sums`` of all ranks and the residual, which all ranks have, are added up into ``sums``;
        then what is ``cleared``, if anything, is zeroed."""
        self.write(sums, self.total(self.read(sums)) + self.read(residual))
        if cleared:
            self.write(cleared, np.zeros_like(self.read(cleared)))


def on_all_ranks(
    program: StepProgram,
    module: Module,
    tensors: Mapping[str, Array],
    machine: Callable[[], Machine],
    work: Callable[[LanguageModel], Found],
) -> list[Found]:
    """What ``work`` gives with the language model of each rank of ``program``, which was made of
    ``module``; ``tensors`` are those of the whole model, and ``machine`` makes a machine."""
    count = module.ranks.count if module.ranks else 1
    node = Node(count)

    def one(rank: int) -> Found:
        try:
            parts = RankTensors(module, tensors, rank)
            return work(LanguageModel(program, RankMachine(machine(), node, rank), parts))
        except BaseException:
            node.barrier.abort()
            raise

    with ThreadPoolExecutor(count) as pool:
        runs = [pool.submit(one, rank) for rank in range(count)]
    failures = [error for error in (run.exception() for run in runs) if error is not None]
    for error in sorted(failures, key=lambda error: isinstance(error, BrokenBarrierError)):
        raise error
    return [run.result() for run in runs]
