"""The memory half of a PE: views, strided reads and writes, reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshc.sim.descriptors import Mem
from meshc.sim.machine.compute import COMPUTE, DTYPES, element_of
from meshc.sim.machine.parts import WholePe
from meshc.sim.program import PeProgram
from meshc.sim.vector_ops import OpSpec

# 48 KiB, and the region below the arrays that scalars leave unused.
MEMORY_BYTES = 50 * 1024


class PeMemory:
    """What :class:`meshc.sim.machine.pe.Pe` does with its memory."""

    __slots__ = ()

    program: PeProgram
    mem: bytearray
    views: dict[Any, Any]

    @property
    def pe(self) -> WholePe:
        """The whole PE."""
        raise NotImplementedError

    def view(self, mem: Mem, dtype: Any, first: int, count: int) -> Any:
        """A NumPy view of elements of a one-dimensional operand."""
        key = (mem.addr, mem.stride, mem.esize, dtype, first, count)
        found = self.views.get(key)
        if found is None:
            step = mem.step(dtype.itemsize)
            addr = mem.addr + first * step
            low = min(addr, addr + (count - 1) * step)
            high = max(addr, addr + (count - 1) * step) + dtype.itemsize
            if low < 0 or high > len(self.mem):
                self.out_of_bounds(low, high)
            self.pe.machine.check_bounds(self.pe, low, high)
            found = np.ndarray((count,), dtype, self.mem, addr, (step,))
            if len(self.views) > 4096:
                self.views.clear()
            self.views[key] = found
        return found

    def out_of_bounds(self, low: int, high: int) -> None:
        """Memory is allocated for symbols in use; beyond them up to 48 KiB reads give zeros."""
        if low < 0 or high > MEMORY_BYTES:
            self.pe.machine.fault(
                self.pe,
                "",
                f"a memory access at bytes {low} to {high} is outside of the PE's memory",
            )
        words = f"a memory access at bytes {low} to {high} is outside of all variables"
        self.pe.machine.fault(self.pe, "", f"{words}, which end at {self.program.end}")

    def read(self, mem: Mem, dtype: Any, first: int, count: int) -> Any:
        """Elements of a memory operand."""
        if mem.scalar:
            return self.view(mem, dtype, 0, 1)[0]
        if mem.dims:
            return self._grid(mem, dtype).reshape(-1)[first : first + count]
        return self.view(mem, dtype, first, count)

    def _grid(self, mem: Mem, dtype: Any) -> Any:
        shape = tuple(e for e, _ in mem.dims)
        strides = tuple(s * dtype.itemsize // mem.esize for _, s in mem.dims)
        low = mem.addr + sum(min(0, (e - 1) * s) for e, s in zip(shape, strides, strict=True))
        high = mem.addr + dtype.itemsize
        high += sum(max(0, (e - 1) * s) for e, s in zip(shape, strides, strict=True))
        if low < 0 or high > len(self.mem):
            self.out_of_bounds(low, high)
        return np.ndarray(shape, dtype, self.mem, mem.addr, strides)

    def write(self, mem: Mem, dtype: Any, first: int, count: int, values: Any) -> None:
        """Store elements to a memory operand."""
        if mem.scalar:
            self.view(mem, dtype, 0, 1)[0] = values if np.ndim(values) == 0 else values[-1]
        elif mem.dims:
            grid = self._grid(mem, dtype)
            flat = np.broadcast_to(np.asarray(values, dtype), (count,))
            if first == 0 and count == grid.size:
                grid[...] = flat.reshape(grid.shape)
            else:
                shape = grid.shape
                for position in range(count):
                    grid[np.unravel_index(first + position, shape)] = flat[position]
        else:
            self.view(mem, dtype, first, count)[...] = values

    def reduce(
        self, spec: OpSpec, dst: Mem, sources: list[Any], arrays: list[Any], count: int
    ) -> None:
        """Write elements to one place in order; sources in the same place see each result."""
        dtype = DTYPES[spec.types[0]]
        if dst.dims and dst.dims[-1][1] != 0:
            self._reduce_rows(spec, dst, sources, arrays, count)
            return
        cell = self.view(dst._replace(stride=0, dims=()), dtype, 0, 1)
        same = [isinstance(s, Mem) and s.addr == dst.addr and (s.scalar or reduces_to_one(s))
                for s in sources]  # fmt: skip
        if dst.scalar and len(sources) > 1 and isinstance(sources[0], int | float):
            # (pointer, scalar, dsd): the scalar is the start of the running result
            cell[0], same[0] = element_of(str(spec.types[0]), sources[0]), True
        function = COMPUTE[spec.name]
        for position in range(count):
            args = [cell[0] if same[k] else (a if np.ndim(a) == 0 else a[position])
                    for k, a in enumerate(arrays)]  # fmt: skip
            result = function(*args)
            cell[0] = result if np.ndim(result) == 0 else result[0]

    def _reduce_rows(
        self, spec: OpSpec, dst: Mem, sources: list[Any], arrays: list[Any], count: int
    ) -> None:
        """A grid whose rows fall on each other: row by row, each seeing the results before."""
        n, step = dst.dims[-1]
        dtype = DTYPES[spec.types[0]]
        for row in range(count // n):
            offset, rest = 0, row
            for extent, stride in reversed(dst.dims[:-1]):
                offset += rest % extent * stride
                rest //= extent
            place = Mem(dst.addr + offset, n, step, dst.esize)
            now = self.view(place, dtype, 0, n)
            args = [now if isinstance(s, Mem) and (s.addr, s.dims) == (dst.addr, dst.dims)
                    else a if np.ndim(a) == 0 else a[row * n : (row + 1) * n]
                    for s, a in zip(sources, arrays, strict=True)]  # fmt: skip
            now[...] = COMPUTE[spec.name](*args)


def reduces_to_one(mem: Mem) -> bool:
    """Whether all elements of an operand are the same place."""
    return mem.stride == 0 and all(s == 0 or e == 1 for e, s in mem.dims)
