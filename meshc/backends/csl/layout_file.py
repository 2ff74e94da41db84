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
from meshc.backends.csl.fabric.switch_tables import painter, painters
from meshc.backends.csl.pe.pe_file import PeFile
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
from meshc.backends.csl.spelling.memory_dsds import stored
from meshc.backends.csl.spelling.names import IDLE, Names, of_rounds, plain
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.ir.affine import Cond, Constraint, Expr, Piecewise
from meshc.ir.affine.piecewise import range_name
from meshc.ir.mesh import Mesh
from meshc.ir.module import Channel, Module
from meshc.ir.ops.tile import scalars_of_rounds
from meshc.support.diagnostics import fail
from meshc.support.plmr import violates

_SPELL = as_named()


@dataclass
class _Functions:
    """What a layout calls: the functions ``made`` for its channels, and the ``painters`` of routers
    by name."""

    mesh: Mesh
    names: Names = field(default_factory=Names)
    made: list[csl.Statement] = field(default_factory=list)
    painters: set[str] = field(default_factory=set)

    @cached_property
    def regions(self) -> Regions:
        """Where the regions of the mesh lie."""
        return Regions(self.mesh)

    def here(self, axis: str) -> csl.Expression:
        """The place of a core in the rectangle."""
        return self.regions.at(axis, axis)

    def of_position(self, hint: str, comment: str, value: Piecewise) -> csl.Expression:
        """A call of a new function of the position whose value is ``value``."""
        name = self.names.fresh(hint)
        self.made.append(piecewise_function(self.mesh, name, value, _SPELL, comment))
        return csl.call(name, *in_order(self.mesh, value))

    def painter(self, name: str) -> str:
        """The name of a painter, which is called."""
        self.painters.add(name)
        return name


def layout_file(module: Module, pe: PeFile, phase: str) -> list[csl.Statement]:
    """``layout.csl``; ``phase`` names the PEs' file. Raises ``csl-route``."""
    mesh = module.the_mesh()
    functions = _Functions(mesh)
    regions = functions.regions
    used = {n for cond in pe.guards.given.values() for n in cond.free_vars}
    colors = {key: _color(end, functions) for key, end in pe.ends.of.items()}
    routes = _routes(module, pe.ends, colors, functions)
    place = functions.here(mesh.across), functions.here(mesh.down)
    given = _tile_params(pe, colors, functions)
    tiles = csl.do("@set_tile_code", *place, csl.text(f"{phase}.csl"), given)
    rectangle = csl.do("@set_rectangle", regions.columns, regions.rows)
    body = [
        rectangle,
        *regions.over(mesh.plane, [tiles]),
        *_idle(regions),
        *routes,
        csl.Blank(),
        *_exports(pe, module),
    ]
    size = f"{mesh.columns} x {mesh.rows}"
    if regions.several:
        size = f"{mesh.regions} regions of {size}"
    whole = csl.record(width=regions.columns, height=regions.rows)
    found: list[csl.Statement] = [
        csl.Remark(f"{plain(module.name)} on {size} PEs: who runs what, and routes."),
        csl.Remark("Written by meshc."),
        csl.Blank(),
        csl.const("memcpy", csl.imported("memcpy/get_params", whole)),
    ]
    known = coordinate_functions(mesh, used, _SPELL)
    firsts = regions.functions(_SPELL)
    painted = [*router_painters(functions.painters), *painters(functions.painters)]
    divisions = helpers([*firsts, *known, *functions.made, *body])
    for part in (_table(pe, mesh), divisions, firsts, known, painted, functions.made):
        found += [csl.Blank(), *part] if part else []
    return [*found, csl.Blank(), csl.Scope(tuple(body), "layout")]


