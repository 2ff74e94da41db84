"""Places: what can be indexed, assigned to, or have its address taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from meshc.sim import ir
from meshc.sim.lang import tree as t
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.arith import as_code
from meshc.sim.sema.convert import coerce, copied, offset_by, scaled
from meshc.sim.sema.csl_types import Array, Fn, Pointer, Struct, Type
from meshc.sim.sema.evaluating import Expressions
from meshc.sim.sema.images import bytes_of, value_of
from meshc.sim.sema.keeping import may_overlap, reads
from meshc.sim.sema.packed_fields import field_place, placed
from meshc.sim.sema.values import (
    BitPlace,
    Cell,
    CellPlace,
    CellRef,
    Frame,
    Global,
    LocalPlace,
    MemPlace,
    Module,
    Place,
    SlotPlace,
    StackVar,
    Val,
)
from meshc.support.diagnostics import fail
from meshc.support.spans import Span


class Places(Expressions):
    """Indexing, assignment targets and addresses."""

    def eval_Index(self, node: t.Index, frame: Frame, want: Type | None) -> Val:
        base, indices = self._base_and_indices(node, frame, lambda: self.eval(node.base, frame))
        return self.index_value(base, indices, frame, node.span)

    def _base_and_indices(
        self, node: t.Index, frame: Frame, base: Callable[[], Val]
    ) -> tuple[Val, list[Val]]:
        """What is indexed, then the indices. An array stays in its place: the element is read, or
        written, after all of them."""
        array: list[Val] = []

        def address() -> Val:
            value = base()
            array.append(value)
            return Val(ty.U16, value.v, False) if _in_place(value) else value

        indices = (partial(self.eval, i, frame) for i in node.indices)
        first, *rest = self.in_order(frame, node, (address, *indices))
        if _in_place(array[0]):
            first = Val(array[0].type, first.v, False)
        return first, rest

    def index_value(self, base: Val, indices: list[Val], frame: Frame, span: Span) -> Val:
        """``base[indices]`` as a value."""
        if base.type == ty.STRUCT:
            position = self.as_number(indices[0], span)
            if position not in base.v:
                fail("csl-range", f"index {position} is outside of the tuple", span)
            found: Val = base.v[position]
            return found
        if isinstance(base.v, CellRef):
            place = base.v.place
            base = Val(place.type, place.read())
        if base.type == ty.STRING:
            return Val(ty.U8, ord(base.v[self.as_number(indices[0], span)]))
        if isinstance(base.type, Array) and isinstance(base.v, list):
            if all(i.known for i in indices):
                flat = self.flat_index(base.type, indices, span)
                element = base.v[flat]
                if isinstance(element, Val):
                    return element
                return Val(base.type.element, element)
            if frame.known:
                fail("csl-comptime", "the index is not known at compile time", span)
            if not base.known:
                base = self.kept(base, "array", frame, t.Node(span))
        place_ = self._element_place(base, indices, span)
        if isinstance(place_, SlotPlace):
            return Val(place_.type, ir.Slot(place_.type, place_.index), False)
        return self.load(place_.type, place_.addr)

    def flat_index(self, kind: Array, indices: list[Val], span: Span) -> int:
        """The row-major position of known indices, checked against the extents."""
        if len(indices) != len(kind.dims):
            fail("csl-type", f"'{kind}' needs {len(kind.dims)} indices", span)
        flat = 0
        for index, extent in zip(indices, kind.dims, strict=True):
            number = self.as_number(index, span)
            if not 0 <= number < extent:
                fail("csl-range", f"index {number} is outside of '{kind}'", span)
            flat = flat * extent + number
        return flat

    def _element_place(self, base: Val, indices: list[Val], span: Span) -> MemPlace | SlotPlace:
        kind = base.type
        if isinstance(kind, Array) and ty.lives_in_slots(kind):
            start = self.first_slot(base)
            return SlotPlace(kind.element, offset_by(start, self._linear(kind, indices, span)))
        const = isinstance(kind, Pointer) and kind.const
        if isinstance(kind, Pointer):
            addr = as_code(base)
            if not kind.many and isinstance(kind.target, Array):
                kind = kind.target
            else:
                element = kind.target
                while isinstance(element, Array) and not kind.many:
                    element = element.element
                step = scaled(as_code(coerce_index(indices[0], span)), ty.size_of(element))
                return MemPlace(element, offset_by(addr, step), const)
        elif isinstance(kind, Array):
            addr = self.code(base)
        else:
            fail("csl-type", f"a value of type '{kind}' cannot be indexed", span)
        assert isinstance(kind, Array)
        linear = self._linear(kind, indices, span)
        return MemPlace(
            kind.element, offset_by(addr, scaled(linear, ty.size_of(kind.element))), const
        )

    def _linear(self, kind: Array, indices: list[Val], span: Span) -> ir.Expr:
        if len(indices) != len(kind.dims):
            fail("csl-type", f"'{kind}' needs {len(kind.dims)} indices", span)
        if all(i.known for i in indices):
            return ir.Const(ty.U16, self.flat_index(kind, indices, span))
        total: ir.Expr | None = None
        for index, extent in zip(indices, kind.dims, strict=True):
            code = as_code(coerce_index(index, span))
            if isinstance(code, ir.Const) and not 0 <= code.value < extent:
                fail("csl-range", f"index {code.value} is outside of '{kind}'", span)
            if total is not None:
                wide = ir.Bin(ty.U16, "*", _as_u16(total), ir.Const(ty.U16, extent))
                total = ir.Bin(ty.U16, "+", wide, _as_u16(code))
            else:
                total = code
        assert total is not None
        return total

    # --- places ---

    def place(self, node: t.Expr, frame: Frame) -> Place:
        """The place ``node`` denotes. Raises MeshcError ``csl-type`` when it denotes none."""
        match node:
            case t.Name():
                return self._name_place(node, frame)
            case t.Index():
                return self._index_place(node, frame)
            case t.Field():
                return self._field_place(node, frame)
            case t.Builtin(name="field") if len(node.args) == 2:
                name = self.known(node.args[1], frame).v
                return self._field_place(t.Field(node.span, node.args[0], name), frame)
            case t.Deref():
                pointer = self.eval(node.operand, frame)
                if not isinstance(pointer.type, Pointer):
                    fail("csl-type", f"'.*' needs a pointer, found '{pointer.type}'", node.span)
                if isinstance(pointer.v, CellRef):
                    return pointer.v.place
                if isinstance(pointer.type.target, Fn):
                    fail("csl-type", "a function cannot be assigned to", node.span)
                return MemPlace(pointer.type.target, as_code(pointer), pointer.type.const)
        fail("csl-type", "this expression has no address", node.span)

    def _name_place(self, node: t.Name, frame: Frame) -> Place:
        found = self.lookup(node.name, frame, node.span)
        match found:
            case Cell():
                return CellPlace(found.type, found, "v", branches=found.branches)
            case ir.Var():
                return LocalPlace(found)
            case Global():
                return self._global_place(found)
            case StackVar():
                return MemPlace(found.type, found.addr)
            case Val() if ty.lives_in_slots(found.type):
                return SlotPlace(found.type, self.first_slot(found), const=found.known)
            case Val() if not found.known and isinstance(found.type, Array | Struct):
                return MemPlace(found.type, found.v)
            case Val() if isinstance(found.type, Array | Struct):
                return MemPlace(found.type, self.code(found, node.name), True)
        fail("csl-type", f"'{node.name}' cannot be assigned to", node.span)

    def _global_place(self, item: Global) -> Place:
        kind = self.global_type(item)
        if ty.lives_in_slots(kind):
            return SlotPlace(kind, ir.Const(ty.U16, self.slot(item)), item.decl.const)
        symbol = self.symbol(item)
        return MemPlace(kind, ir.Const(ty.U16, symbol.addr), item.decl.const)

    def _index_place(self, node: t.Index, frame: Frame) -> Place:
        outer: Place | None = None

        def base() -> Val:
            nonlocal outer
            if isinstance(node.base, t.Name | t.Index | t.Field):
                value = self.peek_type(node.base, frame)
                if isinstance(value, CellRef):
                    outer = value.place
                elif not isinstance(value, Pointer):
                    outer = self.place(node.base, frame)
                match outer:
                    case MemPlace():
                        return Val(outer.type, outer.addr, False)
                    case SlotPlace():
                        return Val(outer.type, outer.index, False)
                    case CellPlace():
                        return Val(ty.VOID, None)
            return self.eval(node.base, frame)

        array, indices = self._base_and_indices(node, frame, base)
        if isinstance(outer, CellPlace):
            return self._cell_element(outer, indices, node.span)
        place = self._element_place(array, indices, node.span)
        if isinstance(outer, MemPlace) and isinstance(place, MemPlace):
            place.const = outer.const
        return place

    def peek_type(self, node: t.Expr, frame: Frame) -> Any:
        """The pointer type of ``node`` (or its CellRef); None when it is no pointer."""
        if isinstance(node, t.Name):
            found = self.lookup(node.name, frame, node.span)
            if isinstance(found, Global):
                kind: Type = self.global_type(found)
            elif isinstance(found, Cell | Val):
                if isinstance(found.v, CellRef):
                    return found.v
                kind = found.type
            elif isinstance(found, ir.Var | StackVar):
                kind = found.type
            else:
                return None
            return kind if isinstance(kind, Pointer) else None
        if isinstance(node, t.Field):
            base = node.base
            module = self.module_of(base, frame)
            if module is not None:
                item = self.member(module, node.name, node.span)
                if isinstance(item, Global):
                    kind = self.global_type(item)
                    return kind if isinstance(kind, Pointer) else None
                return item.type if isinstance(getattr(item, "type", None), Pointer) else None
        value = self.without_code(frame, node)
        return value.type if isinstance(value.type, Pointer) else None

    def module_of(self, node: t.Expr, frame: Frame) -> Module | None:
        """The module instance an expression denotes, if it does."""
        if isinstance(node, t.Name | t.Field):
            if isinstance(node, t.Name):
                found = self.lookup(node.name, frame, node.span)
                if isinstance(found, Global) and not found.decl.const:
                    return None
                if isinstance(found, ir.Var | Cell | StackVar):
                    return None
            elif self.module_of(node.base, frame) is None:
                return None
            value = self.eval(node, frame)
            return value.v if value.type == ty.MODULE else None
        return None

    def _cell_element(self, place: CellPlace, indices: list[Val], span: Span) -> CellPlace:
        inner = place.read()
        if isinstance(place.type, Array):
            flat = self.flat_index(place.type, indices, span)
            return CellPlace(place.type.element, inner, flat, place.in_union, place.branches)
        fail("csl-type", f"a value of type '{place.type}' cannot be indexed", span)

    def _field_place(self, node: t.Field, frame: Frame) -> Place:
        module = self.module_of(node.base, frame)
        if module is not None:
            item = self.member(module, node.name, node.span)
            if isinstance(item, Global):
                return self._global_place(item)
            fail("csl-type", f"'{node.name}' cannot be assigned to", node.span)
        pointer = self.peek_type(node.base, frame)
        if isinstance(pointer, Pointer):
            base = self.eval(node.base, frame)
            outer: Place = MemPlace(pointer.target, as_code(base), pointer.const)
        else:
            outer = self.place(node.base, frame)
        kind = outer.var.type if isinstance(outer, LocalPlace) else outer.type
        if isinstance(outer, CellPlace):
            inner = outer.read()
            union = isinstance(kind, Struct) and kind.union
            if isinstance(kind, Struct) and union:
                self._make_active(kind, inner, node.name)
            if isinstance(inner, dict) and node.name in inner:
                field = inner[node.name]
                return CellPlace(field.type, field, "v", union or outer.in_union, outer.branches)
        if isinstance(kind, Struct) and isinstance(outer, BitPlace):
            part = kind.bit_field(node.name)
            if part is not None:
                return replace(outer, type=part[0], shift=outer.shift + part[1])
        if isinstance(kind, Struct) and isinstance(outer, MemPlace):
            bits = field_place(outer.addr, kind, node.name, outer.const)
            if bits is not None:
                return bits
            found = kind.field(node.name)
            if found is not None:
                return MemPlace(found[0], offset_by(outer.addr, found[1]), outer.const)
        fail("csl-unknown-name", f"'{kind}' has no field '{node.name}'", node.span)

    def _make_active(self, kind: Struct, fields: dict[str, Val], name: str) -> None:
        """Let a union at compile time be of its field ``name``, with the same bytes."""
        found = kind.field(name)
        if found is not None and name not in fields:
            value = value_of(found[0], bytes_of(kind, fields))
            fields.clear()
            fields[name] = Val(found[0], value)

    def eval_AddressOf(self, node: t.AddressOf, frame: Frame, want: Type | None) -> Val:
        operand = node.operand
        if isinstance(operand, t.Name | t.Field):
            target = self.eval(operand, frame) if self._is_function(operand, frame) else None
            if target is not None:
                return Val(Pointer(False, True, target.type), target.v)
        # An address is known at compile time even where the variable's value is not.
        inside = Frame(frame.module, False, frame.names) if frame.known else frame
        place = self.place(operand, inside)
        if isinstance(place, CellPlace):
            if place.in_union:
                fail(
                    "csl-unsupported",
                    "the simulator has no pointers to fields of unions at compile time",
                    node.span,
                    help="read and write the field itself",
                )
            return Val(Pointer(False, False, place.type), CellRef(place))
        if isinstance(place, BitPlace):
            fail(
                "csl-type",
                "a field of a packed type has no address of its own: it is some bits of a word",
                node.span,
                help="copy it to a variable",
            )
        if isinstance(place, SlotPlace | LocalPlace):
            words = "a descriptor has no address, as it does not live in memory"
            advice = "pass the descriptor itself, or keep it in a register"
            fail("csl-type", words, node.span, help=advice)
        kind = Pointer(False, place.const, place.type)
        if isinstance(place.addr, ir.Const):
            return Val(kind, place.addr.value)
        return Val(kind, place.addr, False)

    def _is_function(self, node: t.Expr, frame: Frame) -> bool:
        if isinstance(node, t.Name):
            return type(self.lookup(node.name, frame, node.span)).__name__ == "FnVal"
        if isinstance(node, t.Field):
            module = self.module_of(node.base, frame)
            if module is not None:
                return type(self.member(module, node.name, node.span)).__name__ == "FnVal"
        return False

    def assign(self, place: Place, value: Val, frame: Frame, span: Span) -> None:
        """Store ``value`` at ``place``, at compile time or by code."""
        kind = place.var.type if isinstance(place, LocalPlace) else place.type
        value = coerce(value, kind, span)
        where = f"{span.source.name}:{span.line}"
        match place:
            case CellPlace():
                if not value.known:
                    fail("csl-comptime", "this value must be known at compile time", span)
                if frame.branches > place.branches:
                    fail(
                        "csl-comptime",
                        "a variable of code that runs at compile time is changed where it depends "
                        "on a condition or a loop of the running program",
                        span,
                        help="make it a variable of the running program, with a type",
                    )
                fresh = copied(value).v
                if isinstance(place.container, Cell | Val):
                    place.container.v = fresh
                else:
                    place.container[place.key] = fresh
            case LocalPlace():
                self.emit(frame, ir.SetLocal(where, place.var, self.code(value)))
            case SlotPlace() | MemPlace() | BitPlace() if place.const:
                fail("csl-type", "a constant cannot be assigned to", span)
            case SlotPlace():
                self.set_slots(place.index, value, frame, span)
            case MemPlace():
                self._overwrite(place.addr, value, frame, span)
            case BitPlace():
                code = placed(self.packed(value, place.unit), place)
                self.emit(frame, ir.Store(where, place.unit, place.addr, code))

    def _overwrite(self, addr: ir.Expr, value: Val, frame: Frame, span: Span) -> None:
        """Store a value whose parts may read what they are about to replace."""
        size = ty.size_of(value.type)
        in_parts = not value.known and isinstance(value.v, list | dict)
        if in_parts and any(may_overlap(addr, size, part) for part in reads(value)):
            value = self.kept(value, "next", frame, t.Node(span))
        self.store(addr, value, frame, f"{span.source.name}:{span.line}")

    def set_slots(self, first: ir.Expr, value: Val, frame: Frame, span: Span) -> None:
        """Code that stores a descriptor, or an array of them, from slot ``first`` on."""
        where, kind = f"{span.source.name}:{span.line}", value.type
        if not isinstance(kind, Array):
            self.emit(frame, ir.SetSlot(where, first, self.code(value)))
            return
        for position in range(kind.count):
            part = self.index_value(value, [Val(ty.U16, position)], frame, span)
            self.emit(frame, ir.SetSlot(where, offset_by(first, position), self.code(part)))


def _in_place(value: Val) -> bool:
    """Whether a value is the place of an array, in memory or among the descriptors."""
    return isinstance(value.type, Array) and not value.known and not isinstance(value.v, list)


def moves(place: Place) -> bool:
    """Whether where a place is becomes known at run time only."""
    match place:
        case MemPlace() | BitPlace():
            return not isinstance(place.addr, ir.Const)
        case SlotPlace():
            return not isinstance(place.index, ir.Const)
    return False


def address_of(place: Place) -> Val:
    """Where a place that moves is."""
    assert isinstance(place, MemPlace | BitPlace | SlotPlace)
    return Val(ty.U16, place.index if isinstance(place, SlotPlace) else place.addr, False)


def placed_at(place: Place, address: Val) -> Place:
    """A place that moves, at another address."""
    if isinstance(place, MemPlace | BitPlace):
        return replace(place, addr=address.v)
    assert isinstance(place, SlotPlace)
    return replace(place, index=address.v)


def coerce_index(index: Val, span: Span) -> Val:
    """An array index; any integer will do."""
    if not ty.is_int(index.type):
        fail("csl-type", f"an index must be an integer, found '{index.type}'", span)
    return index


def _as_u16(code: ir.Expr) -> ir.Expr:
    return code if code.type == ty.U16 else ir.Cast(ty.U16, code)
