"""The program of PEs of the layout's rectangle that no region has: it answers the host."""

from __future__ import annotations

from meshc.analysis.csl.rounds import told_once
from meshc.backends.csl.spelling.names import scalar_name
from meshc.ir.module import Module


def idle_file(module: Module) -> str:
    """A program that ends as soon as ``module``'s is launched, since a launch goes to all PEs of a
    rectangle."""
    params = ", ".join(f"given_{scalar_name(name)}: i16" for name in told_once(module))
    return f"""\
// What PEs run that belong to no region: nothing. A launch goes to all PEs of the rectangle.
// Written by meshc.

param memcpy_params: comptime_struct;

const sys = @import_module("<memcpy/memcpy>", memcpy_params);

fn run({params}) void {{
    sys.unblock_cmd_stream();
}}

comptime {{
    @export_symbol(run);
}}
"""
