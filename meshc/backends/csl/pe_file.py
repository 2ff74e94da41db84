"""The file of one phase: what every PE runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshc.analysis.coordinates import coordinate_values
from meshc.backends.csl.banks import shifts
from meshc.backends.csl.channels import End, Ends
from meshc.backends.csl.costs import Costs
from meshc.backends.csl.descriptors import Descriptors, element
from meshc.backends.csl.expressions import condition, expression, helpers
from meshc.backends.csl.guards import Guards
from meshc.backends.csl.kernels import Kernels
from meshc.backends.csl.names import Names, port_file
from meshc.backends.csl.program import Lowering
from meshc.backends.csl.text import wrapped
from meshc.backends.csl.timing import Timing
from meshc.ir.affine import Piecewise
from meshc.ir.module import Buffer, Module
from meshc.support.diagnostics import fail

_PAD = "    "
TASK_IDS = (24, 25, 26, *range(20, 7, -1))
MOST_TIMED_CORES = 1 << 16


@dataclass(frozen=True)
class PeFile:
    """Text of a phase's file, and what the layout and the host must know of it."""

    text: str
    guards: Guards
    ends: Ends
    symbols: dict[str, Buffer]
    scratch_bytes: int
    predicted_cycles: int | None
    tasks: dict[str, int]


def pe_file(module: Module, phase: str, arch: str) -> PeFile:
    """The program of ``module`` for ``arch``.

    Raises ``csl-kernel``, ``csl-dtype``, ``csl-view``, ``csl-extent``, ``csl-queues``,
    ``csl-tasks`` and ``csl-overlap`` for what cannot be emitted.
    """
    names = Names()
    for reserved in ("run", "my_y", "my_x"):
        names.fresh(reserved)
    guards = Guards(names)
    scalars = [guards.declare(name) for name in module.scalars]
    for buffer in module.buffers:
        names.of("buffer", buffer.value.name)
    descriptors = Descriptors(names, guards.spell, shifts(module))
    ends = Ends(module, names, descriptors, arch)
    kernels = Kernels(names, descriptors, Costs(arch), free_bytes(module))
    lowering = Lowering(module, guards, descriptors, ends, kernels)
    symbols = _symbols(module)
    tasks = _task_ids(lowering, ends, module)
    uses = [(end, guards.text(end.static_uses, f"{end.color}_used")) for end in ends.initialised()]
    body = _step(lowering)
    sections = [
        ("", _params(ends, guards)),
        ("", _modules()),
        ("Memory", _memory(module, names, symbols, kernels, descriptors.shifts)),
        ("State of the program", _state(lowering, guards, scalars, tasks)),
        ("Descriptors", descriptors.lines),
        ("Kernels", [*_registers(kernels), *kernels.functions]),
        ("The program", body),
        ("Start, and what ends of transfers do", _tasks(lowering, guards, module, scalars)),
        ("", _comptime(lowering, ends, uses, symbols, names)),
    ]
    text = _assemble(module, phase, sections)
    scratch = sum(d.bytes * n for d, n in kernels.scratch.items())
    cycles = None
    if module.the_mesh().cores <= MOST_TIMED_CORES:
        cycles = round(Timing(module, kernels, arch).cycles)
    return PeFile(text, guards, ends, symbols, scratch, cycles, tasks)


def predicted_cycles(module: Module, arch: str) -> float:
    """Cycles that the program of a tile-level module is predicted to take on the slowest core of
    ``arch``, without emitting it. Raises what cannot be emitted."""
    names = Names()
    descriptors = Descriptors(names, Guards(names).spell, shifts(module))
    kernels = Kernels(names, descriptors, Costs(arch), free_bytes(module))
    return Timing(module, kernels, arch).cycles


def free_bytes(module: Module) -> int:
    """Bytes of a core's memory that the program's buffers leave, code and stack apart."""
    total = int(module.device.get("memory_bytes", 49152))
    used = int(module.device.get("reserved_bytes", 11264))
    return total - used - sum(b.type.bytes for b in module.buffers)


def _symbols(module: Module) -> dict[str, Buffer]:
    """Buffers that the host sees, by symbol: those under ports, and state."""
    ported = {port.buffer for port in module.ports}
    found = {}
    for buffer in module.buffers:
        if buffer.value in ported:
            found[port_file(buffer.value.name)] = buffer
    return found


