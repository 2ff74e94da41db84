"""The memory of a GPU that a decode step takes: weights, caches and what else it keeps."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.backends.cuda.nodes import on_each
from meshc.backends.cuda.program import StepProgram
from meshc.devices import Device
from meshc.support.diagnostics import Diagnostic, MeshcError

_BY_POSITION = ("cosines", "sines")


class GpuIsTooSmall(MeshcError):
    """Weights and caches alone take more than the memory of the GPU, whatever the step is made
    of."""


@dataclass(frozen=True)
class Memory:
    """Bytes of packed weights, of caches and of all other buffers."""

    weights: int
    caches: int
    buffers: int

    @property
    def total(self) -> int:
        """Bytes of all three together."""
        return self.weights + self.caches + self.buffers


def memory_of(program: StepProgram) -> Memory:
    """What ``program`` keeps on a GPU. Machine code and the driver's own take more beside it."""
    program = on_each(program)
    held = program.buffers.values()
    return Memory(
        sum(weight.bytes for weight in program.weights.values()),
        sum(buffer.bytes for buffer in held if buffer.role == "state"),
        sum(buffer.bytes for buffer in held if buffer.role != "state"),
    )


def capacity_that_fits(program: StepProgram, room: int) -> int:
    """The most cached tokens, in whole pages, with which ``program`` takes ``room`` bytes or less;
    0 where there is no such number."""
    program, pages = on_each(program), program.capacity_pages
    rows = [buffer for name, buffer in program.buffers.items() if name.startswith(_BY_POSITION)]
    by_page = [
        buffer
        for name, buffer in program.buffers.items()
        if buffer.role == "state" or name.endswith("pages")
    ]
    fixed = memory_of(program).total - sum(buffer.bytes for buffer in [*rows, *by_page])
    of_page = sum(buffer.bytes // pages for buffer in by_page)
    of_page += sum(program.page * buffer.bytes // program.capacity for buffer in rows)
    return max(0, (room - fixed) // of_page) * program.page


def pages_that_fit(program: StepProgram, room: int) -> int:
    """The most tokens, in whole pages, that requests of a server may have together with which
    ``program`` takes ``room`` bytes or less; 0 where there is no such number."""
    found = memory_of(program)
    left = room - (found.total - found.caches)
    pages = left * program.pages // found.caches
    return max(0, pages - 1) * program.page  # one is nobody's


def check_memory(program: StepProgram, device: Device) -> None:
    """Raise ``does-not-fit`` where ``program`` takes more than the GPU ``device`` has, a
    ``GpuIsTooSmall`` where no other program of the model takes less."""
    room, found = device.global_memory_bytes, memory_of(program)
    if found.total <= room or not device.enforced:
        return
    dealt = program.pages != program.batch * program.capacity_pages
    fitting = (pages_that_fit if dealt else capacity_that_fits)(program, room)
    requests = "1 request" if program.batch == 1 else f"each of {program.batch} requests"
    problem = Diagnostic(
        "error",
        "does-not-fit",
        f"the model needs {found.total} bytes of the memory of {device.name}, which has {room}: "
        f"{found.total - room} bytes short",
        notes=(
            f"weights take {found.weights} bytes",
            f"{program.pages} pages of {program.page} tokens take {found.caches} bytes"
            if dealt
            else f"caches of {program.capacity} tokens of {requests} take {found.caches} bytes",
            f"all other buffers take {found.buffers} bytes",
        ),
        help=f"caches of {fitting} tokens fit ({'--cache-tokens' if dealt else '--seq'} {fitting})"
        if fitting
        else "no caches fit beside the weights: use fewer layers (--layers) or a smaller model",
    )
    raise (GpuIsTooSmall if found.weights + found.caches > room else MeshcError)([problem])
