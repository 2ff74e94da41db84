"""Proof that an operation ends, by a run of its threads on all nodes with the waits of a device.

The maker's simulator lets a node send to another that has not said yet where the block goes; a
device does not, so an order of sends and receives may be right there and never end here
(tt-lang issue 614). Conditions, loops and pipes of an operation are known when it is made, so one
run tells all. It also sees what the maker's compiler refuses of buffers and nets.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from meshc.backends.ttlang.operation import (
    Body,
    Compute,
    Net,
    Node,
    Operation,
    Pop,
    Push,
    Read,
    Receive,
    Repeat,
    Reserve,
    Send,
    Wait,
    When,
    Write,
)
from meshc.support.diagnostics import fail

MOST_BUFFERS = 32
"""Dataflow buffers of a node."""
_SHOWN = 4
Ready = Callable[[], bool]
Waiting = Iterator[tuple[str, Ready]]
"""What a thread waits for, in words, and whether that is there."""


@dataclass
class _Held:
    """Blocks of a buffer of one node."""

    count: int
    filled: int = 0
    reserved: bool = False
    taken: bool = False


@dataclass
class _Machine:
    """What all threads of an operation see."""

    operation: Operation
    held: dict[tuple[Node, str], _Held] = field(default_factory=dict)
    posted: Counter[tuple[str, Node, Node]] = field(default_factory=Counter)
    arrived: Counter[tuple[str, Node, Node]] = field(default_factory=Counter)
    filled: dict[tuple[Node, str], dict[str, None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nets = {net.name: net for net in self.operation.nets}
        for node in self.operation.nodes:
            for buffer in self.operation.buffers:
                self.held[node, buffer.name] = _Held(buffer.count)

    def fills(self, net: str, node: Node, buffer: str) -> None:
        """A net fills blocks of one buffer of a node, and each of those that fill a buffer a block
        of its own."""
        nets = self.filled.setdefault((node, buffer), {})
        nets[net] = None
        both = [name for (at, name), known in self.filled.items() if at == node and net in known]
        if len(both) > 1:
            _reject(net, f"fills two buffers of node {node}, {' and '.join(both)}", [])
        count = self.held[node, buffer].count
        if len(nets) > count:
            _reject(buffer, f"has {count} blocks on node {node}, and {len(nets)} nets fill it", [])


def check_waits(operation: Operation, name: str) -> None:
    """Raise ``ttlang-waits`` where a thread of ``operation``, which is called ``name``, waits for
    ever, leaves blocks or messages behind, or uses a buffer or a net as the machine cannot."""
    machine = _Machine(operation)
    threads = {
        f"{thread} of node {node}": _Thread(machine, node).run(body)
        for node in operation.nodes
        for thread, body in (
            ("bring", operation.movers[0]),
            ("store", operation.movers[1]),
            ("compute", operation.compute),
        )
    }
    _check_buffers(operation, name)
    _run(threads, name)
    left = [f"{buffer} of node {node}" for (node, buffer), held in machine.held.items()
            if held.filled or held.reserved or held.taken]  # fmt: skip
    left += [f"a message from {source} to {target} by {net}"
             for (net, source, target), count in (machine.posted + machine.arrived).items()
             if count]  # fmt: skip
    if left:
        _reject(name, "leaves behind what nobody takes", left)


def _check_buffers(operation: Operation, name: str) -> None:
    if len(operation.buffers) > MOST_BUFFERS:
        words = f"has {len(operation.buffers)} dataflow buffers, of which a node has {MOST_BUFFERS}"
        _reject(name, words, [])


def _run(threads: dict[str, Waiting], name: str) -> None:
    """Let all threads go on until each has ended."""
    waiting: deque[tuple[str, str, Ready]] = deque((thread, "", bool) for thread in threads)
    idle = 0
    while waiting:
        thread, words, ready = waiting.popleft()
        if words and not ready():
            waiting.append((thread, words, ready))
            idle += 1
            if idle > len(waiting):
                stuck = [f"{thread} waits for {words}" for thread, words, _ in waiting]
                _reject(name, "never ends", stuck)
            continue
        idle = 0
        following = next(threads[thread], None)
        if following is not None:
            waiting.append((thread, *following))


@dataclass
class _Thread:
    """One thread of a node: a generator of what it waits for."""

    machine: _Machine
    node: Node
    blocks: dict[str, str] = field(default_factory=dict)

    def run(self, body: Body) -> Waiting:
        for statement in body:
            if isinstance(statement, Reserve):
                yield from self._reserved(statement.block, statement.buffer)
            elif isinstance(statement, Wait):
                yield from self._awaited(statement.block, statement.buffer)
            elif isinstance(statement, Push):
                self._pushed(statement.block)
            elif isinstance(statement, Pop):
                self._popped(statement.block)
            elif isinstance(statement, Send):
                yield from self._sent(self.machine.nets[statement.net])
            elif isinstance(statement, Receive):
                yield from self._received(statement)
            elif isinstance(statement, When):
                chosen = self.node in statement.nodes.members
                yield from self.run(statement.then if chosen else statement.other)
            elif isinstance(statement, Repeat):
                for _ in range(statement.count):
                    yield from self.run(statement.body)
            elif isinstance(statement, Compute):
                for block, buffer in statement.takes:
                    yield from self._awaited(block, buffer)
                for block, buffer in statement.gives:
                    yield from self._reserved(block, buffer)
                for block, _ in statement.takes:
                    self._popped(block)
                for block, _ in statement.gives:
                    self._pushed(block)
            else:
                assert isinstance(statement, (Read, Write))

    def _held(self, block: str) -> _Held:
        return self.machine.held[self.node, self.blocks[block]]

    def _reserved(self, block: str, buffer: str) -> Waiting:
        held = self.machine.held[self.node, buffer]
        room = held.count
        yield (
            f"a free block of {buffer}",
            lambda: not held.reserved and held.filled + held.taken < room,
        )
        held.reserved, self.blocks[block] = True, buffer

    def _awaited(self, block: str, buffer: str) -> Waiting:
        held = self.machine.held[self.node, buffer]
        yield f"a filled block of {buffer}", lambda: held.filled > 0 and not held.taken
        held.filled, held.taken, self.blocks[block] = held.filled - 1, True, buffer

    def _pushed(self, block: str) -> None:
        held = self._held(block)
        held.filled, held.reserved = held.filled + 1, False

    def _popped(self, block: str) -> None:
        self._held(block).taken = False

    def _sent(self, net: Net) -> Waiting:
        posted, arrived = self.machine.posted, self.machine.arrived
        for pipe in net.pipes:
            if pipe.source != self.node:
                continue
            keys = [(net.name, self.node, target) for target in pipe.receivers]
            nodes = ", ".join(map(str, pipe.receivers))
            words = f"{nodes} to post where {net.name} goes"
            yield words, lambda keys=keys: all(posted[key] for key in keys)  # type: ignore[misc]
            for key in keys:
                posted[key] -= 1
                arrived[key] += 1

    def _received(self, statement: Receive) -> Waiting:
        posted, arrived = self.machine.posted, self.machine.arrived
        buffer = self.blocks[statement.block]
        self.machine.fills(statement.net, self.node, buffer)
        for pipe in self.machine.nets[statement.net].pipes:
            if self.node not in pipe.receivers:
                continue
            key = (statement.net, pipe.source, self.node)
            posted[key] += 1
            yield f"what {pipe.source} sends by {statement.net}", lambda key=key: arrived[key] > 0  # type: ignore[misc]
            arrived[key] -= 1


def _reject(name: str, words: str, notes: list[str]) -> None:
    shown = notes[:_SHOWN]
    if len(notes) > _SHOWN:
        shown.append(f"and {len(notes) - _SHOWN} more")
    fail("ttlang-waits", f"'{name}' {words}", notes=shown)
