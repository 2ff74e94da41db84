"""The layout: routes from the channels' maps, and the parameters of each PE."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd

import numpy as np

from meshc.analysis.csl.ends import colors_on, places
from meshc.analysis.traffic.channels import crossed_axis, line_of
from meshc.analysis.traffic.turns import turns_of
from meshc.backends.csl.fabric.channels import End, Ends
from meshc.backends.csl.fabric.painters import router_painters
from meshc.backends.csl.fabric.regions import Regions, over
from meshc.backends.csl.fabric.turns import painter, painters
from meshc.backends.csl.pe.pe_file import PeFile
from meshc.backends.csl.spelling.descriptors import stored
from meshc.backends.csl.spelling.expressions import (
    Spelling,
    as_named,
    condition,
    expression,
    helpers,
)
from meshc.backends.csl.spelling.guards import (
    coordinate_functions,
    in_order,
    layout_spelling,
    piecewise_function,
)
from meshc.backends.csl.spelling.lines import wrapped
from meshc.backends.csl.spelling.names import IDLE, Names, of_rounds, plain
from meshc.ir.affine import Cond, Constraint, Expr, Piecewise
from meshc.ir.affine.piecewise import range_name
from meshc.ir.mesh import Mesh
from meshc.ir.module import Channel, Module
from meshc.ir.ops.tile import scalars_of_rounds
from meshc.support.diagnostics import fail
from meshc.support.plmr import violates

_PAD = "    "


@dataclass
class _Functions:
    """What the text of a layout calls: ``lines`` of functions that it defines for its channels, the
    ``painters`` of routers by name, and through ``spell`` the helpers of expressions."""

    mesh: Mesh
    names: Names = field(default_factory=Names)
    lines: list[str] = field(default_factory=list)
    painters: set[str] = field(default_factory=set)
    spell: Spelling = field(default_factory=as_named)

    @cached_property
    def regions(self) -> Regions:
        """Where the regions of the mesh lie."""
        return Regions(self.mesh)

    def here(self, axis: str) -> str:
        """The place of a core in the rectangle."""
        return self.regions.at(axis, axis)

    def of_position(self, hint: str, comment: str, value: Piecewise) -> str:
        """A call of a new function of the position whose value is ``value``."""
        name = self.names.fresh(hint)
        self.lines += [""] if self.lines else []
        self.lines.append(f"// {comment}")
        self.lines += piecewise_function(self.mesh, name, value, self.spell)
        return f"{name}({', '.join(in_order(self.mesh, value))})"

    def painter(self, name: str) -> str:
        """The name of a painter, which is called."""
        self.painters.add(name)
        return name


def layout_file(module: Module, pe: PeFile, phase: str) -> str:
    """``layout.csl``; ``phase`` names the PEs' file. Raises ``csl-route``."""
    mesh = module.the_mesh()
    functions = _Functions(mesh)
    regions = functions.regions
    used = {n for cond in pe.guards.params for n in cond.free_vars}
    colors = {key: _color(end, functions) for key, end in pe.ends.of.items()}
    routes = _routes(module, pe.ends, colors, functions)
    place = f"{functions.here(mesh.across)}, {functions.here(mesh.down)}"
    body = [
        f"@set_rectangle({regions.columns}, {regions.rows});",
        *regions.over(
            mesh.plane,
            [
                f'@set_tile_code({place}, "{phase}.csl", .{{',
                *(_PAD + line for line in _tile_params(pe, colors, functions)),
                "});",
            ],
        ),
        *_idle(regions),
        *routes,
        "",
        *_exports(pe, module),
    ]
    size = f"{mesh.columns} x {mesh.rows}"
    if regions.several:
        size = f"{mesh.regions} regions of {size}"
    lines = [
        f"// {plain(module.name)} on {size} PEs: who runs what, and routes.",
        "// Written by meshc.",
        "",
        'const memcpy = @import_module("<memcpy/get_params>", .{',
        f"{_PAD}.width = {regions.columns}, .height = {regions.rows}",
        "});",
    ]
    known = coordinate_functions(mesh, used, functions.spell)
    firsts = regions.functions(functions.spell)
    divisions = helpers(functions.spell.helpers)
    painted = [*router_painters(functions.painters), *painters(functions.painters)][1:]
    parts = _table(pe, mesh), divisions, firsts, known, painted, functions.lines
    for part in parts:
        lines += ["", *part] if part else []
    lines += ["", "layout {", *(_indent(line) for line in body), "}"]
    return "\n".join(piece for line in lines for piece in wrapped(line)) + "\n"


