"""Names and modules: what an identifier means, lazily, in any order."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from meshc.sim import ir
from meshc.sim.lang import tree as t
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.analysing import Core, located
from meshc.sim.sema.convert import coerce, offset_by, zero_of
from meshc.sim.sema.csl_types import Array, Float, Struct, Type
from meshc.sim.sema.tree_walks import imports_module, named
from meshc.sim.sema.values import Cell, FnVal, Frame, Global, Module, StackVar, Symbol, Val
from meshc.support.diagnostics import MeshcError, fail
from meshc.support.spans import Span

UNBUILT_TYPES = {
    "f64": "arithmetic by routines, as no instruction works on it",
    "dsr_fifo_dest": "registers that hold the state of a FIFO",
    "dsr_fifo_src1": "registers that hold the state of a FIFO",
}
DIRECTIONS = {"RAMP": 0, "EAST": 1, "WEST": 2, "NORTH": 3, "SOUTH": 4}


class Names(Core):
    """Looks names up and evaluates top-level declarations when they are first needed."""

    def open_module(
        self, path: str, folder: str, bindings: dict[str, Val], span: Span | None
    ) -> Module:
        """A new instance of a file with the given parameter values."""
        file, where, library = self.loader.load(path, folder, span)
        module = Module(path, file, where, bindings, len(self.modules), {}, library)
        self.modules.append(module)
        for name, decl in file.decls.items():
            if isinstance(decl, t.FnDecl):
                module.names[name] = FnVal(module, decl)
            else:
                module.names[name] = Global(module, decl)
        return module

    def member(self, module: Module, name: str, span: Span) -> Any:
        """What ``module.name`` means: a Val, FnVal or Global."""
        found = module.names.get(name)
        if found is not None:
            return self._defined(found)
        for param in module.file.params:
            if param.name == name:
                value = self._param(module, param)
                module.names[name] = value
                return value
        if module.library:
            fail(
                "csl-unsupported",
                f"the simulator's <{module.library}> has no '{name}'",
                span,
            )
        fail("csl-unknown-name", f"'{name}' is not declared in '{module.name}'", span)

    def _param(self, module: Module, param: t.Param) -> Val:
        frame = Frame(module, True)
        kind = self.type_from(param.type, frame) if param.type is not None else None
        given = module.bindings.get(param.name)
        if given is not None and given.type == ty.VOID and param.default is not None:
            given = None  # {} stands for a color that is not there
        if given is not None:
            value = given
        elif param.default is not None:
            value = self.known(param.default, frame, kind)
        else:
            fail(
                "csl-unbound-param",
                f"parameter '{param.name}' of '{module.name}' has no value",
                param.span,
                help=f"give it with --params={param.name}:VALUE, @set_tile_code or @import_module",
            )
        if kind is None or kind == ty.ANYTYPE:
            return value
        return coerce(value, kind, param.span)

    def lookup(self, name: str, frame: Frame, span: Span) -> Any:
        """What a plain name means here: a local (Val, Cell, ir.Var) or something global."""
        found = frame.find(name)
        if found is not None:
            return found
        module = frame.module
        if name in module.names:
            return self._defined(module.names[name])
        if any(param.name == name for param in module.file.params):
            return self.member(module, name, span)
        if name in DIRECTIONS:
            return Val(ty.DIRECTION, DIRECTIONS[name])
        kind = ty.named(name)
        if kind is not None:
            return Val(ty.TYPE, kind)
        if name == "undefined":
            return Val(ty.UNDEFINED, None)
        if name in UNBUILT_TYPES:
            words = f"the simulator has no '{name}': it would take {UNBUILT_TYPES[name]}"
            fail("csl-unsupported", words, span)
        fail("csl-unknown-name", f"'{name}' is not declared", span)

    def global_type(self, item: Global) -> Type:
        """The type of a top-level variable; its initialiser is evaluated if need be."""
        if item.type is None:
            self.settle(item)
        assert item.type is not None
        return item.type

    def _defined(self, item: Any) -> Any:
        """What a name stands for that is declared ``extern``: what another file of the program
        exports under this name, of the same type. Anything else stands for itself."""
        if isinstance(item, Global) and item.decl.extern:
            declared: Any = self.type_from(item.decl.type, Frame(item.module, True))
        elif isinstance(item, FnVal) and item.decl.body is None:
            declared = self.fn_type(item)
        else:
            return item
        name, span = item.decl.name, item.decl.span
        found = self._exported(name)
        if not found:
            self._import_all()
            found = self._exported(name)
        if not found:
            words = f"no file of the program exports '{name}', which is declared extern"
            note = "it may be defined in another object; the simulator links none"
            fail("csl-unsupported", f"{words}; {note}", span)
        if len(found) > 1:
            fail("csl-type", f"several files export '{name}', which is declared extern", span)
        (other,) = found
        exported = self.global_type(other) if isinstance(other, Global) else self.fn_type(other)
        if exported != declared:
            words = f"'{name}' is declared extern as '{declared}' and exported as '{exported}'"
            fail("csl-type", words, span)
        return other

    def _exported(self, name: str) -> list[Any]:
        """What files of the program export under a name."""
        named_so = (module.names.get(name) for module in self.modules)
        return [item for item in named_so if isinstance(item, Global | FnVal) and item.decl.export]

    def _import_all(self) -> None:
        """Open the files that are imported, those that nobody has asked for too."""
        for module in self.modules:
            for item in list(module.names.values()):
                if isinstance(item, Global) and not item.busy and imports_module(item.decl.init):
                    self.settle(item)

    def settle(self, item: Global) -> None:
        """Evaluate a top-level declaration once."""
        if item.value is not None:
            return
        decl = item.decl
        if item.busy:
            fail("csl-cycle", f"'{decl.name}' depends on itself", decl.span)
        item.busy = True
        try:
            self._settle(item)
        except MeshcError as problem:
            raise located(problem, decl.span) from None
        finally:
            item.busy = False

    def _settle(self, item: Global) -> None:
        decl = item.decl
        frame = Frame(item.module, True)
        if decl.type is not None:
            item.type = self.type_from(decl.type, frame)
        if decl.init is None:
            if item.type is None:
                fail("csl-type", f"'{decl.name}' needs a type or a value", decl.span)
            value = Val(item.type, zero_of(item.type))
        else:
            value = self.known(decl.init, frame, item.type)
            if item.type is not None:
                value = coerce(value, item.type, decl.span)
        item.type = value.type
        if not decl.const and item.type in (ty.COMPTIME_INT, ty.COMPTIME_FLOAT):
            fail("csl-type", f"variable '{decl.name}' needs a type", decl.span)
        if isinstance(value.v, Module) and value.v.library == "debug":
            # older programs give no key: the host reads traces by the name of the module
            value.v.bindings.setdefault("key", Val(ty.STRING, decl.name))
        item.value = Val(value.type, value.v, True)
        if decl.const and isinstance(value.type, Array | Struct):
            item.value.home = item

    def symbol(self, item: Global) -> Symbol:
        """The memory of a top-level variable, or of a constant whose address is taken."""
        if item.symbol is None:
            self.settle(item)
            assert item.value is not None
            assert item.type is not None
            decl = item.decl
            self.check_runtime_type(item.type, decl.name, decl.span)
            if ty.size_of(item.type) == 0 and item.type != ty.VOID:
                fail("csl-type", f"'{decl.name}' of type '{item.type}' has no address", decl.span)
            align = 0
            if decl.align is not None:
                align = self.number(decl.align, Frame(item.module, True))
            if isinstance(item.type, Array) and not decl.const:
                self._place_those_before(item)
            if item.symbol is None:
                item.symbol = self.memory(decl.name, item.type, item.value.v, align)
        return item.symbol

    def _place_those_before(self, item: Global) -> None:
        """Arrays lie in the order of their declarations (inferred: in published programs two
        sources meet in a bank group where they do so in that order). What nobody names is left
        out, and so is what cannot be evaluated: whoever uses it is told."""
        module = item.module
        if module.mentioned is None:
            file = module.file
            module.mentioned = named([*file.decls.values(), *file.comptime])
        for other in list(module.names.values()):
            if other is item:
                return
            if not isinstance(other, Global) or other.symbol is not None or other.busy:
                continue
            decl = other.decl
            if decl.const or decl.extern or decl.name not in module.mentioned:
                continue
            with suppress(MeshcError):
                self.settle(other)
                if isinstance(other.type, Array):
                    self.symbol(other)

    def check_runtime_type(self, kind: Type, name: str, span: Span) -> None:
        """An error for variables of types that exist at compile time only: 16-bit floats of formats
        that the program is not compiled for."""
        element = kind.element if isinstance(kind, Array) else kind
        if isinstance(element, Float) and element.bits == 16 and element != self.unit.half:
            fail(
                "csl-type",
                f"'{name}' of type '{element}' must be known at compile time; 16-bit floats at run "
                f"time are {self.unit.half} (--fp16-format)",
                span,
            )

    def slot(self, item: Global) -> int:
        """The slot of a top-level descriptor variable."""
        if item.slot < 0:
            self.settle(item)
            assert item.value is not None
            values = item.value.v if isinstance(item.value.v, list) else [item.value.v]
            item.slot = self.unit.add_slots(list(values))
        return item.slot

    def first_slot(self, value: Val) -> ir.Expr:
        """The slot of the first descriptor of ``value``; known ones get slots at first need."""
        if value.home is not None:
            return ir.Const(ty.U16, self.slot(value.home))
        if not value.known:
            code: ir.Expr = value.v
            return code
        values = value.v if isinstance(value.v, list) else [value.v]
        return ir.Const(ty.U16, self.unit.add_slots(list(values)))

    def read(self, item: Any, frame: Frame, span: Span) -> Val:
        """The value of what a name stands for."""
        match item:
            case Val():
                return item
            case Cell():
                fields = item.v.values() if item.type == ty.STRUCT else ()
                return Val(item.type, item.v, all(field.known for field in fields))
            case FnVal():
                return Val(self.fn_type_of(item), item)
            case ir.Var():
                if frame.known:
                    fail("csl-comptime", f"'{item.name}' is not known at compile time", span)
                return Val(item.type, ir.Local(item.type, item), False)
            case StackVar():
                if frame.known:
                    fail("csl-comptime", "this variable is not known at compile time", span)
                return self.load(item.type, item.addr)
            case Global():
                return self._read_global(item, frame, span)
        raise AssertionError(item)

    def fn_type_of(self, fn: FnVal) -> Type:
        """The type of a function value; generic functions get a nominal one."""
        if any(p.comptime or isinstance(p.type, t.AnyType) for p in fn.decl.params):
            return ty.Fn((), ty.ANYTYPE, fn.decl.task)
        return self.fn_type(fn)

    def _read_global(self, item: Global, frame: Frame, span: Span) -> Val:
        if item.decl.const:
            self.settle(item)
            assert item.value is not None
            return item.value
        kind = self.global_type(item)
        if kind in ty.COMPTIME_ONLY:
            assert item.value is not None
            return item.value
        if frame.known:
            name = item.decl.name
            fail("csl-comptime", f"variable '{name}' is not known at compile time", span)
        if ty.lives_in_slots(kind):
            index = ir.Const(ty.U16, self.slot(item))
            if isinstance(kind, Array):
                return Val(kind, index, False)
            return Val(kind, ir.Slot(kind, index), False)
        return self.load(kind, ir.Const(ty.U16, self.symbol(item).addr))

    def local_place(self, name: str, kind: Type, frame: Frame) -> ir.Expr:
        """The address of a new memory variable of a function."""
        self.unit.with_memory.add(frame.function)
        if frame.stack is None:
            return ir.Const(ty.U16, self.unit.place(name, kind).addr)
        offset = ty.align_up(frame.stack.size, max(2, ty.alignment(kind)))
        frame.stack.size = offset + max(ty.size_of(kind), 2)
        return offset_by(ir.Local(ty.U16, frame.stack.base), offset)

    def load(self, kind: Type, addr: ir.Expr) -> Val:
        """A run-time read from memory; arrays and structs stay where they are."""
        if isinstance(kind, Array | Struct):
            return Val(kind, addr, False)
        return Val(kind, ir.Load(kind, addr), False)