def _task_ids(lowering: Lowering, ends: Ends, module: Module) -> dict[str, int]:
    """Ids of local tasks: free ones that are no color in use, since WSE-2 numbers both alike."""
    colors = _colors(ends, module)
    free = [number for number in TASK_IDS if number not in colors]
    wanted = ["resume", *(name for name, _ in lowering.tasks())]
    if not lowering.transfers.suspends:
        return {}
    if len(wanted) > len(free):
        fail(
            "csl-tasks",
            f"the program needs {len(wanted)} tasks and a core has {len(free)} ids left",
            notes=("this violates R of PLMR: routing resources of a core",),
        )
    return dict(zip(wanted, free, strict=False))


def _colors(ends: Ends, module: Module) -> set[int]:
    mesh = module.the_mesh()
    found: set[int] = set()
    for end in ends.of.values():
        found |= {int(v) for v in colors_on(end.colors, mesh.rows, mesh.columns)}
    return found


def colors_on(colors: Piecewise, rows: int, columns: int) -> set[int]:
    """The colors that a function of the position takes on a mesh; colors repeat along an axis, so
    a few rows and columns show all."""
    found: set[int] = set()
    for y in {*range(min(rows, 8)), rows - 1, rows - 2} - {-1}:
        for x in {*range(min(columns, 8)), columns - 1, columns - 2} - {-1}:
            value = colors.evaluate({"y": y, "x": x, "r": 0}, default=0)
            found.add(int(value))
    return found


# --- sections


def _params(ends: Ends, guards: Guards) -> list[str]:
    lines = ["param memcpy_params: comptime_struct;"]
    if ends.of:
        lines += ["", "// Colors of this PE."]
        lines += [f"param {end.color}: color;" for end in ends.of.values()]
    if guards.params:
        lines += ["", "// What this PE takes part in."]
        lines += [
            f"param {name}: bool; // {str(cond).replace(chr(10), ' ')}"
            for cond, name in guards.params.items()
        ]
    return lines


def _modules() -> list[str]:
    return [
        'const sys = @import_module("<memcpy/memcpy>", memcpy_params);',
        'const position = @import_module("<layout>");',
        'const time = @import_module("<time>");',
    ]


def _memory(
    module: Module,
    names: Names,
    symbols: dict[str, Buffer],
    kernels: Kernels,
    shifts: dict[str, int],
) -> list[str]:
    lines = []
    for buffer in module.buffers:
        name = names.of("buffer", buffer.value.name)
        kind = buffer.type
        size = math.prod(kind.shape) + shifts.get(buffer.value.name, 0)
        shape = " x ".join(map(str, kind.shape))
        role = f", {buffer.role}" if buffer.role else ""
        role += ", one element late to use other banks" if buffer.value.name in shifts else ""
        text = f"[{size}]{element(kind.dtype)}"
        lines.append(f"var {name}: {text} align(16) = @zeros({text}); // {shape}{role}")
    lines += kernels.scratch_lines()
    for symbol, buffer in symbols.items():
        name = names.of("buffer", buffer.value.name)
        shift = shifts.get(buffer.value.name, 0)
        first = f"{name}[{shift}]" if shift else name
        lines.append(f"var {_pointer(symbol)}: [*]{buffer.type.dtype} = &{first};")
    return [
        *lines,
        "var cycles_of_run = @zeros([6]u16);",
        "var cycles_ptr: [*]u16 = &cycles_of_run;",
    ]


def _pointer(symbol: str) -> str:
    return f"{symbol}_ptr"


def _state(
    lowering: Lowering, guards: Guards, scalars: list[str], tasks: dict[str, int]
) -> list[str]:
    lines = [f"const {name}_id = @get_local_task_id({number});" for name, number in tasks.items()]
    if len(lowering.cases) > 1:
        lines.append("var pc: i16 = 0;")
    lines += [f"var {name}: i16 = 0;" for name in [*scalars, *dict.fromkeys(lowering.loops)]]
    for group in lowering.shared:
        lines.append(f"var ended_{group.number}_now: bool = false;")
        lines.append(f"var ended_{group.number}_wanted: bool = false;")
    lines += [f"var {guards.spell(name)}: i16 = 0;" for name in guards.coordinates]
    return lines


def _registers(kernels: Kernels) -> list[str]:
    if not kernels.uses_registers:
        return []
    return [
        "const sum_to = @get_dsr(dsr_dest, 1);",
        "const sum_from = @get_dsr(dsr_src0, 1);",
        "const rows = @get_dsr(dsr_src1, 1);",
    ]


