"""Calls: run at compile time, or lowered to one function per set of comptime arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from meshc.sim import ir
from meshc.sim.control_flow import statements
from meshc.sim.csl_files import Loader
from meshc.sim.lang import tree as t
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.addressed import Places
from meshc.sim.sema.convert import coerce
from meshc.sim.sema.csl_types import Array, Fn, Pointer, Struct, Type
from meshc.sim.sema.frozen import frozen
from meshc.sim.sema.keeping import may_overlap
from meshc.sim.sema.tree_walks import addressed_names, has_effects
from meshc.sim.sema.unit import Unit
from meshc.sim.sema.values import (
    Divided,
    FnVal,
    Frame,
    RangeVal,
    ReturnSignal,
    StackFrame,
    Val,
)
from meshc.support.diagnostics import MeshcError, fail
from meshc.support.spans import Span

Spec = tuple[Any, ...]


def divided(value: Val, passed: list[Val]) -> Val | Divided | Type:
    """``value`` as a part of what makes a function its own; run-time parts go to ``passed``."""
    if value.type == ty.RANGE:
        ends = {"low": value.v.low, "high": value.v.high, "step": value.v.step}
        return Divided({k: divided(end, passed) for k, end in ends.items()}, value.v.type)
    if value.known:
        return value
    if value.type == ty.STRUCT:
        return Divided({k: divided(part, passed) for k, part in value.v.items()})
    passed.append(value)
    return value.type


_MAX_COMPTIME_DEPTH = 250


class Calls(Places):
    """Function calls."""

    depth = 0

    def __init__(self, loader: Loader, unit: Unit) -> None:
        super().__init__(loader, unit)
        self.unfinished: set[str] = set()

    def eval_Call(self, node: t.Call, frame: Frame, want: Type | None) -> Val:
        callee = self.eval(node.callee, frame)
        fn = callee.v
        if not isinstance(fn, FnVal):
            if isinstance(callee.type, Pointer) and isinstance(callee.type.target, Fn):
                callee = Val(callee.type.target, callee.v, callee.known)
            if isinstance(callee.type, Fn) and not callee.known:
                return self._call_pointer(callee, node, frame)
            fail("csl-type", f"a value of type '{callee.type}' cannot be called", node.span)
        if fn.decl.task:
            fail(
                "csl-type",
                f"task '{fn.name}' cannot be called",
                node.span,
                help="start it with @activate, or make it a function",
            )
        if len(node.args) != len(fn.decl.params):
            fail(
                "csl-type",
                f"'{fn.name}' takes {len(fn.decl.params)} arguments, found {len(node.args)}",
                node.span,
            )
        inner = Frame(fn.module, True)

        def argument(param: t.Param, arg: t.Expr) -> Val:
            value = self._argument(fn, param, arg, frame, inner)
            inner.names[0].setdefault(param.name, value)
            return value

        pairs = zip(fn.decl.params, node.args, strict=True)
        args = self.in_order(frame, node, (partial(argument, *pair) for pair in pairs))
        if frame.known:
            return self.call_known(fn, args, node.span, frame)
        return self._call_lowered(fn, args, node, frame)

    def _argument(self, fn: FnVal, param: t.Param, arg: t.Expr, frame: Frame, inner: Frame) -> Val:
        kind: Type = ty.ANYTYPE
        if param.type is not None and not isinstance(param.type, t.AnyType):
            kind = self.type_from(param.type, inner)
        value = self.known(arg, frame, kind) if param.comptime else self.eval(arg, frame, kind)
        return coerce(value, kind, arg.span)

    def _call_pointer(self, callee: Val, node: t.Call, frame: Frame) -> Val:
        kind = callee.type
        assert isinstance(kind, Fn)
        if len(kind.params) != len(node.args):
            fail("csl-type", f"expected {len(kind.params)} arguments", node.span)

        def argument(arg: t.Expr, param: Type) -> Val:
            return coerce(self.eval(arg, frame, param), param, arg.span)

        pairs = zip(node.args, kind.params, strict=True)
        steps: list[Callable[[], Val]] = [partial(argument, *pair) for pair in pairs]
        steps.insert(0, lambda: callee)
        target, *values = self.in_order(frame, node, steps)
        args = [self._passed(value, None, frame, node) for value in values]
        dst = self._destination(kind.result)
        self.emit(frame, ir.CallPtr(self.place_of(node), dst, target.v, kind, args))
        return self._result(dst, kind.result, frame, node)

    def _destination(self, kind: Type) -> ir.Var | None:
        """What receives the result of a call: of arrays and structs the address."""
        if kind == ty.VOID:
            return None
        return self.unit.temp(ty.U16 if isinstance(kind, Array | Struct) else kind)

    def _result(self, dst: ir.Var | None, kind: Type, frame: Frame, node: t.Node) -> Val:
        if dst is None:
            return Val(ty.VOID, None)
        result = ir.Local(dst.type, dst)
        if not isinstance(kind, Array | Struct):
            return Val(kind, result, False)
        addr, where = self.local_place("result", kind, frame), self.place_of(node)
        self.emit(frame, ir.Copy(where, addr, result, ty.size_of(kind)))
        return Val(kind, addr, False)

    # --- at compile time ---

    def call_known(self, fn: FnVal, args: list[Val], span: Span, frame: Frame) -> Val:
        """The result of running ``fn`` now."""
        if fn.decl.body is None:
            fail("csl-unsupported", f"function '{fn.name}' has no body", span)
        self.tick(span)
        inner = Frame(
            fn.module, True, in_layout=frame.in_layout, function=fn.name,
            branches=frame.branches, called=True,
        )  # fmt: skip
        for param, value in zip(fn.decl.params, args, strict=True):
            inner.names[0][param.name] = value
        inner.result = self.type_from(fn.decl.result, inner)
        self.depth += 1
        if self.depth > _MAX_COMPTIME_DEPTH:
            fail("csl-comptime", "compile-time calls are nested too deeply", span)
        result: Val | None = None
        try:
            self.exec_block(fn.decl.body, inner)
        except ReturnSignal as signal:
            result = signal.value
        finally:
            self.depth -= 1
        if result is None:
            if inner.result not in (ty.VOID, ty.ANYTYPE):
                fail("csl-type", f"'{fn.name}' ends without returning a value", span)
            return Val(ty.VOID, None)
        return result

    # --- lowered ---

    def _call_lowered(self, fn: FnVal, args: list[Val], node: t.Call, frame: Frame) -> Val:
        if self._result_is_known(fn, args):
            return self.call_known(fn, args, node.span, frame)
        folded = self._folded(fn, args, node.span, frame)
        if folded is not None:
            return folded
        spec, passed = list[Any](), list[Val]()
        for param, value in zip(fn.decl.params, args, strict=True):
            if self._is_comptime(fn, param, value):
                spec.append(value)
            elif value.type in (ty.STRUCT, ty.RANGE):
                spec.append(divided(value, passed))
            else:
                generic = param.type is None or isinstance(param.type, t.AnyType)
                spec.append(value.type if generic or _depends(param, fn) else None)
                passed.append(value)
        function = self.instance(fn, tuple(spec), node.span)
        codes = [self._passed(value, function, frame, node) for value in passed]
        dst = self._destination(function.result)
        self.emit(frame, ir.CallFn(self.place_of(node), dst, function.name, codes))
        return self._result(dst, function.result, frame, node)

    def _passed(
        self, value: Val, function: ir.Function | None, frame: Frame, node: t.Node
    ) -> ir.Expr:
        """An argument as code. Arrays and structs are handed over by their address: those of
        variables that the function may write, which sees what they were, are copied first."""
        if value.known or not isinstance(value.type, Array | Struct):
            return self.code(value)
        whole = not isinstance(value.v, list | dict)
        if whole and (ty.lives_in_slots(value.type) or not self._may_write(function, value)):
            return self.code(value)
        return self.code(self.kept(value, "argument", frame, node))

    def _may_write(self, function: ir.Function | None, value: Val) -> bool:
        """Whether a function, None for one that is not known, may write where ``value`` lies."""
        if function is None or function.name in self.unfinished:
            return True
        for stmt in statements(function.body):
            match stmt:
                case ir.SetLocal() | ir.If() | ir.Loop() | ir.Break() | ir.Continue() | ir.Return():
                    continue
                case ir.Effect(name="assert"):
                    continue
                case ir.Store():
                    addr, size = stmt.addr, ty.size_of(stmt.type)
                case ir.Copy():
                    addr, size = stmt.to, stmt.size
                case _:
                    return True
            if may_overlap(addr, size, ir.Load(value.type, value.v)):
                return True
        return False

    def _is_comptime(self, fn: FnVal, param: t.Param, value: Val) -> bool:
        if param.comptime or (value.known and value.type in ty.COMPTIME_ONLY):
            return True
        if value.type == ty.RANGE:
            return all(end.known for end in (value.v.low, value.v.high, value.v.step))
        if isinstance(value.type, Fn) and value.known:
            return True
        return fn.decl.inline and value.known and not isinstance(value.v, list | dict)

    def _folded(self, fn: FnVal, args: list[Val], span: Span, frame: Frame) -> Val | None:
        """The value of an inline or library function that has known arguments and neither
        reads variables nor does anything else."""
        if not (fn.decl.inline or fn.module.library) or not all(a.known for a in args):
            return None
        if has_effects(fn):
            return None
        try:
            return self.call_known(fn, args, span, frame)
        except MeshcError as problem:
            if any(d.code != "csl-comptime" for d in problem.diagnostics):
                raise
            return None

    def _result_is_known(self, fn: FnVal, args: list[Val]) -> bool:
        inner = Frame(fn.module, True)
        for param, value in zip(fn.decl.params, args, strict=True):
            inner.names[0][param.name] = value
        return self.type_from(fn.decl.result, inner) in ty.COMPTIME_ONLY

    def instance(self, fn: FnVal, spec: Spec, span: Span) -> ir.Function:
        """The lowered function for the given comptime arguments (Val), types or plain (None)."""
        spec = spec or (None,) * len(fn.decl.params)
        key = (fn.module.number, fn.name, tuple(frozen(s) for s in spec))
        known = self.unit.instances.get(key)
        if known is not None:
            return known
        base = f"{fn.name}_{fn.module.number}"
        name = base if base not in self.unit.functions else f"{base}_{len(self.unit.functions)}"
        function = ir.Function(name, [], ty.VOID, source=fn.name)
        self.unit.instances[key] = function
        self.unit.functions[name] = function
        frame = Frame(fn.module, False, function=name)
        for param, entry in zip(fn.decl.params, spec, strict=True):
            self._bind_parameter(param, entry, frame, function)
        function.result = self.type_from(fn.decl.result, frame)
        frame.result = function.result
        self.unfinished.add(name)
        self._lower_body(fn, function, frame, span)
        self.unfinished.discard(name)
        return function

    def _bind_parameter(
        self, param: t.Param, entry: Any, frame: Frame, function: ir.Function
    ) -> None:
        if isinstance(entry, Val | Divided):
            frame.names[0][param.name] = self._bound(param.name, entry, function)
            return
        if isinstance(entry, Type):
            kind = entry
        elif param.type is None or isinstance(param.type, t.AnyType):
            fail("csl-type", f"the type of '{param.name}' must be known here", param.span)
        else:
            kind = self.type_from(param.type, frame)
        bound = self._bound(param.name, kind, function)
        if param.name != "_":
            aggregate = isinstance(kind, Array | Struct)
            frame.names[0][param.name] = bound if aggregate else bound.v.var

    def _bound(self, name: str, entry: Val | Divided | Type, function: ir.Function) -> Val:
        """An argument inside of the function, with parameters for what is known at run time."""
        if isinstance(entry, Val):
            return entry
        if isinstance(entry, Type):
            kind = ty.U16 if isinstance(entry, Array | Struct) else entry
            var = self.unit.temp(kind, f"a_{_safe(name)}")
            function.params.append(var)
            return Val(entry, ir.Local(kind, var), False)
        fields = {k: self._bound(f"{name}_{k}", part, function) for k, part in entry.parts.items()}
        if entry.range is not None:
            return Val(ty.RANGE, RangeVal(entry.range, *fields.values()))
        return Val(ty.STRUCT, fields, False)

    def _lower_body(self, fn: FnVal, function: ir.Function, frame: Frame, span: Span) -> None:
        if fn.decl.body is None:
            fail("csl-unsupported", f"function '{fn.name}' has no body", span)
        if function.name in self.unit.recursive:
            frame.stack = StackFrame(self.unit.temp(ty.U16, "frame"))
        frame.addressed = addressed_names(fn.decl.body)
        for param in fn.decl.params:
            var = frame.names[0].get(param.name)
            if param.name in frame.addressed and isinstance(var, ir.Var):
                self.spill(param.name, var, frame, self.place_of(param))
        try:
            self.exec_block(fn.decl.body, frame)
        except MeshcError as problem:
            self.problems(problem)
        if frame.stack is not None:
            self.leave(frame, fn.decl)
            frame.out[:0] = self._enter(frame.stack, fn.decl)
        function.body = frame.out

    def stack_pointer(self) -> ir.Const:
        """The address of the variable that holds the top of the stack."""
        if self.unit.stack_pointer is None:
            self.unit.stack_pointer = self.unit.place("stack_pointer", ty.U16, 0)
        return ir.Const(ty.U16, self.unit.stack_pointer.addr)

    def _enter(self, stack: StackFrame, node: t.Node) -> list[ir.Stmt]:
        """Code that takes a frame from the stack, and an error when there is none left."""
        where, pointer = self.place_of(node), self.stack_pointer()
        here = ir.Local(ty.U16, stack.base)
        top = ir.Bin(ty.U16, "+", here, ir.Const(ty.U16, ty.align_up(stack.size, 4)))
        room = ir.Bin(ty.BOOL, "<=", top, self.unit.stack_limit)
        full = f"{where}: recursion without end? the stack is full"
        return [
            ir.SetLocal(where, stack.base, ir.Load(ty.U16, pointer)),
            ir.Effect(full, None, "assert", [room]),
            ir.Store(where, ty.U16, pointer, top),
        ]

    def leave(self, frame: Frame, node: t.Node) -> None:
        """Provided by the statement part: give a stack frame back."""
        raise NotImplementedError

    def spill(self, name: str, var: ir.Var, frame: Frame, where: str) -> None:
        """Provided by the statement part: move a parameter to memory."""
        raise NotImplementedError

    def problems(self, problem: MeshcError) -> None:
        """Provided by the compiler: keep errors and go on."""
        raise problem


def _depends(param: t.Param, fn: FnVal) -> bool:
    """Whether a parameter's type may depend on another parameter."""
    return any(p.comptime or isinstance(p.type, t.AnyType) for p in fn.decl.params)


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)
