"""Symmetric memory by torch.distributed: processes that torchrun starts, a GPU for each.

``torch.distributed._symmetric_memory`` of a recent torch makes the allocations, exchanges their
handles and binds them to a multicast object; kernels are meshc's own. Allocations are kept apart
(no memory pool), so that each begins at its handle's addresses.
"""

from __future__ import annotations

import atexit
import importlib
import os
from typing import Any

from meshc.backends.cuda.driver.rank_machine import Reached
from meshc.support.diagnostics import fail

LOCAL_RANK, WORLD_SIZE = "LOCAL_RANK", "WORLD_SIZE"
"""Variables that torchrun sets: which GPU of this machine a process takes, and how many there are.
"""
_POOL = "TORCH_SYMMMEM_IMPLICIT_POOL"


def started_by_torchrun() -> bool:
    """Whether this process is one of several."""
    return LOCAL_RANK in os.environ and WORLD_SIZE in os.environ


def own_gpu() -> int | None:
    """The GPU of this process, None where it has its choice."""
    text = os.environ.get(LOCAL_RANK, "")
    return int(text) if started_by_torchrun() and text.isdigit() else None


class TorchPeers:
    """The processes of a torch.distributed group. Raises ``cuda-device`` where torch is missing or
    too old, or where this process was not started as one of several."""

    def __init__(self) -> None:
        if not started_by_torchrun():
            fail(
                "cuda-device",
                "a program of several GPUs needs a process for each",
                help="torchrun --nproc-per-node N run.py ..; --backend cuda-cpu runs all on the "
                "CPU",
            )
        os.environ.setdefault(_POOL, "0")
        self._torch, self._memory = symmetric_memory_of_torch()
        index = own_gpu() or 0
        self._torch.cuda.set_device(index)
        self._device = self._torch.device("cuda", index)
        self._group = self._torch.distributed.group
        if not self._torch.distributed.is_initialized():
            self._torch.distributed.init_process_group("nccl", device_id=self._device)
        self._kept: list[Any] = []
        atexit.register(self.close)

    @property
    def rank(self) -> int:
        """Which of the processes this is."""
        return int(self._torch.distributed.get_rank())

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self._torch.distributed.get_world_size())

    def allocate(self, nbytes: int) -> Reached:
        """See :class:`meshc.backends.cuda.driver.rank_machine.Peers`."""
        tensor = self._memory.empty(nbytes, dtype=self._torch.uint8, device=self._device)
        handle = self._memory.rendezvous(tensor, self._group.WORLD)
        if getattr(handle, "offset", 0):
            fail(
                "cuda-device",
                "torch puts symmetric memory of several tensors into one allocation",
                help=f"set {_POOL}=0",
            )
        self._kept += [tensor, handle]
        tensor.zero_()
        self._torch.cuda.synchronize(self._device)
        self._torch.distributed.barrier()
        return Reached(tuple(map(int, handle.buffer_ptrs)), int(handle.multicast_ptr))

    def close(self) -> None:
        """Give all memory back and leave the group."""
        self._kept.clear()
        if self._torch.distributed.is_initialized():
            self._torch.distributed.destroy_process_group()


def symmetric_memory_of_torch() -> tuple[Any, Any]:
    """The modules ``torch`` and ``torch.distributed._symmetric_memory``, once they are known to
    have what is used here. Raises ``cuda-device``."""
    try:
        torch = importlib.import_module("torch")
        memory = importlib.import_module("torch.distributed._symmetric_memory")
    except ImportError as problem:
        fail(
            "cuda-device",
            f"programs of several GPUs run by torch.distributed: {problem}",
            help="install a recent torch for CUDA",
        )
    handle = getattr(memory, "_SymmetricMemory", None)
    used = [(memory, "empty"), (memory, "rendezvous"), (torch.distributed, "init_process_group")]
    used += [(handle, "buffer_ptrs"), (handle, "multicast_ptr")]
    missing = [name for place, name in used if not hasattr(place, name)]
    if missing:
        fail(
            "cuda-device",
            f"the symmetric memory of torch {torch.__version__} has no {', '.join(missing)}",
            help="install a recent torch for CUDA",
        )
    return torch, memory
