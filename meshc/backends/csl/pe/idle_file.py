"""The program of PEs of the layout's rectangle that no region has: it answers the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshc.backends.csl.spelling.names import scalar_name
from meshc.backends.csl.tree import syntax_tree as csl


def idle_file(launched: Mapping[str, Sequence[str]]) -> list[csl.Statement]:
    """A program whose functions end as soon as they are launched, since a launch goes to all PEs of
    a rectangle. ``launched`` has those of the program of the others, with the run-time scalars that
    each is given."""
    found: list[csl.Statement] = [
        csl.Remark(
            "What PEs run that belong to no region: nothing. A launch goes to all PEs of the "
            "rectangle."
        ),
        csl.Remark("Written by meshc."),
        csl.Blank(),
        csl.Declare("param", "memcpy_params", None, "comptime_struct"),
        csl.Blank(),
        csl.const(
            "sys", csl.call("@import_module", csl.Literal('"<memcpy/memcpy>"'), "memcpy_params")
        ),
        csl.Blank(),
    ]
    for name, scalars in launched.items():
        given = [f"given_{scalar_name(scalar)}: i16" for scalar in scalars]
        found += [csl.function(name, given, [csl.do("sys.unblock_cmd_stream")]), csl.Blank()]
    exports = tuple(csl.do("@export_symbol", name) for name in launched)
    return [*found, csl.Scope(exports, "comptime")]
