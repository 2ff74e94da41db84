"""Weights and caches that cores of a mesh read, op by op, from the memory that they share.

Cores keep a few tiles of what comes next. So what an op reads is on its way while the op works, and
not long before: it takes its work or the time that its bytes take to come, whichever is longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

from meshc.cost.mesh_ops import MeshCosts
from meshc.devices import Device
from meshc.ir.core import Op, tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.ir.values import Value


@dataclass(frozen=True, eq=False)
class Streams:
    """What a run of a mesh-level ``module`` reads of the memory that cores share: weights and, with
    ``caches``, keys and values."""

    module: Module
    caches: bool

    def bytes_of(self, op: Op) -> float:
        """Bytes that come for one run of ``op``; of experts those that are expected to be asked,
        each as likely as any other."""
        if isinstance(op, (ops.Repeat, ops.Yield, ops.Return, ops.Append)):
            return 0.0
        read = [x for x in dict.fromkeys(op.operands) if isinstance(x, Value) and x in self._read]
        share = 1.0
        if isinstance(op, ops.ExpertGemv):
            rows = prod(tensor_type(op.operands[0]).shape(self.module.dims))
            rows //= prod(self.module.dims[dim] for dim in (op.dim, *op.contract))
            _, share = self._costs.asked_of(op, rows)
        return share * sum(self._bytes(value) for value in read)

    def bytes_per_second(self, device: Device) -> float:
        """What kernels reach of the memory's bandwidth, or all of it where nobody says that."""
        known = "read_bytes_per_second" in device.numbers
        return device.read_bytes_per_second if known else device.global_bytes_per_second

    @cached_property
    def _costs(self) -> MeshCosts:
        return MeshCosts.of_module(self.module, self.module.the_mesh())

    @cached_property
    def _read(self) -> set[Value]:
        """Values that lie in the memory that cores share, as loops and caches call them too."""
        roles = {"weight", "state"} if self.caches else {"weight"}
        found = {p.value for p in self.module.function.params if p.role in roles}
        found |= set(self._in_loops(found))
        for op in self.module.walk():
            if isinstance(op, ops.Append) and op.operands[0] in found:
                found |= set(op.results)
        return found

    def _in_loops(self, found: set[Value]) -> Iterator[Value]:
        for op in self.module.function.body.ops:
            if isinstance(op, ops.Repeat):
                pairs = zip(op.operands, op.regions[0].args, strict=False)
                yield from (arg for given, arg in pairs if given in found)

    def _bytes(self, value: Value) -> int:
        kind = tensor_type(value)
        return kind.dtype.bytes * prod(kind.shape(self.module.dims))