def _table(pe: PeFile, mesh: Mesh) -> list[str]:
    """What channels take, as a comment."""
    rows = [("Channel", "end", "colors", "queue", "hops")]
    for (name, verb), end in pe.ends.of.items():
        colors = sorted(colors_on(end.colors, mesh))
        hops = line_of(end.channel, mesh).hops
        rows.append((plain(name)[:40], verb, " ".join(map(str, colors)), str(end.queue), str(hops)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return [f"// {line}" for line in lines] if len(rows) > 1 else []


def _indent(line: str) -> str:
    return _PAD + line if line else ""


def _idle(regions: Regions) -> list[str]:
    """The program of PEs that no region has."""
    mesh, lines = regions.mesh, []
    for first_column, first_row in regions.idle:
        column, row = f"{first_column} + {mesh.across}", f"{first_row} + {mesh.down}"
        params = f".{{ .memcpy_params = memcpy.get_params({column}) }}"
        code = [f'@set_tile_code({column}, {row}, "{IDLE}.csl", {params});']
        lines += over(mesh, mesh.plane, code)
    return lines


def _tile_params(
    pe: PeFile, colors: dict[tuple[str, str], str], functions: _Functions
) -> list[str]:
    mesh = functions.mesh
    spell = Spelling(layout_spelling(mesh).__getitem__, helpers=functions.spell.helpers)
    lines = [f".memcpy_params = memcpy.get_params({functions.here(mesh.across)}),"]
    if mesh.outer in pe.guards.coordinates:
        lines.append(f".{pe.guards.spell(mesh.outer)} = {mesh.outer},")
    for key, end in pe.ends.of.items():
        lines.append(f".{end.color} = @get_color({colors[key]}),")
    for cond, name in pe.guards.params.items():
        lines.append(f".{name} = {condition(cond, spell)},")
    return lines


def _live(value: Piecewise, mesh: Mesh) -> Piecewise:
    """``value`` without the pieces and conditions that decide nothing on ``mesh``."""
    here = places(mesh, value.free_vars)
    left = np.ones([grid.size for grid in here.values()], bool)
    kept: list[tuple[Cond, Expr]] = []
    for cond, expr in value.pieces:
        holds = left & cond.evaluate(here)
        left &= ~holds
        if holds.any():
            kept.append((cond if left.any() else Cond.true(), expr))
    return Piecewise.of(kept)


def _color(end: End, functions: _Functions) -> str:
    """The color of an end as an expression of the axes of the plane."""
    value = _live(end.colors, functions.mesh)
    if value.expr is not None and value.expr.is_const:
        return str(value.expr)
    verb = "sends" if end.verb == "send" else "receives"
    comment = f"The color on which a PE {verb} on {plain(end.channel.name)}."
    return functions.of_position(f"{end.color}_color", comment, value)


# --- routes


def _routes(
    module: Module,
    ends: Ends,
    colors: dict[tuple[str, str], str],
    functions: _Functions,
) -> list[str]:
    lines: list[str] = []
    for channel in module.channels:
        if (channel.name, "send") not in ends.of:
            continue
        color = f"@get_color({colors[channel.name, 'send']})"
        if channel.turns:
            paint = _in_turn
        elif len(channel.route.inputs) > len(functions.mesh.plane):
            paint = _over_edges
        else:
            paint = _multicast if channel.multicast else _messages
        lines += ["", *paint(channel, color, functions)]
    return lines


def _axis(channel: Channel, mesh: Mesh) -> str:
    """The axis along which a channel runs. Raises ``csl-route`` for other geometries."""
    pieces = channel.route.pieces
    for place, axis in enumerate(mesh.plane):
        other = mesh.plane[1 - place]
        if all(p.outputs[1 - place] == Expr.var(other) for p in pieces):
            return axis
    fail(
        "csl-route",
        f"channel @{channel.name} runs neither along rows nor along columns",
        notes=(violates("R"),),
    )


def _messages(channel: Channel, color: str, functions: _Functions) -> list[str]:
    """One message per sender, to the target that its map gives; -1 for none."""
    mesh = functions.mesh
    axis = _axis(channel, mesh)
    place = mesh.plane.index(axis)
    pieces = [(p.domain, p.outputs[place]) for p in channel.route.pieces]
    target = _live(Piecewise.of([*pieces, (Cond.true(), Expr.const(-1))]), mesh)
    name = plain(channel.name)
    comment = f"The {'column' if place else 'row'} that a message on {name} goes to; -1 for none."
    to = functions.of_position(f"{channel.name}_to", comment, target)
    paint = functions.painter(f"{'row' if place else 'column'}_message")
    ends = f"{functions.here(axis)}, {functions.regions.at(axis, 'to')}"
    call = f"{paint}({color}, {functions.here(mesh.other(axis))}, {ends});"
    inner = [f"const to = {to};", f"if (to >= 0 and to < {mesh.size(axis)}) {{ {call} }}"]
    return [f"// {name}", *functions.regions.over(mesh.plane, inner)]


def _over_edges(channel: Channel, color: str, functions: _Functions) -> list[str]:
    """Messages from a region to the next one, each along a line that crosses their edge."""
    mesh, spell, lines = functions.mesh, functions.spell, list[str]()
    axis = crossed_axis(channel, mesh)
    for piece in channel.route.pieces:
        region, *there = piece.outputs
        place = mesh.plane.index(axis) if axis else 0
        straight = there[1 - place] == Expr.var(mesh.plane[1 - place])
        if not axis or not straight or region != Expr.var(mesh.outer) + 1:
            fail(
                "csl-route",
                f"messages on channel @{channel.name} do not cross the edge of a region to the "
                "next one along rows or columns",
                notes=(violates("R"),),
            )
        paint = functions.painter(f"{'row' if place else 'column'}_message")
        to = functions.regions.next_at(axis, expression(there[place], spell))
        ends = f"{functions.here(axis)}, {to}"
        call = f"{paint}({color}, {functions.here(mesh.other(axis))}, {ends});"
        lines.append(f"if ({condition(piece.domain, spell)}) {{ {call} }}")
    return [f"// {plain(channel.name)}", *functions.regions.over(mesh.plane, lines)]


def _multicast(channel: Channel, color: str, functions: _Functions) -> list[str]:
    """One message per sender, to all cores between the first and the last that its map gives, or
    that the parts of its map do, of which each has senders of its own. A single sender may have a
    part on either side."""
    mesh, spell = functions.mesh, functions.spell
    axis = _axis(channel, mesh)
    place = mesh.plane.index(axis)
    head = "row" if place else "column"
    lines = [f"// {plain(channel.name)}"]
    steps = _by_steps(channel, mesh)
    if steps is not None:
        low, high, step, domain = steps
        paint = functions.painter(f"{head}_multicast_by_steps")
        ends = [functions.regions.at(axis, str(end)) for end in (low, high)]
        line = f"{functions.here(mesh.other(axis))}, {functions.here(axis)}"
        call = f"{paint}({color}, {line}, {', '.join(ends)}, {step});"
        inner = [f"if ({condition(domain, spell)}) {{ {call} }}"]
        return [*lines, *functions.regions.over(mesh.plane, inner)]
    paint = functions.painter(f"{head}_multicast")
    spans = [
        _span(clause, ranged, mesh.size(axis))
        for piece in channel.route.pieces
        if (ranged := range_name(piece.outputs[place])) is not None
        for clause in piece.domain.clauses
    ]
    sides = _both_sides(channel, mesh, spans)
    spans = [sides] if sides is not None else spans
    if len(spans) < len(channel.route.pieces) or _sent_twice(axis, mesh, [d for *_, d in spans]):
        fail(
            "csl-route",
            f"channel @{channel.name} is a multicast of a form not known here",
            notes=(violates("R"),),
        )
    for first, last, domain in spans:
        ends = [functions.regions.at(axis, expression(end, spell)) for end in (first, last)]
        line = f"{functions.here(mesh.other(axis))}, {functions.here(axis)}"
        call = f"{paint}({color}, {line}, {', '.join(ends)});"
        inner = [call] if domain.is_true else [f"if ({condition(domain, spell)}) {{ {call} }}"]
        lines += functions.regions.over(mesh.plane, inner)
    return lines


def _both_sides(
    channel: Channel, mesh: Mesh, spans: Sequence[tuple[Expr, Expr, Cond]]
) -> tuple[Expr, Expr, Cond] | None:
    """The one span of a channel with two, those of the cores before and behind its only sender."""
    line = line_of(channel, mesh)
    if len(spans) != 2 or len(line.senders) != 1 or spans[0][2] != spans[1][2]:
        return None
    (sender,), first, last = line.senders, min(line.receivers), max(line.receivers)
    if line.receivers != {*range(first, last + 1)} - {sender}:
        return None
    return Expr.const(first), Expr.const(last), spans[0][2]


def _by_steps(channel: Channel, mesh: Mesh) -> tuple[int, int, int, Cond] | None:
    """The first and the last receiver of the only sender of a channel, how far others lie apart,
    more than one core, and who sends; receivers before it count from the core before it, which may
    be the only one."""
    line = line_of(channel, mesh)
    if len(line.senders) != 1:
        return None
    (sender,), first, last = line.senders, min(line.receivers), max(line.receivers)
    places = {at - sender if at > sender else sender - 1 - at for at in line.receivers}
    step = gcd(*places) or 2
    behind, before = range(sender + step, last + 1, step), range(sender - 1, first - 1, -step)
    if step < 2 or line.receivers != {*behind, *before}:
        return None
    return first, last, step, Cond.eq(Expr.var(line.axis), sender)


def _sent_twice(axis: str, mesh: Mesh, senders: list[Cond]) -> bool:
    """Whether a core of ``axis`` is among several of ``senders``, or that is not known."""
    if len(senders) < 2:
        return False
    here = {axis: np.arange(mesh.size(axis))}
    if any(cond.free_vars - {axis} for cond in senders):
        return True
    held = [np.broadcast_to(cond.evaluate(here), mesh.size(axis)) for cond in senders]
    return bool(np.max(np.sum(held, axis=0)) > 1)


def _in_turn(channel: Channel, color: str, functions: _Functions) -> list[str]:
    """The routers of every line along which cores take turns."""
    mesh = functions.mesh
    turns = turns_of(channel, mesh)
    assert turns is not None
    other = mesh.other(turns.axis)
    paint = functions.painter(painter(turns.axis == mesh.across, turns.way))
    start = functions.regions.at(turns.axis, "0")
    call = f"{paint}({color}, {functions.here(other)}, {start}, {turns.size});"
    return [f"// {plain(channel.name)}", *functions.regions.over([other], [call])]


def _span(clause: Iterable[Constraint], ranged: str, size: int) -> tuple[Expr, Expr, Cond]:
    """Bounds of ``ranged`` in a conjunction, and what is left of the conjunction."""
    first, last, rest = Expr.const(0), Expr.const(size - 1), Cond.true()
    for constraint in clause:
        bare = Expr.var(ranged)
        if ranged not in constraint.expr.free_vars:
            rest = rest & Cond.of(constraint)
            continue
        if constraint.relation == ">=" and constraint.expr.substitute({ranged: 0}) == (
            constraint.expr - bare
        ):
            first = bare - constraint.expr
        elif constraint.relation == ">=":
            last = constraint.expr + bare
        else:
            fail("csl-route", "a multicast to a single core", notes=(violates("R"),))
    return first, last, rest


def _exports(pe: PeFile, module: Module) -> list[str]:
    lines = [
        f'@export_name("{symbol}", [*]{stored(buffer.type.dtype)}, true);'
        for symbol, buffer in pe.symbols.items()
    ]
    for name in scalars_of_rounds(module):
        lines.append(f'@export_name("{of_rounds(name)}", [*]i16, true);')
    lines.append('@export_name("cycles_of_run", [*]u16, true);')
    for name, scalars in pe.launched.items():
        params = ", ".join(["i16"] * len(scalars))
        lines.append(f'@export_name("{name}", fn({params})void);')
    return lines
