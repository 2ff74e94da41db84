"""A phase: the buffers, channels and ports of one program, and running it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from .channels import Channel
from .cores import Cores, Fabric, Sweep
from .memory import Array, Buffer, Memory, View
from .percore import Coordinates, PerCore
from .ports import Element, Inlet, Outlet, Port, PortError, load_weights
from .recording import Recording
from .routes import Hop

Step = Callable[..., None]


_MOST_RECORDINGS = 1024  # of a function; its arguments may change from run to run


class Recorded:
    """A function of views, loop variables and scalars that does the same to the same arrays
    whenever its arguments are the same, and waits for all that it sends and receives.

    So the first call with some arguments goes through kernels and channels and is recorded; later
    ones repeat what was recorded, unless messages from before are underway.
    """

    def __init__(self, fabric: Fabric, body: Callable[..., None]) -> None:
        self._fabric, self._body = fabric, body
        self._recordings: dict[tuple[object, ...], Recording] = {}
        self.__name__, self.__doc__ = body.__name__, body.__doc__

    def __call__(self, *arguments: View | int) -> None:
        fabric = self._fabric
        outer, fabric.recording = fabric.recording, None
        try:
            done = self._done(arguments)
        finally:
            fabric.recording = outer
        if outer is not None:
            outer.include(done)

    def _done(self, arguments: tuple[View | int, ...]) -> Recording | None:
        """Do what the body does. Returns the recording of it, None if there is none that holds."""
        known = self._recordings.get((self._fabric.active, *arguments))
        if known is None:
            return self._recorded(arguments)
        if known.alone():
            for function, arrays in known.actions:
                function(*arrays)
            return known
        self._body(*arguments)
        return None

    def _recorded(self, arguments: tuple[View | int, ...]) -> Recording | None:
        fabric = self._fabric
        fabric.recording = recording = Recording()
        try:
            self._body(*arguments)
        finally:
            fabric.recording = None
        if not (recording.complete and recording.alone()):
            return None
        if len(self._recordings) >= _MOST_RECORDINGS:
            self._recordings.clear()
        self._recordings[fabric.active, *arguments] = recording
        return recording


class Phase:
    """One program on a fabric. Phases that share a fabric share buffers of the role ``state``.

    ``interleaved`` names the axes whose ranks form a ring of short hops.
    """

    def __init__(self, fabric: Fabric, name: str, interleaved: tuple[str, ...] = ()) -> None:
        self.fabric = fabric
        self.name = name
        self.core = Coordinates(fabric.mesh, interleaved)
        self.scalars: dict[str, tuple[int, int]] = {}
        self.several: dict[str, int] = {}
        self.multiples: dict[str, int] = {}
        self._step: Step | None = None
        self._loaded = False
        self._channels: list[Channel] = []
        self._constants: dict[str, Array] = {}
        self._inputs: list[Port] = []
        self._outputs: dict[str, Port] = {}
        self._roles: list[tuple[Buffer, str]] = []
        self._inlets: list[Inlet] = []
        self._outlets: dict[str, Outlet] = {}
        self._extents: dict[str, int] = {}
        self._constant_dims: dict[str, int] = {}

    # --- what a program declares

    def buffer(
        self,
        name: str,
        dtype: str,
        *shape: int,
        role: str = "",
        rewritten: bool = False,
        stacked: int = 0,
        by_columns: bool = False,
        requests: int | None = None,
    ) -> Buffer:
        """Memory on every core. ``rewritten`` says that the program writes to constants,
        ``stacked`` how many of the first dims count layers and the like, of which a statement
        reaches one, and ``by_columns`` in which order the host keeps the last two dims, for speed
        alone. ``requests`` is the dim of a state that counts requests."""
        buffer = Buffer(Memory(self.fabric, name, dtype, shape, stacked, by_columns))
        buffer.memory.constant = role == "weight" and not rewritten
        buffer.memory.requests = requests
        self._roles.append((buffer, role))
        return buffer

    def channel(self, name: str, *hops: Hop) -> Channel:
        """A channel along a route."""
        channel = Channel(self.fabric, name, hops)
        self._channels.append(channel)
        return channel

    def where(self, condition: PerCore | bool) -> Cores:
        """The cores on which a guard holds."""
        return self.fabric.where(condition)

    def sweep(self, rank: PerCore | int, count: int) -> Sweep:
        """The cores of rank 0, 1, .. ``count - 1``, to be made active one after the other."""
        return Sweep(self.fabric, rank, count)

    def recorded(self, body: Callable[..., None]) -> Recorded:
        """A function of the program, to be repeated from a recording: see :class:`Recorded`."""
        return Recorded(self.fabric, body)

    def constant(self, name: str, values: Sequence[float]) -> None:
        """A vector that is part of the program; the in-port of that name loads it."""
        self._constants[name] = np.array(values, np.float32)

    def port(
        self,
        direction: str,
        tensor: str,
        dims: Mapping[str, int],
        buffer: Buffer,
        lanes: Callable[..., Element],
        pad: float = 0.0,
    ) -> None:
        """How a logical tensor lies in a buffer: see :class:`Port`."""
        port = Port(tensor, dict(dims), buffer, lanes, pad)
        if direction == "out":
            self._outputs[tensor] = port
        else:
            self._inputs.append(port)

    def runs(
        self,
        step: Step,
        scalars: Mapping[str, tuple[int, int]] | None = None,
        multiples: Mapping[str, int] | None = None,
        several: Mapping[str, int] | None = None,
    ) -> Phase:
        """Set the statements: a function of the scalars (each with its least and largest value).

        Those in ``multiples`` are multiples of a number. Of those in ``several`` a run is given
        that many, one for each request.
        """
        self._step, self.scalars, self.several = step, dict(scalars or {}), dict(several or {})
        self.multiples = dict(multiples or {})
        return self

    # --- what a host does

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """Tensors to be given to every run, with their extents."""
        return {port.tensor: port.shape for inlet in self._inlets for port in inlet.ports}

    @property
    def outputs(self) -> tuple[str, ...]:
        """Tensors that a run provides."""
        return tuple(self._outputs)

    def load(self, weights: Mapping[str, Array]) -> Phase:
        """Take memory on every core and pack the constants into it.

        Raises ``PortError`` for constants that are missing or ill-shaped and ``ValueError`` where
        the phase is loaded already: what has run keeps views of the memory it ran in.
        """
        if self._loaded:
            raise ValueError(f"the phase {self.name} is loaded already; build it once more")
        self._inlets = []
        for buffer, role in self._roles:
            ports = [port for port in self._inputs if port.buffer is buffer]
            if role == "weight" and ports:
                load_weights(self.fabric, buffer, ports, weights, self._constants)
                for port in ports:
                    self._constant_dims |= port.dims
            elif role == "state":
                self._keep(buffer)
            else:
                buffer.memory.allocate()
                if ports:
                    self._inlets.append(Inlet(self.fabric, ports))
        self._loaded = True
        return self

    def run(self, inputs: Mapping[str, Array], **scalars: int | Sequence[int]) -> None:
        """Load the inputs and run every statement on every core.

        Raises ``ValueError`` for scalars out of range, ``PortError`` for ill-shaped inputs and
        ``ChannelError`` when messages and receives do not match.
        """
        assert self._step is not None
        for name, (least, largest) in self.scalars.items():
            if name not in scalars:
                raise ValueError(f"the scalar {name} is not given")
            self._check(name, scalars[name], least, largest)
        for buffer, role in self._roles:
            if role not in ("weight", "state"):
                buffer.memory.poison()
        self._extents = {}
        for inlet in self._inlets:
            for dim, extent in inlet.load(inputs):
                self._take(dim, extent)
        self._execute(scalars)

    def output(self, name: str) -> Array:
        """The tensor ``name`` as the last run left it, float32.

        A dim of which the inputs had less is as long as theirs.
        """
        if name not in self._outlets:
            self._outlets[name] = Outlet(self.fabric, self._outputs[name])
        return self._outlets[name].gather(self._extents)

    def reset(self, request: int | None = None) -> None:
        """Forget the state (which starts as zeros), or that of one ``request``.

        Raises ``ValueError`` for one request of a state that is kept for all together.
        """
        for memory in (buffer.memory for buffer, role in self._roles if role == "state"):
            if request is None:
                memory.array.fill(0)
            elif memory.requests is None:
                raise ValueError(f"the state '{memory.name}' is not kept by request")
            else:
                memory.array[(slice(None),) * (1 + memory.requests) + (request,)] = 0

    def _check(self, name: str, given: int | Sequence[int], least: int, largest: int) -> None:
        """One value of a scalar, or as many as there are requests, all within its range."""
        values, wanted = np.ravel(given).tolist(), self.several.get(name)
        if (np.ndim(given) == 0) != (wanted is None) or len(values) != (wanted or 1):
            raise ValueError(
                f"{len(values)} values are given of the scalar {name}, not {wanted or 1}"
            )
        for value in values:
            if not least <= value <= largest:
                raise ValueError(f"{name} = {value} is not in {least} .. {largest}")
            if value % self.multiples.get(name, 1):
                raise ValueError(f"{name} = {value} is no multiple of {self.multiples[name]}")

    def _execute(self, scalars: Mapping[str, int | Sequence[int]]) -> None:
        assert self._step is not None
        self.fabric.active = self.fabric.everyone
        for channel in self._channels:
            channel.clear()
        # padding lanes may overflow or divide by zero; nothing reads them
        with np.errstate(all="ignore"):
            self._step(*(scalars[name] for name in self.scalars))
        for channel in self._channels:
            channel.close()

    def _take(self, dim: str, extent: int) -> None:
        """Inputs may have fewer rows than a program can take, all of them as many; dims of
        constants are whole."""
        whole = self._constant_dims.get(dim, self._extents.get(dim, extent))
        if extent != whole:
            raise PortError(f"the dim {dim} has {extent} elements in an input, elsewhere {whole}")
        self._extents[dim] = extent

    def _keep(self, buffer: Buffer) -> None:
        """State is the same memory in every phase that names it."""
        memory = buffer.memory
        known = self.fabric.kept.get(memory.name)
        if known is None:
            self.fabric.kept[memory.name] = memory.allocate()
        elif known.shape[1:] == memory.shape:
            memory.array = known
        else:
            raise ValueError(f"phases disagree about the state '{memory.name}'")
