"""Evaluation of expressions: to known values where possible, to code otherwise."""

from __future__ import annotations

from functools import partial
from typing import Any

from meshc.sim import ir
from meshc.sim.lang import tree as t
from meshc.sim.sema import arith
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.convert import coerce
from meshc.sim.sema.csl_types import Array, Enum, Float, Fn, Int, Pointer, Struct, Type
from meshc.sim.sema.images import bytes_of, value_of
from meshc.sim.sema.keeping import Keeping, branch
from meshc.sim.sema.packed_fields import field_place
from meshc.sim.sema.values import CellRef, FnVal, Frame, LoopFrame, Module, Val
from meshc.support.diagnostics import fail
from meshc.support.spans import Span

VOID = Val(ty.VOID, None)


class Expressions(Keeping):
    """Expressions without calls, builtins and places, which other parts add."""

    def eval(self, node: t.Expr, frame: Frame, want: Type | None = None) -> Val:
        """The value of ``node``; ``want`` is the type the context expects, if it has one."""
        method = getattr(self, "eval_" + type(node).__name__)
        value: Val = method(node, frame, want)
        return value

    def eval_IntLit(self, node: t.IntLit, frame: Frame, want: Type | None) -> Val:
        return Val(ty.COMPTIME_INT, node.value)

    def eval_FloatLit(self, node: t.FloatLit, frame: Frame, want: Type | None) -> Val:
        return Val(ty.COMPTIME_FLOAT, node.value)

    def eval_StrLit(self, node: t.StrLit, frame: Frame, want: Type | None) -> Val:
        return Val(ty.STRING, node.value)

    def eval_BoolLit(self, node: t.BoolLit, frame: Frame, want: Type | None) -> Val:
        return Val(ty.BOOL, node.value)

    def eval_VoidLit(self, node: t.VoidLit, frame: Frame, want: Type | None) -> Val:
        return Val(ty.VOID, None)

    def eval_AnyType(self, node: t.AnyType, frame: Frame, want: Type | None) -> Val:
        return Val(ty.TYPE, ty.ANYTYPE)

    def eval_EnumLit(self, node: t.EnumLit, frame: Frame, want: Type | None) -> Val:
        value = Val(ty.ENUM_LITERAL, node.name)
        return coerce(value, want, node.span) if isinstance(want, Enum) else value

    def eval_TensorAccess(self, node: t.TensorAccess, frame: Frame, want: Type | None) -> Val:
        fail(
            "csl-type",
            "an access to a tensor is no value",
            node.span,
            help="it stands behind '.tensor_access =' alone",
        )

    def eval_Name(self, node: t.Name, frame: Frame, want: Type | None) -> Val:
        return self.read(self.lookup(node.name, frame, node.span), frame, node.span)

    def eval_ComptimeExpr(self, node: t.ComptimeExpr, frame: Frame, want: Type | None) -> Val:
        return self.known(node.operand, frame, want)

    def eval_Unary(self, node: t.Unary, frame: Frame, want: Type | None) -> Val:
        return arith.unary(node.op, self.eval(node.operand, frame, want), node.span)

    def eval_Binary(self, node: t.Binary, frame: Frame, want: Type | None) -> Val:
        if node.op in ("and", "or"):
            return self._logical(node, frame)
        left, right = self.all_in_order((node.left, node.right), frame)
        if left.type == ty.TYPE and right.type == ty.TYPE:
            return Val(ty.BOOL, (left.v == right.v) == (node.op == "=="))
        if left.known and right.known:
            return arith.binary(node.op, left, right, node.span)
        left, right = self._with_addresses(left), self._with_addresses(right)
        return arith.binary(node.op, left, right, node.span)

    def _with_addresses(self, value: Val) -> Val:
        """A function that is an operand, by its address."""
        if isinstance(value.v, FnVal):
            return Val(value.type, self.fn_code(value.v, value.type), False)
        return value

    def _logical(self, node: t.Binary, frame: Frame) -> Val:
        left = self.boolean(node.left, frame)
        if left.known:
            return left if left.v == (node.op == "or") else self.boolean(node.right, frame)
        with branch(frame) as inner:
            right = self.boolean(node.right, frame)
        if not inner:
            code = ir.Bin(ty.BOOL, node.op, left.v, arith.as_code(right))
            return Val(ty.BOOL, code, False)
        result = self.unit.temp(ty.BOOL)
        place = self.place_of(node)
        self.emit(frame, ir.SetLocal(place, result, left.v))
        inner.append(ir.SetLocal(place, result, arith.as_code(right)))
        cond = ir.Local(ty.BOOL, result)
        arms = (inner, list[ir.Stmt]()) if node.op == "and" else (list[ir.Stmt](), inner)
        self.emit(frame, ir.If(place, cond, *arms))
        return Val(ty.BOOL, ir.Local(ty.BOOL, result), False)

    def boolean(self, node: t.Expr, frame: Frame) -> Val:
        """The value of a condition."""
        value = self.eval(node, frame, ty.BOOL)
        if value.type != ty.BOOL:
            fail("csl-type", f"expected a bool, found '{value.type}'", node.span)
        return value

    def eval_IfExpr(self, node: t.IfExpr, frame: Frame, want: Type | None) -> Val:
        cond = self.boolean(node.cond, frame)
        if cond.known:
            if cond.v:
                return self.eval(node.then, frame, want)
            if node.other is None:
                return Val(ty.VOID, None)
            return self.eval(node.other, frame, want)
        if node.other is None:
            fail("csl-type", "an 'if' expression with a run-time condition needs 'else'", node.span)
        then, then_code = self._arm(node.then, frame, want)
        other, other_code = self._arm(node.other, frame, want)
        kind = want if want is not None and want != ty.ANYTYPE else None
        if kind is None:
            kind = settled(arith.peer(then, other, "else", node.span))
        then, other = coerce(then, kind, node.span), coerce(other, kind, node.span)
        if not then_code and not other_code and not isinstance(kind, Array | Struct):
            pick = ir.Select(kind, cond.v, self.code(then), self.code(other))
            return Val(kind, pick, False)
        result, place = self.unit.temp(kind), self.place_of(node)
        then_code.append(ir.SetLocal(place, result, self.code(then)))
        other_code.append(ir.SetLocal(place, result, self.code(other)))
        self.emit(frame, ir.If(place, cond.v, then_code, other_code))
        return Val(kind, ir.Local(kind, result), False)

    def _arm(self, node: t.Expr, frame: Frame, want: Type | None) -> tuple[Val, list[ir.Stmt]]:
        with branch(frame) as code:
            value = self.eval(node, frame, want)
        return value, code

    def eval_Field(self, node: t.Field, frame: Frame, want: Type | None) -> Val:
        base = self.eval(node.base, frame)
        if isinstance(base.type, Pointer) and isinstance(base.type.target, Struct):
            base = self._pointee(base, node.span)
        v = base.v
        if base.type == ty.MODULE:
            assert isinstance(v, Module)
            return self.read(self.member(v, node.name, node.span), frame, node.span)
        if base.type == ty.STRUCT:
            if node.name not in v:
                fail("csl-unknown-name", f"the struct has no field '{node.name}'", node.span)
            found: Val = v[node.name]
            return found
        if base.type == ty.TYPE:
            return self._type_member(v, node)
        if isinstance(base.type, Struct):
            return self._struct_member(base, base.type, node, frame)
        fail("csl-type", f"a value of type '{base.type}' has no fields", node.span)

    def _type_member(self, kind: Type, node: t.Field) -> Val:
        if isinstance(kind, Enum):
            number = kind.value(node.name)
            if number is not None:
                return Val(kind, number)
        fail("csl-unknown-name", f"type '{kind}' has no member '{node.name}'", node.span)

    def _struct_member(self, base: Val, kind: Struct, node: t.Field, frame: Frame) -> Val:
        found = kind.field(node.name)
        if found is None:
            fail("csl-unknown-name", f"struct '{kind}' has no field '{node.name}'", node.span)
        if isinstance(base.v, dict) and node.name in base.v:
            value: Val = base.v[node.name]
            return value
        if base.known:
            return Val(found[0], value_of(found[0], bytes_of(kind, base.v)))
        if isinstance(base.v, dict):
            base = self.kept(base, "union", frame, node)
        bits = field_place(base.v, kind, node.name, True)
        if bits is not None:
            return self.unpacked(bits, frame, node)
        from_ = ir.Bin(ty.U16, "+", base.v, ir.Const(ty.U16, found[1]))
        return self.load(found[0], from_)

    def _pointee(self, pointer: Val, span: Span) -> Val:
        assert isinstance(pointer.type, Pointer)
        if isinstance(pointer.v, CellRef):
            place = pointer.v.place
            return Val(place.type, place.read())
        return self.load(pointer.type.target, arith.as_code(pointer))

    def eval_Deref(self, node: t.Deref, frame: Frame, want: Type | None) -> Val:
        base = self.eval(node.operand, frame)
        if not isinstance(base.type, Pointer):
            fail("csl-type", f"'.*' needs a pointer, found '{base.type}'", node.span)
        if isinstance(base.type.target, Fn):
            return Val(base.type.target, base.v, base.known)
        if frame.known and base.known and not isinstance(base.v, CellRef):
            fail("csl-comptime", "memory is not known at compile time", node.span)
        return self._pointee(base, node.span)

    def eval_BlockExpr(self, node: t.BlockExpr, frame: Frame, want: Type | None) -> Val:
        block = node.body
        if frame.known:
            return self.run_block(block, frame) or Val(ty.VOID, None)
        result = self.unit.temp(ty.VOID)
        self.unit.temps += 1
        loop = LoopFrame(block.label, self.unit.temps, True, result, [])
        inner = t.Block(block.span, block.body)
        body, place = self.lower_loop_body(inner, frame, loop), self.place_of(node)
        assert loop.breaks is not None
        known = self._single_break(block, loop.breaks)
        kind = VOID.type if known is not None else self._break_type(loop.breaks, want, node.span)
        result.type = ty.BOOL if kind == ty.VOID else kind
        for stmt, value, leaves in loop.breaks:
            unused = ir.Const(ty.BOOL, False)
            plain = kind == ty.VOID
            stmt.value = unused if plain else self.code(coerce(value, kind, leaves.span))
        yes = ir.Const(ty.BOOL, True)
        self.emit(frame, ir.Loop(place, loop.number, [], yes, body, [], once=True))
        if known is not None:
            return known
        return VOID if kind == ty.VOID else Val(kind, ir.Local(kind, result), False)

    def _single_break(self, block: t.Block, breaks: list[Any]) -> Val | None:
        """The known value of a block whose only way out is its last statement."""
        if len(breaks) == 1 and breaks[0][1].known and block.body[-1] is breaks[0][2]:
            value: Val = breaks[0][1]
            return value
        return None

    def _break_type(self, breaks: list[Any], want: Type | None, span: Span) -> Type:
        if not breaks:
            return ty.VOID
        if want is not None and want != ty.ANYTYPE:
            return want
        common: Val = breaks[0][1]
        for _, value, _ in breaks[1:]:
            common = Val(arith.peer(common, value, "break", span), None, False)
        return settled(common.type)

    # --- types as values ---

    def type_from(self, node: t.Expr, frame: Frame) -> Type:
        """The type an expression denotes."""
        value = self.eval(node, frame.at_comptime())
        if value.type != ty.TYPE:
            fail("csl-type", f"expected a type, found a value of type '{value.type}'", node.span)
        kind: Type = value.v
        return kind

    def eval_ArrayType(self, node: t.ArrayType, frame: Frame, want: Type | None) -> Val:
        dims = []
        for dim in node.dims:
            if dim is None:
                dims.append(-1)
                continue
            size = self.number(dim, frame)
            if not 0 <= size <= 0xFFFF:
                fail("csl-range", f"array extent {size} is out of range", dim.span)
            dims.append(size)
        return Val(ty.TYPE, Array(tuple(dims), self.type_from(node.element, frame)))

    def eval_PointerType(self, node: t.PointerType, frame: Frame, want: Type | None) -> Val:
        return Val(ty.TYPE, Pointer(node.many, node.const, self.type_from(node.target, frame)))

    def eval_FnType(self, node: t.FnType, frame: Frame, want: Type | None) -> Val:
        params = tuple(
            self.type_from(p.type, frame) if p.type is not None else ty.ANYTYPE for p in node.params
        )
        return Val(ty.TYPE, Fn(params, self.type_from(node.result, frame), node.task))

    def eval_EnumDecl(self, node: t.EnumDecl, frame: Frame, want: Type | None) -> Val:
        base = self.type_from(node.base, frame) if node.base is not None else ty.U16
        if not isinstance(base, Int):
            fail("csl-type", f"an enum takes an integer type, not '{base}'", node.span)
        given = {
            name: self.number(value, frame)
            for name, value in zip(node.members, node.values, strict=True)
            if value is not None
        }
        taken, following, members = set(given.values()), 0, list[tuple[str, int]]()
        for name in node.members:
            if name in given:
                members.append((name, given[name]))
                continue
            while following in taken:
                following += 1
            taken.add(following)
            members.append((name, following))
        for name, number in members:
            if not base.low <= number <= base.high:
                words = f"member '{name}' is {number}, which '{base}' does not hold"
                fail("csl-range", words, node.span)
        return Val(ty.TYPE, Enum(f"enum at {node.span}", base, tuple(members)))

    def eval_StructDecl(self, node: t.StructDecl, frame: Frame, want: Type | None) -> Val:
        fields = tuple((name, self.type_from(kind, frame)) for name, kind, _ in node.fields)
        *layout, form = node.kind.split()
        kind = Struct(f"{form} at {node.span}", fields, form == "union", "packed" in layout)
        if kind.packed:
            self._check_packed(kind, node)
        return Val(ty.TYPE, kind)

    def _check_packed(self, kind: Struct, node: t.StructDecl) -> None:
        for name, field in kind.fields:
            if not ty.bits_of(field):
                fail("csl-type", f"field '{name}' of type '{field}' cannot be packed", node.span)
        if not 0 < ty.bits_of(kind) <= 64:
            words = f"a packed type of {ty.bits_of(kind)} bits; the simulator takes 1 to 64"
            fail("csl-unsupported", words, node.span, help="take a plain struct")

    # --- literals ---

    def eval_StructLit(self, node: t.StructLit, frame: Frame, want: Type | None) -> Val:
        if node.type is not None:
            return self._typed_literal(node, frame)

        def field(name: str | None, value: t.Expr) -> Val:
            inner = None
            if isinstance(want, Struct) and name is not None:
                inner = (want.field(name) or (None,))[0]
            return self.eval(value, frame, inner)

        named = list(zip(node.names, node.values, strict=True))
        parts = self.in_order(frame, node, (partial(field, *one) for one in named))
        keys = (i if name is None else name for i, (name, _) in enumerate(named))
        fields: dict[Any, Val] = dict(zip(keys, parts, strict=True))
        literal = Val(ty.STRUCT, fields, all(part.known for part in parts))
        if isinstance(want, Struct | Array):
            return coerce(literal, want, node.span)
        return literal

    def _typed_literal(self, node: t.StructLit, frame: Frame) -> Val:
        assert node.type is not None
        kind = self.type_from(node.type, frame)
        if isinstance(kind, Struct):
            return self.eval_StructLit(
                t.StructLit(node.span, None, node.names, node.values), frame, kind
            )
        if not isinstance(kind, Array):
            fail("csl-type", f"'{kind}' has no literal of this form", node.span)
        element = kind.element

        def part(value: t.Expr) -> Val:
            return coerce(self.eval(value, frame, element), element, value.span)

        parts = self.in_order(frame, node, (partial(part, value) for value in node.values))
        if kind.dims == (-1,):
            kind = Array((len(parts),), kind.element)
        if len(parts) != kind.count:
            fail("csl-type", f"expected {kind.count} elements, found {len(parts)}", node.span)
        if all(p.known for p in parts):
            return Val(kind, [p.v for p in parts])
        return Val(kind, parts, False)

    def fn_value(self, node: t.Expr, frame: Frame) -> FnVal | None:
        """The function an expression names, if it names one."""
        value = self.eval(node, frame)
        return value.v if isinstance(value.v, FnVal) else None

    def exec_block(self, block: t.Block, frame: Frame) -> None:
        """Provided by the statement part."""
        raise NotImplementedError

    def run_block(self, block: t.Block, frame: Frame) -> Val | None:
        """Provided by the statement part."""
        raise NotImplementedError

    def lower_loop_body(self, body: t.Stmt, frame: Frame, loop: LoopFrame) -> list[ir.Stmt]:
        """Provided by the statement part."""
        raise NotImplementedError


def settled(kind: Type) -> Type:
    """The run-time type of a value that has none of its own."""
    if kind == ty.COMPTIME_INT:
        return ty.I16
    return ty.F32 if kind == ty.COMPTIME_FLOAT else kind


def is_scalar(kind: Type) -> bool:
    """Numbers, bools, enums and ids: what one machine register holds."""
    return isinstance(kind, Int | Float | Enum | Pointer) or kind == ty.BOOL or kind in ty.IDS
