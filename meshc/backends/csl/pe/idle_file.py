"""The program of PEs of the layout's rectangle that no region has: it answers the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshc.backends.csl.spelling.names import scalar_name
from meshc.backends.csl.tree import syntax_tree as csl


def idle_file(launched: Mapping[str, Sequence[str]]) -> list[csl.Statement]:
    """A program whose functions end as soon as they are launched, since a launch goes to all PEs of
    a rectangle. ``launched`` has those of the program of the others, with the run-time scalars that
    each is given."""
    remark = (
        "What PEs run that belong to no region: nothing. A launch goes to all PEs of the rectangle."
    )
    sys = csl.imported("memcpy/memcpy", "memcpy_params")
    functions = [
        csl.function(
            name,
            [f"given_{scalar_name(scalar)}: i16" for scalar in scalars],
            [csl.do("sys.unblock_cmd_stream")],
        )
        for name, scalars in launched.items()
    ]
    return [
        csl.Remark(remark),
        csl.Remark("Written by meshc."),
        csl.Blank(),
        csl.Declare("param", "memcpy_params", None, "comptime_struct"),
        csl.Blank(),
        csl.const("sys", sys),
        *functions,
        csl.Scope(tuple(csl.do("@export_symbol", name) for name in launched), "comptime"),
    ]
