"""The program of PEs of the layout's rectangle that no region has: it answers the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshc.backends.csl.spelling.names import scalar_name


def idle_file(launched: Mapping[str, Sequence[str]]) -> str:
    """A program whose functions end as soon as they are launched, since a launch goes to all PEs of
    a rectangle. ``launched`` has those of the program of the others, with the run-time scalars that
    each is given."""
    functions = "\n".join(_function(name, scalars) for name, scalars in launched.items())
    exports = "\n".join(f"    @export_symbol({name});" for name in launched)
    return f"""\
// What PEs run that belong to no region: nothing. A launch goes to all PEs of the rectangle.
// Written by meshc.

param memcpy_params: comptime_struct;

const sys = @import_module("<memcpy/memcpy>", memcpy_params);

{functions}
comptime {{
{exports}
}}
"""


def _function(name: str, scalars: Sequence[str]) -> str:
    params = ", ".join(f"given_{scalar_name(scalar)}: i16" for scalar in scalars)
    return f"fn {name}({params}) void {{\n    sys.unblock_cmd_stream();\n}}\n"
