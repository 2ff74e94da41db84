"""The compiler driver: layout first, then each distinct PE program, then the whole program."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshc.sim import ir
from meshc.sim.csl_files import Loader
from meshc.sim.grids import Tiles
from meshc.sim.program import PeProgram, PeSymbol, Program
from meshc.sim.recursion import entered_again
from meshc.sim.route_configs import ColorConfig
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.builtins import (  # noqa: F401  (they fill the table of builtins)
    comptime_mathematics,
    dsds,
    ids,
    layout,
    tasks,
    values,
    vector_builtins,
)
from meshc.sim.sema.csl_types import Float
from meshc.sim.sema.frozen import frozen
from meshc.sim.sema.images import bytes_of
from meshc.sim.sema.rectangle import LayoutInfo, TileCode
from meshc.sim.sema.registry import Analyzer
from meshc.sim.sema.tree_walks import imports_module
from meshc.sim.sema.unit import MEMORY_BYTES, Export, Unit
from meshc.sim.sema.values import FnVal, Frame, Global, Module, Symbol, Val
from meshc.sim.sinking import sink
from meshc.support.diagnostics import Diagnostics, MeshcError, fail

STACK_BYTES = 8 * 1024


class PeAnalyzer(Analyzer):
    """Analyses one PE program; collects the errors of different declarations."""

    def __init__(self, loader: Loader, unit: Unit, rectangle: LayoutInfo | None) -> None:
        super().__init__(loader, unit)
        self.rectangle = rectangle
        self.found = Diagnostics()

    def problems(self, problem: MeshcError) -> None:
        """Keep errors and go on, unless the code is too long, or runs too long, to go on."""
        for diagnostic in problem.diagnostics:
            self.found.add(diagnostic)
        if self.exhausted or not self.unit.code_fits:
            self.found.raise_errors()

    def run(self, path: str, folder: str, bindings: dict[str, Val]) -> None:
        """Analyse the whole program. Raises MeshcError with all errors found."""
        try:
            self.open_module(path, folder, bindings, None)
        except MeshcError as problem:
            self.problems(problem)
        position = 0
        while position < len(self.modules):
            self._top_level(self.modules[position])
            position += 1
        for fn in self._entry_points():
            try:
                self.instance(fn, (), fn.decl.span)
            except MeshcError as problem:
                self.problems(problem)
        self.found.raise_errors()

    def _top_level(self, module: Module) -> None:
        """Imports, exported variables and comptime blocks of one module."""
        for item in list(module.names.values()):
            if isinstance(item, Global) and (imports_module(item.decl.init) or item.decl.export):
                self._guard(self._touch, item)
        for block in module.file.comptime:
            self._guard(self.exec_block, block.body, Frame(module, True))

    def _touch(self, item: Global) -> None:
        self.settle(item)
        if item.decl.export and not item.decl.const:
            symbol = self.symbol(item)
            unit_export = Export(item.decl.name, "data", symbol.type, symbol.addr)
            if item.decl.name not in self.unit.exports:
                self.unit.exports[item.decl.name] = unit_export
                self.unit.export_variables.add(item.decl.name)

    def _guard(self, action: Any, *args: Any) -> None:
        try:
            action(*args)
        except MeshcError as problem:
            self.problems(problem)

    def _entry_points(self) -> list[FnVal]:
        unit = self.unit
        tables = (unit.data_tasks, unit.local_tasks, unit.control_tasks, unit.teardown,
                  unit.empty_handlers)  # fmt: skip
        return [fn for table in tables for fn in table.values()]


def run_layout(
    path: str, loader: Loader, arch: str, params: dict[str, Val], info: LayoutInfo
) -> Module:
    """Run the layout block of ``path``; results are in ``info``. Raises MeshcError."""
    analyzer = Analyzer(loader, Unit(arch, "layout"))
    analyzer.layout = info
    module = analyzer.open_module(os.path.basename(path), loader.root, params, None)
    if module.file.layout is None:
        fail("csl-layout", f"'{path}' has no layout block")
    info.file = os.path.basename(path)
    for name in params:
        if all(p.name != name for p in module.file.params):
            fail("csl-unknown-name", f"'{path}' has no parameter '{name}'")
    analyzer.exec_block(module.file.layout.body, Frame(module, True, in_layout=True))
    if not info.width:
        fail("csl-layout", "the layout block has no @set_rectangle", module.file.layout.span)
    return module


def compile_program(
    path: str,
    arch: str,
    params: dict[str, int],
    colors: dict[str, int],
    fabric: tuple[int, int],
    offsets: tuple[int, int],
    import_paths: Sequence[str] = (),
    half: Float = ty.F16,
) -> Program:
    """Compile the program whose layout file is ``path``; ``half`` is the format of 16-bit floats at
    run time. Raises MeshcError with all errors."""
    folder = os.path.dirname(os.path.abspath(path))
    loader = Loader(folder, import_paths)
    values_ = {name: Val(ty.COMPTIME_INT, value) for name, value in params.items()}
    values_ |= {name: Val(ty.COLOR, value) for name, value in colors.items()}
    info = LayoutInfo(fabric=fabric, offsets=offsets)
    run_layout(path, loader, arch, values_, info)
    classes, tiles = _compile_classes(loader, arch, info, half)
    shown = {**{k: str(v) for k, v in params.items()}, **{k: str(v) for k, v in colors.items()}}
    return Program(
        arch, info.width, info.height, fabric, offsets, classes, tiles, info.routes,
        list(info.exports), shown,
    )  # fmt: skip


def _compile_classes(
    loader: Loader, arch: str, info: LayoutInfo, half: Float
) -> tuple[list[PeProgram], Tiles]:
    """Each distinct PE program, in the order of the first PEs that run it, row by row.

    PEs of one file share a program when they agree in the parameters that this program reads.
    """
    classes: list[PeProgram] = []
    known: dict[Any, int] = {}
    reads_of: dict[str, list[tuple[str, ...]]] = {}
    class_of = np.full(len(info.codes) + 1, -1, np.int32)
    used, first = np.unique(info.code_at, return_index=True)
    for number in used[np.argsort(first)].tolist():
        if number == 0:
            continue
        code = info.codes[number - 1]
        reads = reads_of.setdefault(code.path, [])
        keys = (_read_key(code, names) for names in reads)
        found = next((known[key] for key in keys if key in known), None)
        if found is None:
            loader.load(code.path, loader.root, code.span)
            program, names = _compiled(loader, arch, code.path, code.params, info, half)
            found = len(classes)
            classes.append(program)
            known[_read_key(code, names)] = found
            if names not in reads:
                reads.append(names)
        class_of[number] = found
    return classes, Tiles(class_of[info.code_at])


def _read_key(code: TileCode, names: tuple[str, ...]) -> Any:
    return code.path, names, frozen([code.params.get(name) for name in names])


def compile_pe(
    loader: Loader, arch: str, file: str, bindings: dict[str, Val], info: LayoutInfo | None,
    half: Float = ty.F16,
) -> PeProgram:  # fmt: skip
    """Compile one PE program. Raises MeshcError, also when memory is over-full."""
    return _compiled(loader, arch, file, bindings, info, half)[0]


def _compiled(
    loader: Loader,
    arch: str,
    file: str,
    bindings: dict[str, Val],
    info: LayoutInfo | None,
    half: Float = ty.F16,
) -> tuple[PeProgram, tuple[str, ...]]:
    """A PE program, and the parameters of its file that it depends on."""
    unit, names = _analysed(loader, Unit(arch, file, half), file, bindings, info)
    recursive = entered_again(list(unit.functions.values())) & unit.with_memory
    if recursive:
        again = Unit(arch, file, half, recursive=frozenset(recursive))
        unit, names = _analysed(loader, again, file, bindings, info)
        unit.place_stack(min(STACK_BYTES, MEMORY_BYTES - unit.used))
    _check_memory(unit)
    return finish(unit), names


def _analysed(
    loader: Loader, unit: Unit, file: str, bindings: dict[str, Val], info: LayoutInfo | None
) -> tuple[Unit, tuple[str, ...]]:
    analyzer = PeAnalyzer(loader, unit, info)
    analyzer.run(file, loader.root, bindings)
    main = analyzer.modules[0]
    return unit, tuple(p.name for p in main.file.params if p.name in main.names)


def _check_memory(unit: Unit) -> None:
    if unit.used <= MEMORY_BYTES:
        return
    largest = sorted(unit.symbols, key=lambda s: -s.size)[:8]
    fail(
        "csl-memory",
        f"'{unit.name}' needs {unit.used} bytes of data, {unit.used - MEMORY_BYTES} more than the "
        f"{MEMORY_BYTES} bytes of a PE",
        notes=[f"'{s.name}' takes {s.size} bytes ({s.type})" for s in largest],
    )


def finish(unit: Unit) -> PeProgram:
    """The finished program of an analysed unit."""

    def names(table: dict[int, FnVal]) -> dict[int, str]:
        return {
            n: unit.instances[(fn.module.number, fn.name, (None,) * len(fn.decl.params))].name
            for n, fn in table.items()
        }

    def gates(entries: list[tuple[str, Any]]) -> list[tuple[str, int]]:
        return [_resolve(unit, kind, value) for kind, value in entries]

    controls = names(unit.control_tasks)
    if unit.one_task_table:
        controls = {**names(unit.data_tasks), **controls}
    configs: dict[int, ColorConfig] = dict(unit.color_configs)
    program = PeProgram(
        unit.name,
        unit.arch,
        unit.end,
        [PeSymbol(s.name, s.addr, s.size) for s in unit.symbols],
        [(s.addr, data) for s in unit.symbols if (data := image_of(s, list(unit.functions)))],
        unit.slots,
        list(unit.functions.values()),
        names(unit.data_tasks),
        names(unit.local_tasks),
        controls,
        names(unit.teardown),
        names(unit.empty_handlers),
        dict(unit.in_queues),
        dict(unit.out_queues),
        gates(unit.activated),
        gates(unit.blocked),
        gates(unit.unblocked),
        unit.exports,
        unit.dsr_loads,
        configs,
        unit.local_settings,
        unit.fifos,
        unit.strings,
        unit.trace_buffers,
        unit.memcpy_ports,
    )
    resolver = _TaskResolver(unit)
    for function in program.functions:
        resolver.block(function.body)
        sink(function)
    for load in program.dsr_loads:
        resolver.visit(load)
    return program


def _resolve(unit: Unit, kind: str, value: Any) -> tuple[str, int]:
    if kind == "task":
        bound = unit.task_ids.get((value.module.number, value.name))
        if bound is None:
            fail("csl-task", f"task '{value.name}' is never bound to an id", value.decl.span)
        if bound[0] == "data":
            return ("color" if unit.arch == "wse2" else "queue", bound[1])
        return bound
    return kind, int(value)


class _TaskResolver:
    """Replaces task names in lowered code by the ids they are bound to."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit

    def block(self, body: list[ir.Stmt]) -> None:
        """All statements of a list, and those inside of them."""
        for stmt in body:
            self.visit(stmt)

    def visit(self, stmt: ir.Stmt) -> None:
        """One statement."""
        match stmt:
            case ir.If():
                self.block(stmt.then)
                self.block(stmt.other)
            case ir.Loop():
                self.block(stmt.head)
                self.block(stmt.body)
                self.block(stmt.step)
            case ir.Effect() if stmt.name.endswith("_task") and stmt.args:
                kind, code = self._id(stmt.args[0])
                stmt.name = stmt.name[: -len("task")] + kind
                stmt.args = [code]
            case ir.VectorOp() | ir.LoadDsr():
                self._options(stmt.options)

    def _options(self, options: ir.OpOptions) -> None:
        if isinstance(options.activate, ir.TaskId):
            options.activate = self._id(options.activate)[1]
        if isinstance(options.on_control_activate, ir.TaskId):
            options.on_control_activate = self._id(options.on_control_activate)[1]
        if options.unblock is not None and isinstance(options.unblock[1], ir.TaskId):
            options.unblock = self._id(options.unblock[1])
        if options.on_control_unblock and isinstance(options.on_control_unblock[1], ir.TaskId):
            options.on_control_unblock = self._id(options.on_control_unblock[1])

    def _id(self, code: ir.Expr) -> tuple[str, ir.Expr]:
        assert isinstance(code, ir.TaskId)
        kind, number = _resolve(self.unit, "task", code.task)
        return kind, ir.Const(ty.U16, number)


def image_of(symbol: Symbol, functions: list[str]) -> bytes:
    """The initial bytes of a symbol; empty for all zeros.

    A pointer to a function is its place among the functions, counted from 1.
    """
    if symbol.init is None:
        return b""
    data = bytes_of(symbol.type, symbol.init, functions)
    return data if any(data) else b""
