"""Ports: spreading a logical tensor over the cores' buffers, and collecting one from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.interp.named import Array
from meshc.interp.places import coordinate_functions, core_coordinates, core_text
from meshc.interp.rounding import rounded
from meshc.ir.affine import IntLike
from meshc.ir.mesh import Mesh
from meshc.ir.module import Port
from meshc.ir.types import BufferType
from meshc.support.diagnostics import fail

Mask = NDArray[np.bool_]

_HALF_ULPS = 64


class PortMap:
    """One port on one mesh: which element of the tensor each lane of each core holds."""

    def __init__(self, port: Port, mesh: Mesh) -> None:
        assert isinstance(port.buffer.type, BufferType)
        self.port = port
        self.buffer = port.buffer.type
        self._mesh = mesh
        self._coordinates = core_coordinates(mesh)
        self._functions = coordinate_functions(mesh)
        if len(port.lanes) != len(self.buffer.shape) or len(port.element) != len(port.tensor.dims):
            fail(
                "interp-port",
                f"port @{port.name} names {len(port.lanes)} lanes and {len(port.element)} indices "
                f"for {self.buffer} and {port.tensor}",
            )

    @property
    def names(self) -> set[str]:
        """What the port's expressions speak of: coordinates, lanes, lets, run-time scalars."""
        exprs = [*self.port.element, *(expr for _, expr in self.port.lets)]
        found = {name for expr in exprs for name in expr.free_vars}
        return found | {*(self.port.where.free_vars if self.port.where else ())}

    def lanes(
        self, core: int, extents: tuple[int, ...], scalars: Mapping[str, int]
    ) -> tuple[Mask, Mask, tuple[Array, ...]]:
        """Which lanes of a core are this port's, which hold an element, and which element."""
        env: dict[str, IntLike] = {n: int(v[core]) for n, v in self._coordinates.items()}
        shape = self.buffer.shape
        grids = np.ogrid[tuple(slice(n) for n in shape)]
        env |= {**scalars, **dict(zip(self.port.lanes, grids, strict=True))}
        for name, expr in self.port.lets:
            env[name] = expr.evaluate(env, self._functions)
        where = self.port.where
        own: Any = True if where is None else where.evaluate(env, self._functions)
        index = [np.asarray(e.evaluate(env, self._functions)) for e in self.port.element]
        held = own
        for at, extent in zip(index, extents, strict=True):
            held = held & (at >= 0) & (at < extent)
        mask = np.broadcast_to(held, shape)
        elements = tuple(np.broadcast_to(at, shape)[mask] for at in index)
        return np.broadcast_to(own, shape), mask, elements

    def spread(self, tensor: Array, memory: Array, scalars: Mapping[str, int]) -> None:
        """Fill this port's lanes on every core, ``memory[core]``, from the logical ``tensor``.

        Lanes that hold no element get the port's padding; those of other ports are left alone.
        """
        for core in range(self._mesh.cores):
            own, mask, elements = self.lanes(core, tensor.shape, scalars)
            values = np.where(own, self.port.pad, memory[core])
            values[mask] = tensor[elements]
            memory[core] = rounded(values, self.buffer.dtype)

    def collect(self, memory: Array, extents: tuple[int, ...], scalars: Mapping[str, int]) -> Array:
        """The logical tensor, float32 (int32 for ``i32``).

        Raises ``interp-port`` for an element that no core provides or on which cores disagree, and
        ``interp-uninitialised`` for one that is not a number.
        """
        result = np.zeros(extents, memory.dtype)
        given = np.zeros(extents, bool)
        for core, index, values in self._parts(memory, extents, scalars):
            again = given[index]
            if again.any() and not self._agree(result[index][again], values[again]):
                self._wrong(f"{core_text(self._mesh, core)} disagrees with another core", "port")
            result[index] = values
            given[index] = True
        self._check(result, given)
        return result

    def _parts(
        self, memory: Array, extents: tuple[int, ...], scalars: Mapping[str, int]
    ) -> Iterator[tuple[int, tuple[Array, ...], Array]]:
        for core in range(self._mesh.cores):
            _, mask, elements = self.lanes(core, extents, scalars)
            yield core, elements, memory[core][mask]

    def _agree(self, before: Array, now: Array) -> bool:
        ulp = 2.0 ** -(8 * self.buffer.dtype.bytes - (8 if self.buffer.dtype.bytes == 4 else 9))
        scale = np.abs(now[np.isfinite(now)]).max(initial=0)
        tolerance = _HALF_ULPS * ulp
        return np.allclose(before, now, tolerance, tolerance * scale, equal_nan=True)

    def _check(self, result: Array, given: Mask) -> None:
        if not given.all():
            missing = tuple(int(i) for i in np.argwhere(~given)[0])
            self._wrong(f"no core provides element {list(missing)} of {self.port.tensor}", "port")
        poisoned = np.argwhere(np.isnan(result))
        if len(poisoned):
            element = [int(i) for i in poisoned[0]]
            self._wrong(f"element {element} is computed from unset memory", "uninitialised")

    def _wrong(self, message: str, kind: str) -> None:
        fail(f"interp-{kind}", f"port @{self.port.name}: {message}")
