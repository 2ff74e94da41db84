"""The program of PEs of the layout's rectangle that no region has: it answers the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshc.backends.csl.spelling.names import scalar_name
from meshc.backends.csl.tree.syntax_tree import (
    Blank,
    Declare,
    Literal,
    Remark,
    Scope,
    Statement,
    call,
    const,
    do,
    function,
)


def idle_file(launched: Mapping[str, Sequence[str]]) -> list[Statement]:
    """A program whose functions end as soon as they are launched, since a launch goes to all PEs of
    a rectangle. ``launched`` has those of the program of the others, with the run-time scalars that
    each is given."""
    found: list[Statement] = [
        Remark(
            "What PEs run that belong to no region: nothing. A launch goes to all PEs of the "
            "rectangle."
        ),
        Remark("Written by meshc."),
        Blank(),
        Declare("param", "memcpy_params", None, "comptime_struct"),
        Blank(),
        const("sys", call("@import_module", Literal('"<memcpy/memcpy>"'), "memcpy_params")),
        Blank(),
    ]
    for name, scalars in launched.items():
        given = [f"given_{scalar_name(scalar)}: i16" for scalar in scalars]
        found += [function(name, given, [do("sys.unblock_cmd_stream")]), Blank()]
    exports = tuple(do("@export_symbol", name) for name in launched)
    return [*found, Scope(exports, "comptime")]
