"""When the tasks that join ends of transfers have all run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np

from meshc.analysis.csl.joined_transfers import Choice, Group
from meshc.backends.csl.timing.message_times import Clock
from meshc.ir.values import Value


def joined(group: Group, ends: Mapping[Value, Clock], left: Clock, join: int) -> Clock:
    """When the last signal comes to ``resume``: the tasks that join ends run one after the other,
    each once all that it joins have ended, and the core has ``left`` its own task. One takes
    ``join`` cycles."""
    now = np.maximum(left, reduce(np.minimum, ends.values()))
    joins = [one for one in group.joins if not one.inner]
    ready = [reduce(np.maximum, _below(group, one.task, ends, join)) for one in joins]
    for one in _in_order(ready):
        now = np.maximum(now, one) + join
    chosen = [_choice_end(choice, ends, join) for choice in group.choices]
    for end in (*ends.values(), *chosen):
        now = np.maximum(now, end, out=now)
    return now


def _in_order(clocks: list[Clock]) -> list[Clock]:
    """The same, sorted on each core."""
    if len(clocks) < 2:
        return clocks
    if len(clocks) == 2:
        return [np.minimum(*clocks), np.maximum(*clocks)]
    return [*np.sort(np.array(clocks), axis=0)]


def _choice_end(choice: Choice, ends: Mapping[Value, Clock], join: int) -> Clock:
    """When the signal of a choice comes: after the tasks that join what a core has started."""
    mine = np.array([ends[op.result] for op in choice.starts])
    joined: Clock = mine.max(0) + join * np.maximum(0, (mine > 0).sum(0) - 1)
    return joined


def _below(group: Group, task: str, ends: Mapping[Value, Clock], join: int) -> list[Clock]:
    """Ends of the transfers that ``task`` joins, also through other tasks."""
    signals = group.plain.signals
    found = [ends[t] for t, signal in signals.items() if signal.task == task]
    for choice in group.choices:
        if choice.signal is not None and choice.signal.task == task:
            found.append(_choice_end(choice, ends, join))
    for one in group.joins:
        if not one.inner and one.then is not None and one.then.task == task:
            found += _below(group, one.task, ends, join)
    return found
