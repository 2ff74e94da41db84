"""The arrays of a program's buffers: one for each, or for those that share memory."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.analysis.csl.memory import stored_bytes
from meshc.analysis.csl.shared_buffers import Home, homes
from meshc.backends.csl.kernels.shared_code import array
from meshc.backends.csl.spelling.names import Names
from meshc.backends.csl.spelling.variables import Variable
from meshc.ir.module import Buffer, Module


@dataclass(frozen=True)
class Buffers:
    """Where buffers lie: ``shifts``, elements of their array before each that has some, and
    ``homes``, the arrays of those that share one."""

    arrays: list[tuple[Home, str]]
    names: Names

    @property
    def shifts(self) -> dict[str, int]:
        """Elements before a buffer in its array."""
        found = {b.value.name: home.offset(b) for home, _ in self.arrays for b in home.buffers}
        return {name: elements for name, elements in found.items() if elements}

    @property
    def homes(self) -> dict[str, str]:
        """The array of each buffer that shares one."""
        shared = [(home, name) for home, name in self.arrays if len(home.buffers) > 1]
        return {b.value.name: name for home, name in shared for b in home.buffers}

    def variables(self) -> list[Variable]:
        """The declarations of the arrays."""
        found = []
        for home, name in self.arrays:
            kind = home.buffers[0].type.dtype
            remark = ", ".join(self._said(home, buffer) for buffer in home.buffers)
            found.append(array("buffer", name, kind, home.bytes // stored_bytes(kind), remark))
        return found

    def _said(self, home: Home, buffer: Buffer) -> str:
        """A buffer in the remark of its array."""
        shape = " x ".join(map(str, buffer.type.shape))
        offset = home.offset(buffer)
        if len(home.buffers) > 1:
            name = self.names.of("buffer", buffer.value.name)
            return f"{name} {shape}" + (f" from {offset}" if offset else "")
        late = ", one element late to use other banks" if offset else ""
        return f"{shape}{f', {buffer.role}' if buffer.role else ''}{late}"


def buffers_of(module: Module, names: Names) -> Buffers:
    """The arrays of the buffers of a module whose memory is planned; none where it is not."""
    if any(buffer.address is None for buffer in module.buffers):
        return Buffers([], names)
    found = []
    for home in homes(module):
        first = home.buffers[0]
        alone = len(home.buffers) == 1
        name = names.of("buffer", first.value.name) if alone else _shared(first, names)
        found.append((home, name))
    return Buffers(found, names)


def _shared(first: Buffer, names: Names) -> str:
    return names.fresh(f"shared_{first.type.dtype}")
