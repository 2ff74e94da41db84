"""A device and the smallest mesh for emitted CSL that is to run somewhere, nobody said where.

Square meshes are tried by the plans of the compiler: one that the weights alone would fill, from
there on in growing steps, then by halves. A refusal for another reason than room ends the search,
since no larger mesh cures it. What a core must hold shrinks with the mesh, but for sizes that it
divides with less waste, so a mesh a little smaller than the one found may fit too: where there are
few of them all are tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isqrt, prod

from meshc.backends import csl
from meshc.backends.request import CompileRequest
from meshc.backends.target import NO_ROOM, target_of
from meshc.devices import Device, device, device_names
from meshc.driver.compiling import graph_module
from meshc.driver.core_fit import planned
from meshc.driver.executable import no_tokens
from meshc.driver.models import LoadedModel
from meshc.ir.core import tensor_type
from meshc.ir.ops import graph
from meshc.support.diagnostics import Diagnostic, MeshcError, fail

PHASE = "decode"
"""The phase that must fit: steps of decoding read a prompt too, where nothing else does."""

_MOST_SMALLER = 24
"""Meshes a little smaller than one that fits that are tried as well."""
_EVEN = 8
"""Sides of regions are multiples of this."""

OnTry = Callable[[str, str], None]
"""Called with a device and a mesh that is tried."""


@dataclass(frozen=True)
class Place:
    """Where a program fits: the name of a device and a mesh, ``words`` for which and why."""

    device: str
    mesh: str
    words: str


def smallest_place(
    loaded: LoadedModel, request: CompileRequest, on_try: OnTry | None = None
) -> Place:
    """The smallest square mesh whose cores hold the decode step of ``loaded``, or where the whole
    device is too little for one region, the largest one whose regions hold it; on the device of
    ``request``, or if it names none on the first one for CSL that has room.

    Raises ``no-tokens`` for a model without such a step, ``does-not-fit`` where no mesh holds it,
    and what compiling raises where all devices refuse it for another reason.
    """
    if PHASE not in loaded.phases():
        no_tokens(loaded.name, "compile it with -o DIR; DIR/run.py maps arrays to arrays")
    refused: list[tuple[str, Diagnostic]] = []
    for where in _devices(request):
        for regions in (1, 0):
            search = _Search(loaded, request.changed(device=where), regions, on_try)
            side = search.run()
            if side is not None:
                return search.place(side)
            refused += [(search.request.device_name, why) for why in search.last_refusal()]
            if not search.wants_room():
                break
    others = [why for _, why in refused if why.code not in NO_ROOM]
    if len(others) == len(refused):
        raise MeshcError([others[0]])
    names = " or ".join(dict.fromkeys(name for name, _ in refused))
    fail(
        "does-not-fit",
        f"no square mesh of {names} was found that holds '{loaded.name}'",
        notes=[f"{name}: {why.message}" for name, why in refused],
        help="use fewer layers (--layers), a shorter sequence (--seq) or f16, or say --mesh",
    )


def _devices(request: CompileRequest) -> list[str | Device]:
    """The devices to try: the one that is asked for, else those for CSL, the usual one first."""
    if request.device:
        return [request.device]
    usual = target_of(request).USUAL_DEVICE
    known = [name for name in device_names() if device(name).csl_arch is not None]
    return [usual, *(name for name in known if name != usual)]


@dataclass
class _Search:
    """Tries square meshes of one device, in as many ``regions`` as that or, with 0, as are needed.

    ``fits`` are the sides that hold the program, ``refused`` the others and why.
    """

    loaded: LoadedModel
    request: CompileRequest
    regions: int
    on_try: OnTry | None
    fits: set[int] = field(default_factory=set)
    refused: dict[int, Diagnostic] = field(default_factory=dict)

    @property
    def device(self) -> Device:
        """The device."""
        return self.request.the_device()

    def mesh(self, side: int) -> str:
        """What ``--mesh`` calls the mesh of ``side`` x ``side`` cores."""
        axes = self.device.axes
        plane = f"{axes.down}={side},{axes.across}={side}"
        return f"{axes.outer}={self.regions},{plane}" if self.regions else f"{side}x{side}"

    def run(self) -> int | None:
        """The side of the smallest mesh of one region, or of the largest one of several; None where
        none of those that were tried holds the program."""
        most = min(self.device.cores_x, self.device.cores_y)
        if not self.regions:
            sides = range(most // 2 // _EVEN * _EVEN, 0, -_EVEN)
            for side in sides[:_MOST_SMALLER]:
                if self.tried(side):
                    return side
                if not self.wants_room():
                    break
            return None
        side, step = min(most, self.guess()), 1
        while self.tried(side) and side > 1:
            side, step = max(1, side - step), step * 2
        step = 1
        while not self.fits and side < most and self.wants_room():
            side, step = min(most, side + step), step * 2
            self.tried(side)
        if not self.fits:
            return None
        low = max((s for s in self.refused if s < min(self.fits)), default=0)
        while min(self.fits) - low > 1:
            middle = (min(self.fits) + low) // 2
            low = low if self.tried(middle) else middle
        smaller = [s for s in range(self.guess(), low) if s not in self.refused]
        if len(smaller) <= _MOST_SMALLER:
            any(map(self.tried, smaller))
        return min(self.fits)

    def guess(self) -> int:
        """The side of the smallest mesh whose cores could hold the weights and nothing else."""
        graph_level = graph_module(self.loaded, PHASE, self.request)
        read = [op for op in graph_level.walk() if not isinstance(op, graph.Embed)]
        used = {value for op in read for value in op.tensors()}
        params = [p for p in graph_level.function.params if p.role == "weight" and p.value in used]
        weights = [tensor_type(param.value) for param in params]
        held = sum(kind.dtype.bytes * prod(kind.shape(graph_level.dims)) for kind in weights)
        room = self.device.data_bytes
        return isqrt(max(0, held - 1) // room) + 1 if room else 1

    def tried(self, side: int) -> bool:
        """Whether a mesh of ``side`` x ``side`` cores holds the program."""
        if side in self.fits or side in self.refused:
            return side in self.fits
        request = self.request.changed(mesh=self.mesh(side))
        if self.on_try is not None:
            self.on_try(self.device.name, f"{side}x{side}")
        try:
            csl.check(planned(self.loaded, PHASE, request).module)
        except MeshcError as error:
            self.refused[side] = error.diagnostics[0]
            return False
        self.fits.add(side)
        return True

    def wants_room(self) -> bool:
        """Whether room is all that the refused meshes lack."""
        return all(why.code in NO_ROOM for why in self.refused.values())

    def last_refusal(self) -> list[Diagnostic]:
        """Why the mesh that was tried last is none, if one was."""
        return [*self.refused.values()][-1:]

    def place(self, side: int) -> Place:
        """The mesh of ``side``, which fits, with what is wrong with the next smaller one."""
        name = self.device.name
        words = f"the decode step of '{self.loaded.name}' goes to {side}x{side} PEs of {name}"
        if not self.regions:
            words += " in several regions, since the whole device is too little for one"
        elif side - 1 in self.refused:
            words += f"; not to {side - 1}x{side - 1}: {self.refused[side - 1].message}"
        return Place(self.request.device_name, self.mesh(side), words)
