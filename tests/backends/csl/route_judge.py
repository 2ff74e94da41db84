"""What emitted CSL takes of a device, counted from the text and from its layout alone.

The simulator runs the layout stage, so routes are those that the emitted code configures. Nothing
here uses the compiler's analyses.
"""

import json
import re
import sys
from dataclasses import dataclass

from meshc.sim.csl_compiler import compile_program
from meshc.sim.route_configs import OPPOSITE, RAMP, STEP

HOST_COLORS, HOST_QUEUES = {21, 22, 23}, {0, 1}
_ARRAY = re.compile(r"^var (\w+): \[(\d+)\](f16|f32) align\(16\)", re.MULTILINE)
_QUEUE = re.compile(r"@get_(input|output)_queue\((\d+)\)")
_TASK = re.compile(r"@get_local_task_id\((\d+)\)")


@dataclass(frozen=True)
class Counted:
    """``colors`` and ``input_queues`` of the busiest core, every color in use; ``reach``, hops of
    the longest message; ``chains``, (hops, stages) of the longest way of each channel, which goes
    through cores that receive and send on it; ``bytes`` of aligned arrays."""

    colors: int
    every_color: frozenset[int]
    input_queues: int
    reach: int
    chains: tuple[tuple[int, int], ...]
    bytes: int
    data_end: int
    queues: dict[str, frozenset[int]]
    tasks: tuple[int, ...]


def count(files, folder, arch):
    """Count the files of one emitted program; ``folder`` takes them."""
    for name, text in files.items():
        (folder / name).write_text(text)
    report = json.loads(files["report.json"])
    width, height = report["mesh"]
    depth = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    try:
        program = compile_program(
            str(folder / "layout.csl"), arch, {}, {}, (width + 7, height + 2), (4, 1), []
        )
    finally:
        sys.setrecursionlimit(depth)
    routes = {at: way for at, way in program.routes.items() if at[2] not in HOST_COLORS}
    at_core = {}
    for x, y, color in routes:
        at_core.setdefault((x, y), set()).add(color)
    messages = [m for start in routes for m in _message(routes, start)]
    switched = {color for (_, _, color), way in routes.items() if way.switches}
    (code,) = (t for n, t in files.items() if n.endswith(".csl") and n != "layout.csl")
    return Counted(
        max(map(len, at_core.values()), default=0),
        frozenset(color for _, _, color in routes),
        max(len(set(c.in_queues) - HOST_QUEUES) for c in program.classes),
        max((hops for *_, hops in messages), default=0),
        tuple(_longest(messages, colors, switched) for colors in _channels(report)),
        sum(-(-int(n) * int(kind[1:]) // 8 // 16) * 16 for _, n, kind in _ARRAY.findall(code)),
        max(c.end for c in program.classes),
        {
            side: frozenset(int(n) for s, n in _QUEUE.findall(code) if s == side)
            for side in ("input", "output")
        },
        tuple(int(n) for n in _TASK.findall(code)),
    )


def _message(routes, start):
    """(color, sender, receiver, hops) of the message that enters at a router, to each receiver."""
    x, y, color = start
    work = [((x, y), out, 0) for out in _onward(routes[start], RAMP)]
    while work:
        (cx, cy), out, hops = work.pop()
        if out == RAMP:
            yield color, (x, y), (cx, cy), hops
            continue
        dx, dy = STEP[out]
        cx, cy = cx + dx, cy + dy
        way = routes[cx, cy, color]
        ahead = _onward(way, OPPOSITE[out])
        assert ahead, f"a wavelet of color {color} is lost at {cx}, {cy}"
        work += [((cx, cy), onward, hops + 1) for onward in ahead]


def _onward(way, source):
    """The outputs at the first switch position that listens to ``source``; none if none does."""
    rx, tx = way.rx, way.tx
    for position in (None, *way.switches):
        new_rx, new_tx = position or (None, None)
        rx = rx if new_rx is None else (new_rx,)
        tx = tx if new_tx is None else (new_tx,)
        if source in rx:
            return tx
    return ()


def _channels(report):
    """The colors of each channel."""
    return [
        {c for end in ("send", "recv") if end in entry for c in entry[end]["colors"]}
        for entry in report["channels"].values()
    ]


def _longest(messages, colors, switched):
    """The longest way of one datum in one round: from core to core as long as these send on, or,
    where messages go round in a ring or cores take turns, one message."""
    mine = [m for m in messages if m[0] in colors]
    after = {}
    for _, sender, receiver, hops in mine:
        after.setdefault(sender, []).append((receiver, hops))
    if _has_cycle(after) or colors & switched:
        return max(hops for *_, hops in mine), 1
    found = {}

    def way(core):
        if core not in found:
            ways = [(h + way(to)[0], 1 + way(to)[1]) for to, h in after.get(core, ())]
            found[core] = max(ways, default=(0, 0))
        return found[core]

    return max(way(core) for core in after)


def _has_cycle(after):
    ahead = {core: {to for to, _ in ways} for core, ways in after.items()}
    while True:
        ends = {core for core, ways in ahead.items() if not ways & set(ahead)}
        if not ends:
            return bool(ahead)
        ahead = {core: ways for core, ways in ahead.items() if core not in ends}
