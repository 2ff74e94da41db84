"""Which ends of channels must have queues of different numbers.

On a core two inputs never share a queue, since a queue listens to one color; nor do two outputs of
a device whose output queues are bound to a color too. A transfer that runs beside the program takes
the microthread with the number of its queue, so ends that are under way together have different
numbers, inputs and outputs alike (vendor's documentation of DSDs).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from meshc.analysis.csl.ends import End, ends_of
from meshc.analysis.csl.joined_transfers import Transfers, exclusive
from meshc.analysis.traffic import channels
from meshc.analysis.traffic.channels import Line, line_of, shares_core
from meshc.devices.csl import Targets
from meshc.ir.module import Module
from meshc.ir.ops.tile import Transfer, channel_in, channel_out


def rivals(module: Module, ends: Sequence[End], bound_outputs: bool) -> dict[End, set[End]]:
    """For each of ``ends`` those that must have other numbers; ``bound_outputs`` where an output
    queue sends on one color. Raises ``csl-overlap`` and ``csl-wait``."""
    mesh = module.the_mesh()
    lines = {channel.name: line_of(channel, mesh) for channel in module.channels}
    together = _together(Transfers(module))
    found: dict[End, set[End]] = {end: set() for end in ends}
    for one, other in combinations(ends, 2):
        places = _places(lines, one), _places(lines, other)
        if not shares_core(*places):
            continue
        bound = one[1] == other[1] and (one[1] == "recv" or bound_outputs)
        if bound or frozenset((one, other)) in together:
            found[one].add(other)
            found[other].add(one)
    return found


def queue_of(module: Module, end: End) -> int | None:
    """The queue that a module says for one end of a channel."""
    channel = module.channel(end[0])
    return channel.queue if end[1] == "recv" else channel.output_queue


def wrong_queue(module: Module, goals: Targets) -> str | None:
    """What is wrong with the queues that a module says for ``goals``, in words; None where each
    end has one that programs may take, and rivals have different ones."""
    legal = {"send": goals.output_queues, "recv": goals.input_queues}
    taken = {end: queue_of(module, end) for end in ends_of(module)}
    for end, queue in taken.items():
        if queue not in legal[end[1]]:
            given = "no queue" if queue is None else f"queue {queue}, which is not for programs"
            return f"{_said(end)} has {given}"
    for end, others in rivals(module, list(taken), bool(goals.bound)).items():
        for other in others:
            if taken[end] == taken[other]:
                return f"{_said(end)} and {_said(other)} meet in queue {taken[end]}"
    return None


def _said(end: End) -> str:
    name, verb = end
    return f"the {'input' if verb == 'recv' else 'output'} of @{name}"


def _places(lines: dict[str, Line], end: End) -> channels.Ends:
    line = lines[end[0]]
    return line.sending if end[1] == "send" else line.receiving


def _together(transfers: Transfers) -> set[frozenset[End]]:
    """Pairs of ends that different transfers use at the same time on some core."""
    found: set[frozenset[End]] = set()
    groups = list({id(g): g for g in transfers.of_token.values()}.values())
    for number, one in enumerate(groups):
        for other in groups[number:]:
            apart = other.begin > one.end or one.begin > other.end
            if apart or (one.at_once and other.at_once):
                continue
            for start in one.starts:
                for rival in other.starts:
                    if rival is not start and not exclusive(start, rival):
                        found |= {frozenset((a, b)) for a in _ends(start) for b in _ends(rival)}
    return found


def _ends(op: Transfer) -> list[End]:
    received, sent = channel_in(op), channel_out(op)
    found: list[End] = [(received, "recv")] if received is not None else []
    return found if sent is None else [*found, (sent, "send")]
