"""Queues for the ends of channels, so that none is asked for two things at once.

On a core two inputs never share a queue, since a queue listens to one color; nor do two outputs of
a device whose output queues are bound to a color too. A transfer that runs beside the program takes
the microthread with the number of its queue, so ends that are under way together have different
numbers, inputs and outputs alike (vendor's documentation of DSDs).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from meshc.analysis.channels import Ends, Line, line_of, shares_core
from meshc.analysis.queues import different_numbers
from meshc.backends.csl.transfers import Transfers, exclusive
from meshc.devices.csl import Targets
from meshc.ir.module import Module
from meshc.ir.ops.tile import Transfer, channel_in, channel_out
from meshc.support.diagnostics import fail
from meshc.support.plmr import violates

End = tuple[str, str]  # name of the channel, "send" or "recv"


def assign_queues(module: Module, ends: Iterable[End], targets: Targets) -> dict[End, int]:
    """A queue for each of ``ends`` that is legal on all of ``targets``. Raises ``csl-queues``."""
    every = list(ends)
    numbers = {"send": targets.output_queues, "recv": targets.input_queues}
    rivals = _rivals(module, every, bool(targets.bound))
    order = sorted(every, key=lambda end: (-len(rivals[end]), every.index(end)))
    found = different_numbers(order, rivals.__getitem__, lambda end, _: numbers[end[1]])
    if found is None:
        names = ", ".join(f"@{name}" for name in dict.fromkeys(name for name, _ in every))
        fail(
            "csl-queues",
            f"a core of {targets} has too few queues for the channels of the program",
            notes=(
                f"channels: {names}",
                "the first queues serve the host; a send and a receive that are under way together "
                "on queues of one number share a microthread",
                violates("R"),
            ),
            help="choose algorithms with fewer channels",
        )
    return found


def _rivals(module: Module, ends: list[End], bound_outputs: bool) -> dict[End, set[End]]:
    """Ends that must have different numbers."""
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


def _places(lines: dict[str, Line], end: End) -> Ends:
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
    named = (("recv", channel_in(op)), ("send", channel_out(op)))
    return [(name, verb) for verb, name in named if name is not None]
