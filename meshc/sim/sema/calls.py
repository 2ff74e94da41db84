"""Calls: run at compile time, or lowered to one function per set of comptime arguments."""

from __future__ import annotations

from typing import Any

from meshc.sim import ir
from meshc.sim.lang import tree as t
from meshc.sim.sema import types as ty
from meshc.sim.sema.convert import coerce
from meshc.sim.sema.frozen import frozen
from meshc.sim.sema.places import Places
from meshc.sim.sema.types import Array, Fn, Pointer, Struct, Type
from meshc.sim.sema.values import FnVal, Frame, ReturnSignal, StackFrame, Val
from meshc.sim.sema.walk import addressed_names, has_effects
from meshc.support.diagnostics import MeshcError, fail
from meshc.support.spans import Span

Spec = tuple[Any, ...]

_MAX_COMPTIME_DEPTH = 250


class Calls(Places):
    """Function calls."""

    depth = 0

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
        args = []
        for param, arg in zip(fn.decl.params, node.args, strict=True):
            args.append(self._argument(fn, param, arg, frame, inner))
            inner.names[0].setdefault(param.name, args[-1])
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
        args = [
            self.code(coerce(self.eval(a, frame, p), p, a.span))
            for a, p in zip(node.args, kind.params, strict=True)
        ]
        dst = None if kind.result == ty.VOID else self.unit.temp(kind.result)
        self.emit(frame, ir.CallPtr(self.place_of(node), dst, callee.v, kind, args))
        return self._result(dst)

    def _result(self, dst: ir.Var | None) -> Val:
        if dst is None:
            return Val(ty.VOID, None)
        return Val(dst.type, ir.Local(dst.type, dst), False)

    # --- at compile time ---

    def call_known(self, fn: FnVal, args: list[Val], span: Span, frame: Frame) -> Val:
        """The result of running ``fn`` now."""
        if fn.decl.body is None:
            fail("csl-unsupported", f"function '{fn.name}' has no body", span)
        self.tick(span)
        inner = Frame(fn.module, True, in_layout=frame.in_layout, function=fn.name)
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
        spec: list[Any] = []
        code_args: list[ir.Expr] = []
        for param, value in zip(fn.decl.params, args, strict=True):
            if self._is_comptime(fn, param, value):
                spec.append(value)
            else:
                generic = param.type is None or isinstance(param.type, t.AnyType)
                spec.append(value.type if generic or _depends(param, fn) else None)
                code_args.append(self.argument(value, frame, self.place_of(node)))
        if self._result_is_known(fn, args):
            return self.call_known(fn, args, node.span, frame)
        folded = self._folded(fn, args, node.span, frame)
        if folded is not None:
            return folded
        function = self.instance(fn, tuple(spec), node.span)
        kind = function.result
        dst = None
        if kind != ty.VOID:
            dst = self.unit.temp(ty.U16 if isinstance(kind, Array | Struct) else kind)
        self.emit(frame, ir.CallFn(self.place_of(node), dst, function.name, code_args))
        if dst is not None and isinstance(kind, Array | Struct):
            addr = self.local_place("result", kind, frame)
            source, where = ir.Local(ty.U16, dst), self.place_of(node)
            self.emit(frame, ir.Copy(where, addr, source, ty.size_of(kind)))
            return Val(kind, addr, False)
        return self._result(dst)

    def _is_comptime(self, fn: FnVal, param: t.Param, value: Val) -> bool:
        if param.comptime or value.type in ty.COMPTIME_ONLY:
            return True
        if isinstance(value.type, Fn) and value.known:
            return True
        return fn.decl.inline and value.known and not isinstance(value.v, list | dict)

    def _folded(self, fn: FnVal, args: list[Val], span: Span, frame: Frame) -> Val | None:
        """The value of an inline function of known arguments that reads no variables."""
        if not fn.decl.inline or not all(a.known for a in args) or has_effects(fn.decl):
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
        self._lower_body(fn, function, frame, span)
        return function

    def _bind_parameter(
        self, param: t.Param, entry: Any, frame: Frame, function: ir.Function
    ) -> None:
        if isinstance(entry, Val):
            frame.names[0][param.name] = entry
            return
        if isinstance(entry, Type):
            kind = entry
        elif param.type is None or isinstance(param.type, t.AnyType):
            fail("csl-type", f"the type of '{param.name}' must be known here", param.span)
        else:
            kind = self.type_from(param.type, frame)
        aggregate = isinstance(kind, Array | Struct)
        var = self.unit.temp(ty.U16 if aggregate else kind, f"a_{_safe(param.name)}")
        function.params.append(var)
        if param.name != "_":
            bound = Val(kind, ir.Local(ty.U16, var), False) if aggregate else var
            frame.names[0][param.name] = bound

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
