"""Explains a hang: who waits, for what, and which wavelets are stuck on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from meshc.sim.descriptors import FabIn, Fifo
from meshc.sim.machine.channel import Waiter
from meshc.sim.machine.fabric import Fabric
from meshc.sim.machine.pe import Pe
from meshc.sim.machine.run_options import Options
from meshc.sim.route_configs import DIRECTION_NAMES
from meshc.support.diagnostics import Diagnostic, MeshcError

_MOST_NOTES = 16
_MOST_PES = 6

Finding = tuple[tuple[int, int], str]


class Explained(Protocol):
    """The state of a machine that an explanation looks at."""

    @property
    def options(self) -> Options: ...
    @property
    def cycles(self) -> int: ...
    @property
    def remarks(self) -> dict[tuple[str, str], str]: ...
    @property
    def pes(self) -> Mapping[tuple[int, int], Pe]: ...
    @property
    def fabric(self) -> Fabric: ...


def explain_endless(machine: Explained) -> MeshcError:
    """The error ``csl-endless`` for a machine that goes on while the host waits in vain."""
    limit = machine.options.max_cycles
    message = f"the host waited for {limit} cycles, and the program still runs"
    notes = [*_grouped([*_running(machine), *_findings(machine)]), *_lost(machine)]
    advice = "does a task activate itself without end? --max-cycles N waits longer"
    return MeshcError([Diagnostic("error", "csl-endless", message, None, _some(notes), advice)])


def explain_hang(machine: Explained, goal: str) -> MeshcError:
    """The error ``csl-hang`` for a machine in which no event is left."""
    notes = [*_grouped(_findings(machine)), *_lost(machine)] or _never_run(machine)
    message = f"the program hangs at cycle {machine.cycles}: {goal}"
    return MeshcError([Diagnostic("error", "csl-hang", message, None, _some(notes))])


def _grouped(findings: Iterable[Finding]) -> list[str]:
    """Each finding once, with the PEs that it holds of."""
    groups: dict[str, list[tuple[int, int]]] = {}
    for at, words in findings:
        groups.setdefault(words, []).append(at)
    return [f"{_pes(places)}: {words}" for words, places in groups.items()]


def _lost(machine: Explained) -> list[str]:
    """Where wavelets left the rectangle."""
    return [words for (code, _), words in machine.remarks.items() if code == "csl-edge"]


def _some(notes: list[str]) -> tuple[str, ...]:
    """The first notes, and how many more there are: no more than a person reads."""
    if len(notes) > _MOST_NOTES:
        notes = [*notes[:_MOST_NOTES], f"and {len(notes) - _MOST_NOTES} more"]
    return tuple(notes)


def _running(machine: Explained) -> Iterator[Finding]:
    """The task that each PE ran last."""
    for at, pe in machine.pes.items():
        if pe.current_name:
            yield at, f"the latest task is '{_source_name(pe.current_name)}'"


def _never_run(machine: Explained) -> list[str]:
    """What is left to say when nothing waits: the tasks that nobody started."""
    first = "no task is ready and no operation waits"
    found = _grouped(
        (at, words) for at, pe in machine.pes.items() for words in _tasks_never_run(pe)
    )
    if not found:
        return [f"{first}, though every task has run: the command stream is to be unblocked there"]
    return [first, *found]


def _tasks_never_run(pe: Pe) -> Iterator[str]:
    for number, name in sorted(pe.program.local_tasks.items()):
        if name not in pe.ran:
            yield f"task '{_source_name(name)}' (local id {number}) was never activated"
    for number, name in sorted(pe.program.control_tasks.items()):
        if name not in pe.ran:
            yield f"task '{_source_name(name)}' (control id {number}) received no control wavelet"
    for channel in pe.channels.values():
        if channel.task and channel.task not in pe.ran:
            yield f"task '{_source_name(channel.task)}' received nothing on color {channel.color}"


def _source_name(function: str) -> str:
    """The name in the program of a function of the lowered form."""
    return function.rsplit("_", 1)[0]


def _pes(places: list[tuple[int, int]]) -> str:
    shown = ", ".join(f"({x}, {y})" for x, y in places[:_MOST_PES])
    if len(places) > _MOST_PES:
        shown += f" and {len(places) - _MOST_PES} more"
    return f"PE{'s' if len(places) > 1 else ''} {shown}"


def _findings(machine: Explained) -> Iterator[Finding]:
    for (x, y, color), port, count in machine.fabric.stuck():
        yield (x, y), _stuck(machine, x, y, color, port, count)
    for at, pe in machine.pes.items():
        for words in _waiting(pe):
            yield at, words


def _waiting(pe: Pe) -> Iterator[str]:
    seen: set[int] = set()
    for channel in pe.channels.values():
        for operation in channel.waiting:
            if id(operation) not in seen:
                seen.add(id(operation))
                yield _operation(pe, operation)
        if channel.bursts and not channel.waiting:
            first = channel.bursts[0]
            kind = "control wavelet" if first.control else "wavelet"
            reason = "is blocked" if channel.blocked else "has no task"
            yield (
                f"{channel.pending()} wavelets of color {channel.color} lie unread, as it {reason};"
                f" the first is {kind} {int(first.data[first.pos]):#010x}"
            )
    for color, credit in pe.credits.items():
        for operation in credit.held:
            yield (
                f"a send in @{operation.name} at {operation.place} waits for room in the queues of "
                f"color {color}: {credit.outstanding} wavelets are under way, {credit.room} fit"
            )
    for state in pe.fifos:
        for operation in (*state.readers, *state.writers):
            if id(operation) not in seen:
                seen.add(id(operation))
                yield _operation(pe, operation)
    for number in pe.activated:
        if number in pe.blocked:
            name = _source_name(pe.local_tasks.get(number, "?"))
            yield f"task '{name}' (id {number}) is activated but blocked"


def _operation(pe: Pe, operation: Waiter) -> str:
    """One waiting operation in words."""
    got = f"{operation.done_count} of {operation.n if operation.n < 1 << 40 else 'endless'}"
    sources = []
    for source in operation.srcs:
        if isinstance(source, FabIn):
            sources.append(f"color {pe.channel_of(source).color}")
        elif isinstance(source, Fifo):
            sources.append("a FIFO")
    credits = [credit for credit in pe.credits.values() if operation in credit.stalled]
    if credits:
        under_way, room = credits[0].outstanding, credits[0].room
        sources = [f"room in the queues behind it ({under_way} wavelets under way, {room} fit)"]
    how = "a task waits" if operation.resume else "a microthread waits"
    wanted = " and ".join(sources) or "room in a FIFO"
    return f"{how} in @{operation.name} at {operation.place} for {wanted} ({got} elements)"


def _stuck(machine: Explained, x: int, y: int, color: int, port: int, count: int) -> str:
    router = machine.fabric.routers[x, y, color]
    if router.teardown:
        why = "the color is being torn down there"
    else:
        names = ", ".join(DIRECTION_NAMES[d] for d in router.rx()) or "nothing"
        why = f"the router accepts {names} (switch position {router.position})"
    source = DIRECTION_NAMES[port]
    return f"{count} wavelets of color {color} from {source} are stuck: {why}"
