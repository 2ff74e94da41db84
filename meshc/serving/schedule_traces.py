"""Schedules of a node as a trace that Perfetto and chrome://tracing read."""

from __future__ import annotations

import json

from meshc.analysis.cuda.stream_turns import COMMUNICATION, COMPUTE
from meshc.cost.nodes.overlap import Schedule

_THREADS = {COMPUTE: 0, COMMUNICATION: 1}


def perfetto(schedule: Schedule, name: str) -> str:
    """``schedule`` as JSON of the trace event format: a row for each stream, microseconds."""
    events: list[dict[str, object]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": name}}
    ]
    events += [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": thread, "args": {"name": stream}}
        for stream, thread in _THREADS.items()
    ]
    events += [
        {
            "name": span.name,
            "ph": "X",
            "pid": 0,
            "tid": _THREADS[span.stream],
            "ts": round(span.start * 1e6, 3),
            "dur": round((span.stop - span.start) * 1e6, 3),
            "args": {
                "layer": span.layer,
                "half": span.half,
                "multiprocessors": span.multiprocessors,
            },
        }
        for span in schedule.spans
    ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n"