def _table(pe: PeFile, mesh: Mesh) -> list[csl.Remark]:
    """What channels take, as a comment."""
    rows = [("Channel", "end", "colors", "queue", "hops")]
    for (name, verb), end in pe.ends.of.items():
        colors = sorted(colors_on(end.colors, mesh))
        hops = line_of(end.channel, mesh).hops
        rows.append((plain(name)[:40], verb, " ".join(map(str, colors)), str(end.queue), str(hops)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return [csl.Remark(line) for line in lines] if len(rows) > 1 else []


def _idle(regions: Regions) -> list[csl.Statement]:
    """The program of PEs that no region has."""
    mesh, found = regions.mesh, list[csl.Statement]()
    for first_column, first_row in regions.idle:
        column, row = first_column + csl.Name(mesh.across), first_row + csl.Name(mesh.down)
        params = csl.record(memcpy_params=csl.call("memcpy.get_params", column))
        code = [csl.do("@set_tile_code", column, row, csl.text(f"{IDLE}.csl"), params)]
        found += over(mesh, mesh.plane, code)
    return found


def _tile_params(
    pe: PeFile, colors: dict[tuple[str, str], csl.Expression], functions: _Functions
) -> csl.Expression:
    mesh = functions.mesh
    spell = Spelling(layout_spelling(mesh).__getitem__)
    found: dict[str, csl.Operand] = {
        "memcpy_params": csl.call("memcpy.get_params", functions.here(mesh.across))
    }
    if mesh.outer in pe.guards.coordinates:
        found[pe.guards.spell(mesh.outer)] = mesh.outer
    for key, end in pe.ends.of.items():
        found[end.color] = csl.call("@get_color", colors[key])
    for name, cond in pe.guards.given.items():
        found[name] = condition(cond, spell)
    return csl.record(**found)


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


def _color(end: End, functions: _Functions) -> csl.Expression:
    """The color of an end as an expression of the axes of the plane."""
    value = _live(end.colors, functions.mesh)
    if value.expr is not None and value.expr.is_const:
        return expression(value.expr, _SPELL)
    verb = "sends" if end.verb == "send" else "receives"
    comment = f"The color on which a PE {verb} on {plain(end.channel.name)}."
    return functions.of_position(f"{end.color}_color", comment, value)


# --- routes


def _routes(
    module: Module,
    ends: Ends,
    colors: dict[tuple[str, str], csl.Expression],
    functions: _Functions,
) -> list[csl.Statement]:
    found: list[csl.Statement] = []
    for channel in module.channels:
        if (channel.name, "send") not in ends.of:
            continue
        color = csl.call("@get_color", colors[channel.name, "send"])
        if channel.turns:
            paint = _in_turn
        elif len(channel.route.inputs) > len(functions.mesh.plane):
            paint = _over_edges
        else:
            paint = _multicast if channel.multicast else _messages
        found += [csl.Blank(), csl.Remark(plain(channel.name)), *paint(channel, color, functions)]
    return found


def _where(cond: Cond, painted: csl.Statement) -> list[csl.Statement]:
    """``painted`` for the PEs for which ``cond`` holds."""
    return csl.chosen([(condition(cond, _SPELL), [painted])], short=True)


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


def _messages(
    channel: Channel, color: csl.Expression, functions: _Functions
) -> list[csl.Statement]:
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
    ends = functions.here(axis), functions.regions.at(axis, "to")
    painted = csl.do(paint, color, functions.here(mesh.other(axis)), *ends)
    there = csl.infix(csl.infix("to", ">=", 0), "and", csl.infix("to", "<", mesh.size(axis)))
    inner = [csl.const("to", to), csl.when(there, [painted], short=True)]
    return functions.regions.over(mesh.plane, inner)


def _over_edges(
    channel: Channel, color: csl.Expression, functions: _Functions
) -> list[csl.Statement]:
    """Messages from a region to the next one, each along a line that crosses their edge."""
    mesh, inner = functions.mesh, list[csl.Statement]()
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
        to = functions.regions.next_at(axis, expression(there[place], _SPELL))
        line = functions.here(mesh.other(axis))
        painted = csl.do(paint, color, line, functions.here(axis), to)
        inner += _where(piece.domain, painted)
    return functions.regions.over(mesh.plane, inner)


def _multicast(
    channel: Channel, color: csl.Expression, functions: _Functions
) -> list[csl.Statement]:
    """One message per sender, to all cores between the first and the last that its map gives, or
    that the parts of its map do, of which each has senders of its own. A single sender may have a
    part on either side."""
    mesh, found = functions.mesh, list[csl.Statement]()
    axis = _axis(channel, mesh)
    place = mesh.plane.index(axis)
    head = "row" if place else "column"
    line = functions.here(mesh.other(axis)), functions.here(axis)
    steps = _by_steps(channel, mesh)
    if steps is not None:
        low, high, step, domain = steps
        paint = functions.painter(f"{head}_multicast_by_steps")
        ends = [functions.regions.at(axis, end) for end in (low, high)]
        painted = csl.do(paint, color, *line, *ends, step)
        return functions.regions.over(mesh.plane, _where(domain, painted))
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
        ends = [functions.regions.at(axis, expression(end, _SPELL)) for end in (first, last)]
        painted = csl.do(paint, color, *line, *ends)
        found += functions.regions.over(mesh.plane, _where(domain, painted))
    return found


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


def _in_turn(channel: Channel, color: csl.Expression, functions: _Functions) -> list[csl.Statement]:
    """The routers of every line along which cores take turns."""
    mesh = functions.mesh
    turns = turns_of(channel, mesh)
    assert turns is not None
    other = mesh.other(turns.axis)
    paint = functions.painter(painter(turns.axis == mesh.across, turns.way))
    start = functions.regions.at(turns.axis, 0)
    painted = csl.do(paint, color, functions.here(other), start, turns.size)
    return functions.regions.over([other], [painted])


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


def _exports(pe: PeFile, module: Module) -> list[csl.Statement]:
    arrays = {name: stored(buffer.type.dtype) for name, buffer in pe.symbols.items()}
    arrays |= {of_rounds(name): "i16" for name in scalars_of_rounds(module)}
    arrays["cycles_of_run"] = "u16"
    writable = csl.TRUE
    functions = {
        name: f"fn({', '.join('i16' for _ in scalars)})void"
        for name, scalars in pe.launched.items()
    }
    return [
        *(_export(name, f"[*]{kind}", writable) for name, kind in arrays.items()),
        *(_export(name, kind) for name, kind in functions.items()),
    ]


def _export(name: str, kind: str, *more: csl.Expression) -> csl.Statement:
    return csl.do("@export_name", csl.text(name), csl.Literal(kind), *more)
