"""Builtins of the layout block: the rectangle, code placement, routes, exported names."""

from __future__ import annotations

from typing import Any

from meshc.sim.grids import MOST_PES
from meshc.sim.lang import tree as t
from meshc.sim.route_configs import (
    ALWAYS_POP,
    NO_POP,
    POP_ON_ADVANCE,
    POP_ON_ADVANCE_NOP,
    ColorConfig,
    Filter,
)
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.builtins.arguments import (
    check_names,
    chosen,
    fields_of,
    flag,
    number_in,
    routable,
)
from meshc.sim.sema.builtins.values import VOID
from meshc.sim.sema.csl_types import Array, Enum, Fn, Struct, Type
from meshc.sim.sema.iteration_lanes import Lanes
from meshc.sim.sema.rectangle import LayoutInfo
from meshc.sim.sema.registry import Analyzer, builtin
from meshc.sim.sema.values import Frame, Module, Val
from meshc.support.diagnostics import fail
from meshc.support.spans import Span


def _layout(an: Analyzer, node: t.Builtin) -> LayoutInfo:
    layout = an.layout
    if not isinstance(layout, LayoutInfo):
        fail("csl-type", f"@{node.name} may only be used while the layout runs", node.span)
    return layout


@builtin("set_rectangle", args=(2, 2))
def _set_rectangle(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    layout = _layout(an, node)
    if layout.width:
        fail("csl-layout", "@set_rectangle is called twice", node.span)
    width, height = (an.number(a, frame) for a in node.args)
    if width < 1 or height < 1:
        fail("csl-range", f"a rectangle of {width} by {height} PEs", node.span)
    if width * height > MOST_PES:
        words = f"a rectangle of {width} by {height} PEs; the simulator takes up to {MOST_PES}"
        fail("csl-range", words, node.span)
    layout.open(width, height)
    fabric_w, fabric_h = layout.fabric
    off_x, off_y = layout.offsets
    if fabric_w and (off_x + width > fabric_w or off_y + height > fabric_h):
        fail(
            "csl-layout",
            f"{width}x{height} PEs at offset {off_x},{off_y} do not fit a fabric of "
            f"{fabric_w}x{fabric_h}",
            node.span,
            help="use a larger --fabric-dims",
        )
    return VOID


@builtin("get_rectangle", args=(0, 0))
def _get_rectangle(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    layout = an.layout or getattr(an, "rectangle", None)
    if not isinstance(layout, LayoutInfo) or not layout.width:
        fail("csl-layout", "@get_rectangle before @set_rectangle", node.span)

    def pair(size: tuple[int, int]) -> Val:
        width, height = Val(ty.U16, size[0]), Val(ty.U16, size[1])
        return Val(ty.STRUCT, {"width": width, "height": height})

    fields = dict(pair((layout.width, layout.height)).v)
    fields["fabric"], fields["offsets"] = pair(layout.fabric), pair(layout.offsets)
    return Val(ty.STRUCT, fields)


def _position(an: Analyzer, node: t.Builtin, frame: Frame) -> tuple[int, int]:
    """The coordinates of a PE; in a group of iterations they may be lanes."""
    layout = _layout(an, node)
    x, y = (_coordinate(an, arg, frame) for arg in node.args[:2])
    if not layout.width:
        fail("csl-layout", f"@{node.name} before @set_rectangle", node.span)
    if not (0 <= x < layout.width and 0 <= y < layout.height):
        fail(
            "csl-layout",
            f"PE ({x}, {y}) is outside of the {layout.width}x{layout.height} rectangle",
            node.span,
        )
    return x, y


def _coordinate(an: Analyzer, node: t.Expr, frame: Frame) -> int:
    value = an.known(node, frame)
    several = type(value.v) is Lanes and not isinstance(value.v, bool)
    number: int = value.v if several else an.as_number(value, node.span)
    return number


@builtin("set_tile_code", args=(2, 4))
def _set_tile_code(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    layout, at = _layout(an, node), _position(an, node, frame)
    if an.points is None and layout.code_at[at[::-1]]:
        fail("csl-layout", f"PE {at} has its code already", node.span)
    path, params = layout.file, dict[str, Val]()
    if len(node.args) > 2:
        value = an.known(node.args[2], frame)
        if value.type == ty.STRING:
            path = an.loader.beside(value.v, frame.module.folder)
        else:
            params = an.struct(node.args[2], frame)
    if len(node.args) > 3:
        params = an.struct(node.args[3], frame)
    params = {str(k): v for k, v in params.items()}
    if an.points is None:
        layout.place_code(*at, path, params, node.span)
    else:
        layout.place_codes(an.points, at, path, params, node.span)
    return VOID


@builtin("set_color_config", args=(4, 4))
def _set_color_config(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    layout, (x, y) = _layout(an, node), _position(an, node, frame)
    color = routable(an.number(node.args[2], frame), node.args[2].span)
    first = layout.grid_of(color)[y, x] if an.points is None else 0
    if first:
        fail(
            "csl-layout",
            f"color {color} of PE ({x}, {y}) is configured twice",
            node.span,
            [f"first at {layout.configs[first - 1].place}"],
        )
    config = color_config(an, an.known(node.args[3], frame), color, node)
    if an.points is None:
        layout.configure(x, y, color, config)
    else:
        layout.configure_all(an.points, (x, y), color, config)
    return VOID


@builtin("export_name", args=(2, 3))
def _export_name(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    layout = _layout(an, node)
    name = an.text(node.args[0], frame)
    kind = an.type_from(node.args[1], frame)
    if isinstance(kind, Array | Struct | Enum):
        fail("csl-type", f"'{kind}' cannot be exported; export a pointer", node.span)
    if isinstance(kind, Fn) and len(kind.params) > 15:
        fail("csl-type", "a function for launches takes at most 15 parameters", node.span)
    if name in layout.exports:
        fail("csl-redeclared", f"'{name}' is exported twice", node.span)
    if len(node.args) > 2 and an.known(node.args[2], frame).type != ty.BOOL:
        fail("csl-type", "whether the host may write a symbol is true or false", node.span)
    layout.exports[name] = kind
    return VOID


# --- color configurations, shared with @set_local_color_config ---


def color_config(an: Analyzer, value: Val, color: int, node: t.Builtin) -> ColorConfig:
    """The configuration a struct describes."""
    span = node.span
    fields = fields_of(value, span)
    _only(
        fields, ("routes", "switches", "filter", "teardown", "color_swap_x", "color_swap_y"), span
    )
    routes = fields_of(fields.get("routes"), span)
    _only(routes, ("rx", "tx", "color_swap_x", "color_swap_y", "pop_mode"), span)
    rx, tx = directions(routes.get("rx"), span), directions(routes.get("tx"), span)
    if not rx or not tx:
        rx, tx = rx or (), tx or ()
    switches = fields_of(fields.get("switches"), span)
    names = ("pos1", "pos2", "pos3", "current_switch_pos", "ring_mode", "pop_mode")
    _only(switches, names, span)
    if switches and an.arch == "wse3" and color not in (*range(10), 12, 13, 16, 17, 20, 21):
        fail("csl-layout", f"WSE-3 has no switches on color {color}", span)
    swap_x, swap_y = (
        flag(routes if name in routes else fields, name, span)
        for name in ("color_swap_x", "color_swap_y")
    )
    if (swap_x or swap_y) and an.arch == "wse3":
        fail("csl-layout", "WSE-3 has no color swap", span)
    return ColorConfig(
        rx,
        tx,
        _positions(switches, span),
        _position_number(switches.get("current_switch_pos"), span),
        flag(switches, "ring_mode", span),
        _pop_mode(switches.get("pop_mode", routes.get("pop_mode")), span),
        flag(fields, "teardown", span),
        swap_x,
        swap_y,
        _filter(fields_of(fields["filter"], span), span) if "filter" in fields else None,
        str(span),
    )


def _position_number(value: Val | None, span: Span) -> int:
    return 0 if value is None else number_in(value, 0, 3, "a switch position", span)


def _only(fields: dict[str, Val], allowed: tuple[str, ...], span: Span) -> None:
    check_names(fields, allowed, "a color configuration", span)


def directions(value: Val | None, span: Span) -> tuple[int, ...]:
    """One direction or a list of them."""
    if value is None:
        return ()
    if value.type == ty.DIRECTION:
        return (value.v,)
    if isinstance(value.v, dict):
        parts = list(value.v.values())
    elif isinstance(value.v, list) and isinstance(value.type, Array):
        parts = [Val(value.type.element, v) for v in value.v]
    else:
        fail("csl-type", f"expected directions, found '{value.type}'", span)
    for part in parts:
        if part.type != ty.DIRECTION:
            fail("csl-type", f"expected a direction, found '{part.type}'", span)
    return tuple(dict.fromkeys(p.v for p in parts))


def _positions(switches: dict[str, Val], span: Span) -> tuple[tuple[int | None, Any] | None, ...]:
    found: list[tuple[int | None, Any] | None] = []
    for name in ("pos1", "pos2", "pos3"):
        fields = fields_of(switches.get(name), span)
        _only(fields, ("rx", "tx", "invalid"), span)
        if not fields or flag(fields, "invalid", span):
            found.append(None)
            continue
        rx, tx = directions(fields.get("rx"), span), directions(fields.get("tx"), span)
        if len(rx) > 1 or (rx and tx):
            fail("csl-layout", f"{name} must name one rx or the tx", span)
        several = tx if len(tx) > 1 else tx[0] if tx else None
        found.append((rx[0] if rx else None, several))
    while found and found[-1] is None:
        found.pop()
    return tuple(found)


def _pop_mode(value: Val | None, span: Span) -> int:
    modes = {
        "no_pop": NO_POP,
        "always_pop": ALWAYS_POP,
        "pop_on_advance": POP_ON_ADVANCE,
        "pop_on_advance_nop": POP_ON_ADVANCE_NOP,
    }
    if value is None:
        return NO_POP
    return modes[chosen(value, modes, "no_pop", "pop mode", span)]


_FILTERS = ("range", "counter", "sparse_counter")
_FILTER_NUMBERS = {"min_idx": "low", "max_idx": "high", "limit1": "limit1", "limit2": "limit2",
                   "max_counter": "max_counter", "init_counter": "init_counter"}  # fmt: skip
_FILTER_FLAGS = ("count_data", "count_control", "filter_control")


def _filter(fields: dict[str, Val], span: Span) -> Filter:
    kind = fields.get("kind")
    if kind is None:
        fail("csl-layout", "a filter needs '.kind'", span)
    name = chosen(kind, _FILTERS, "", "kind of filter", span)
    if not name:
        fail("csl-layout", "a filter needs '.kind'", span)
    check_names(fields, ("kind", "fast_mode", *_FILTER_NUMBERS, *_FILTER_FLAGS), "a filter", span)
    flag(fields, "fast_mode", span)

    def get(key: str) -> int:
        if key not in fields:
            return 0
        return number_in(fields[key], 0, 0xFFFF, f"'.{key}' of a filter", span)

    numbers: dict[str, Any] = {field: get(key) for key, field in _FILTER_NUMBERS.items()}
    return Filter(name, **numbers, **{key: flag(fields, key, span) for key in _FILTER_FLAGS})


@builtin("import_module", args=(1, 2))
def _import_module(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    path = an.text(node.args[0], frame)
    bindings: dict[str, Val] = {}
    if len(node.args) > 1:
        inside = Frame(frame.module, True, frame.names)
        value = an.eval(node.args[1], inside)
        if isinstance(value.type, Struct) and value.known:
            value = Val(ty.STRUCT, value.v)
        if value.type != ty.VOID:
            bindings = {str(k): v for k, v in fields_of(value, node.span).items()}
    module: Module = an.open_module(path, frame.module.folder, bindings, node.span)
    return Val(ty.MODULE, module)