def _step(lowering: Lowering) -> list[str]:
    finish = [
        "time.get_timestamp(@ptrcast(*[3]u16, &cycles_of_run[3]));",
        "sys.unblock_cmd_stream();",
    ]
    cases = lowering.cases
    if len(cases) == 1:
        return _function("step", "", [*cases[0].lines, *finish])
    lines = ["while (true) {", f"{_PAD}switch (pc) {{"]
    for number, case in enumerate(cases):
        last = number == len(cases) - 1
        inner = [*case.lines, *(["pc = 0;", *finish, "return;"] if last else [])]
        label = "else" if last else str(number)
        lines.append(f"{2 * _PAD}{label} => {{ // {case.comment}")
        lines += [3 * _PAD + line for line in inner]
        lines.append(f"{2 * _PAD}}},")
    return _function("step", "", [*lines, f"{_PAD}}}", "}"])


def _tasks(lowering: Lowering, guards: Guards, module: Module, scalars: list[str]) -> list[str]:
    lines: list[str] = []
    if lowering.transfers.suspends:
        for name, body in lowering.tasks():
            lines += [f"task {name}() void {{", *(_PAD + line for line in body), "}", ""]
        lines += ["task resume() void {", f"{_PAD}@block(resume_id);", f"{_PAD}step();", "}", ""]
    start = _coordinates(guards, module)
    start += [f"{name} = given_{name};" for name in scalars]
    start += ["time.enable_tsc();", "time.get_timestamp(@ptrcast(*[3]u16, &cycles_of_run[0]));"]
    params = ", ".join(f"given_{name}: i16" for name in scalars)
    return [*lines, *_function("run", params, [*start, "step();"])]


def _coordinates(guards: Guards, module: Module) -> list[str]:
    """Set the coordinates that run-time code uses."""
    if not guards.coordinates:
        return []
    lines = [
        "const my_y = @as(i16, position.get_y_coord());",
        "const my_x = @as(i16, position.get_x_coord());",
    ]
    values = coordinate_values(module.the_mesh())
    for name in guards.coordinates:
        target = guards.spell(name)
        pieces = values[name].pieces
        for number, (cond, value) in enumerate(pieces):
            text = f"{target} = {expression(value, _own)};"
            if cond.is_true:
                lines.append(f"else {{ {text} }}" if number else text)
            else:
                head = "else if" if number else "if"
                lines.append(f"{head} ({condition(cond, _own)}) {{ {text} }}")
    return lines


def _own(name: str) -> str:
    return f"my_{name}"


def _comptime(
    lowering: Lowering,
    ends: Ends,
    uses: list[tuple[End, str]],
    symbols: dict[str, Buffer],
    names: Names,
) -> list[str]:
    lines = ["comptime {"]
    for end, test in uses:
        side = "output" if end.verb == "send" else "input"
        text = f"@initialize_queue(@get_{side}_queue({end.queue}), .{{ .color = {end.color} }});"
        lines.append(f"{_PAD}{text}" if test == "true" else f"{_PAD}if ({test}) {{ {text} }}")
    if lowering.transfers.suspends:
        tasks = ["resume", *(name for name, _ in lowering.tasks())]
        lines += [f"{_PAD}@bind_local_task({name}, {name}_id);" for name in tasks]
        lines += [f"{_PAD}@block({name}_id);" for name in lowering.blocked()]
    for symbol in symbols:
        lines.append(f'{_PAD}@export_symbol({_pointer(symbol)}, "{symbol}");')
    lines.append(f'{_PAD}@export_symbol(cycles_ptr, "cycles_of_run");')
    return [*lines, f"{_PAD}@export_symbol(run);", "}"]


def _function(name: str, params: str, body: list[str]) -> list[str]:
    return [f"fn {name}({params}) void {{", *(_PAD + line for line in body), "}"]


def _assemble(module: Module, phase: str, sections: list[tuple[str, list[str]]]) -> str:
    mesh = module.the_mesh()
    size = f"{mesh.columns} x {mesh.rows}"
    lines = [
        f"// Phase {phase} of {plain(module.name)}: what each of {size} PEs runs.",
        "// Written by meshc. Transfers run beside the kernels; step() returns where it must wait",
        "// for one, and the last end of what it waits for runs resume.",
    ]
    code = [line for _, part in sections for line in part]
    found = helpers(code)
    if found:
        sections = [*sections[:2], ("Integer division that rounds down", found), *sections[2:]]
    for title, part in sections:
        if not part:
            continue
        rule = f"// ---- {title} ".ljust(90, "-") if title else ""
        lines += ["", *([rule] if rule else []), *part]
    return "\n".join(piece for line in lines for piece in wrapped(line)) + "\n"


def plain(text: str) -> str:
    """``text`` with what could end a comment left out."""
    return "".join(c for c in text if c.isascii() and c.isprintable())
