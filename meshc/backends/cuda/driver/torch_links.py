"""What nodes hand on by torch.distributed: processes that torchrun starts, one for each node."""

from __future__ import annotations

import atexit
import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.driver.torch_peers import started_by_torchrun
from meshc.support.diagnostics import fail

Array = NDArray[Any]


class TorchLinks:
    """The processes of a torch.distributed group, the nodes in the order of their ranks; see
    :class:`meshc.backends.cuda.nodes.Links`. Rows go through the memory of the host, by gloo.
    Raises ``cuda-device`` where torch is missing, or where this process was not started as one of
    several."""

    def __init__(self) -> None:
        if not started_by_torchrun():
            fail(
                "cuda-device",
                "a program of several nodes needs a process for each",
                help="torchrun --nnodes N run.py ..; --backend cuda-cpu runs all on the CPU",
            )
        try:
            self._torch = importlib.import_module("torch")
            self._group = importlib.import_module("torch.distributed")
        except ImportError as problem:
            fail(
                "cuda-device",
                f"nodes hand rows on by torch.distributed: {problem}",
                help="install torch",
            )
        if not self._group.is_initialized():
            self._group.init_process_group("gloo")
        self._on_their_way: list[tuple[Any, Any]] = []
        atexit.register(self.close)

    @property
    def node(self) -> int:
        """Which of the nodes this process is."""
        return int(self._group.get_rank())

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self._group.get_world_size())

    def hand_on(self, rows: Array) -> None:
        """Give the next node ``rows``; this one goes on meanwhile, up to when it has more."""
        self._wait()
        sent = self._bytes(rows.copy())
        self._on_their_way.append((self._group.isend(sent, self.node + 1), sent))

    def handed_on(self, like: Array) -> Array:
        """What the node in front gave next, of the shape and type of ``like``."""
        found = np.empty_like(like)
        self._group.recv(self._bytes(found), self.node - 1)
        return found

    def of_last(self, array: Array) -> Array:
        """What the last node has in the place of ``array``."""
        found = array.copy()
        self._group.broadcast(self._bytes(found), self.count - 1)
        return found

    def close(self) -> None:
        """Let the next node have everything, and leave the group."""
        self._wait()
        if self._group.is_initialized():
            self._group.destroy_process_group()

    def _wait(self) -> None:
        while self._on_their_way:
            self._on_their_way.pop()[0].wait()

    def _bytes(self, array: Array) -> Any:
        """The memory of a contiguous ``array`` as a tensor."""
        return self._torch.from_numpy(array.reshape(-1).view(np.uint8))
