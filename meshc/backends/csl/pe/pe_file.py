"""The file of one phase: what every PE runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from meshc.analysis.csl import resources
from meshc.analysis.csl.banks import shifts
from meshc.analysis.csl.costs import Costs
from meshc.analysis.csl.memory import wrong_memory
from meshc.analysis.csl.registers import wrong_register
from meshc.analysis.csl.rounds import told_once
from meshc.analysis.csl.tasks import wrong_task
from meshc.analysis.csl.words import (
    STAMPS,
    TABLE_BYTES,
    WORD_BYTES,
    known_at_start,
    wrong_words,
)
from meshc.analysis.layout.coordinates import coordinate_values
from meshc.analysis.proofs.bounds import largest
from meshc.backends.csl.fabric.channels import Ends
from meshc.backends.csl.kernels.expressible import check_expressible
from meshc.backends.csl.kernels.extents import check_extents, kept_parts
from meshc.backends.csl.kernels.table import Kernels
from meshc.backends.csl.pe.buffers import Buffers, buffers_of
from meshc.backends.csl.pe.code_size import code_size
from meshc.backends.csl.pe.core_memory import CoreMemory
from meshc.backends.csl.pe.program import Case, Lowering, Task
from meshc.backends.csl.spelling.descriptors import Descriptors, stored
from meshc.backends.csl.spelling.expressions import Spelling, condition, expression, helpers
from meshc.backends.csl.spelling.guards import Guards
from meshc.backends.csl.spelling.lines import wrapped
from meshc.backends.csl.spelling.names import Names, of_rounds, plain, scalar_name
from meshc.backends.csl.spelling.storage import Variable, bytes_by_use, word
from meshc.backends.csl.timing.breakdown import Prediction, prediction
from meshc.backends.csl.timing.cases import Cases, together
from meshc.devices.csl import Targets
from meshc.ir.affine import Expr
from meshc.ir.module import Buffer, Module
from meshc.ir.ops.tile import scalars_of_rounds
from meshc.ir.phases import PHASE, guards_of_phases, phases_of
from meshc.support.diagnostics import fail

_PAD = "    "
_RUN = "run"


@dataclass(frozen=True)
class PeFile:
    """Text of a phase's file, and what the layout and the host must know of it: ``launched`` are
    the functions that the host launches, each with the scalars that it is given, and
    ``predicted`` the cycles of each."""

    text: str
    guards: Guards
    ends: Ends
    symbols: dict[str, Buffer]
    memory: CoreMemory
    predicted: dict[str, Prediction]
    tasks: dict[str, int]
    launched: dict[str, tuple[str, ...]]


def pe_file(
    module: Module,
    phase: str,
    targets: Targets,
    shared: bool = True,
    grouped: bool = True,
    direct: bool = True,
    timed: bool = True,
) -> PeFile:
    """The program of ``module`` for ``targets``, with kernels that are fastest on its own device;
    what several places of it do is a function, unless nothing is ``shared``; many cases are found
    by their group, unless they are not ``grouped``, and the last wait of a loop's round leads
    ``direct`` to the next one. Cycles are predicted where it is ``timed``.

    Raises ``csl-view``, ``csl-extent``, ``csl-unassigned`` and ``csl-overlap`` for what cannot be
    emitted; whether a core has the memory is for the caller to check.
    """
    names = Names()
    entries = [_Entry(names.fresh(p.name), p.scalars, p.number) for p in phases_of(module)]
    entries = entries or [_Entry(_RUN, tuple(told_once(module)))]
    guards = Guards(module.the_mesh(), names, most=largest(module))
    for name in scalars_of_rounds(module):
        names.fresh(of_rounds(name))
    scalars = {name: guards.declare(scalar_name(name)) for name in module.scalars}
    guards.kept = kept_parts(module, names)
    for buffer in module.buffers:
        names.of("buffer", buffer.value.name)
    buffers = buffers_of(module, names)
    descriptors = Descriptors(names, guards.spelling, buffers.shifts, buffers.homes)
    ends = Ends(module, names, descriptors, targets)
    kernels = _kernels(module, names, descriptors)
    _check_registers(module)
    lowering = Lowering(module, guards, descriptors, ends, kernels, shared, direct)
    symbols = _symbols(module, names)
    tasks = _task_ids(module, targets)
    bodies = lowering.tasks()  # which name what guards of bindings are named after
    bindings = ends.bindings(lambda end: guards.text(end.static_uses, f"{end.color}_used"))
    _check_memory(module, kernels)
    memory = _memory(module, buffers, symbols, kernels)
    state = _state(lowering, guards, [*scalars.values()])
    body = _step(lowering, grouped)
    ends_of_transfers = _tasks(lowering, bodies, guards, module, entries)
    sections = [
        ("", _params(ends, guards)),
        ("", _modules(guards, kernels)),
        ("", _queues(ends)),
        ("Memory", [each.line for each in memory]),
        ("State of the program", [*_ids(tasks), *(each.line for each in state)]),
        ("Descriptors", descriptors.lines),
        ("Kernels", [*kernels.code.registers.lines, *kernels.code.functions]),
        ("What the program does in several places", lowering.functions[1:]),
        ("The program", body),
        ("Start, and what ends of transfers do", ends_of_transfers),
        ("", _comptime(lowering, bindings, symbols, module, entries)),
    ]
    text = _assemble(module, phase, sections, helpers(guards.helpers))
    device = module.the_device()
    code = [*kernels.code.functions, *lowering.functions, *body, *ends_of_transfers]
    taken = CoreMemory(
        device.whole("memory_bytes"),
        (*memory, *state, *kernels.code.variables, *descriptors.tables),
        code_size([*helpers(guards.helpers), *code], device),
    )
    _check_words(module, taken.variables)
    predicted: dict[str, Prediction] = {}
    if timed:
        cases = Cases(module, lowering.transfers, grouped, direct)
        for entry in entries:
            predicted[entry.name] = prediction(module, kernels, cases, lowering.runs, entry.told)
    launched = {entry.name: entry.scalars for entry in entries}
    return PeFile(text, guards, ends, symbols, taken, predicted, tasks, launched)


@dataclass(frozen=True)
class _Entry:
    """A function that the host launches: its name, the scalars of the run that it is given, and the
    number of its phase in a program of several."""

    name: str
    scalars: tuple[str, ...]
    phase: int | None = None

    @property
    def told(self) -> dict[str, int]:
        """What is known of a run that it begins."""
        return {} if self.phase is None else {PHASE: self.phase}


def check_kernels(module: Module) -> None:
    """Raise every ``csl-kernel`` and ``csl-dtype`` of a program, and its first ``csl-extent``."""
    check_expressible(module, kernels_of(module).known)
    check_extents(module)


def kernels_of(module: Module) -> Kernels:
    """Writers of a program's kernels, apart from a program."""
    names = Names()
    descriptors = Descriptors(names, Guards(module.the_mesh(), names).spelling, shifts(module))
    return _kernels(module, names, descriptors)


def _kernels(module: Module, names: Names, descriptors: Descriptors) -> Kernels:
    """What writes the kernels of ``module``."""
    costs = Costs(module.the_device(), descriptors.shifts)
    given = known_at_start(module), scalars_of_rounds(module), guards_of_phases(module)
    return Kernels(names, descriptors, costs, *given)


def _symbols(module: Module, names: Names) -> dict[str, Buffer]:
    """Buffers that the host sees, by symbol: those under ports, and state."""
    ported = {port.buffer for port in module.ports}
    return {
        names.of("buffer", buffer.value.name): buffer
        for buffer in module.buffers
        if buffer.value in ported or buffer.role == "state"
    }


def _task_ids(module: Module, targets: Targets) -> dict[str, int]:
    """The ids that the module says for its local tasks. Raises ``csl-unassigned``."""
    wrong = wrong_task(module, targets)
    if wrong is not None:
        fail(
            "csl-unassigned",
            f"the program does not say which ids its tasks take: {wrong}",
            help="run the pass assign-csl-tasks, for --portable with {portable=true}",
        )
    return resources.tasks(module)


def _check_registers(module: Module) -> None:
    """Products say registers that hold no other row. Raises ``csl-unassigned``."""
    wrong = wrong_register(module)
    if wrong is not None:
        fail(
            "csl-unassigned",
            f"the program does not say which descriptor registers it takes: {wrong}",
            help="run the pass assign-csl-registers",
        )


def _check_memory(module: Module, kernels: Kernels) -> None:
    """The module says memory for its buffers, and the scratch that was written. Raises
    ``csl-unassigned``."""
    wrong = wrong_memory(module)
    for name, elements in kernels.code.needed().items():
        if wrong is None and elements > resources.scratch(module).get(name, 0):
            wrong = f"kernels take {elements} elements of scratch '{name}'"
    if wrong is not None:
        fail(
            "csl-unassigned",
            f"the program does not say which memory it takes: {wrong}",
            help="run the pass plan-csl-memory",
        )


def _check_words(module: Module, variables: Collection[Variable]) -> None:
    """The module says the tables and the words that were written. Raises ``csl-unassigned``."""
    wrong = wrong_words(module)
    planned = {use: TABLE_BYTES * count for use, count in resources.tables(module).items()}
    planned |= {use: WORD_BYTES * count for use, count in resources.words(module).items()}
    for use, size in bytes_by_use(variables).items():
        if wrong is None and size > planned.get(use, 0):
            wrong = f"it has {size} bytes of '{use}', and {planned.get(use, 0)} are planned"
    if wrong is not None:
        fail(
            "csl-unassigned",
            f"the program does not say which tables and words it takes: {wrong}",
            help="run the pass plan-csl-words",
        )


# --- sections


def _params(ends: Ends, guards: Guards) -> list[str]:
    lines = ["param memcpy_params: comptime_struct;"]
    if ends.of:
        lines += ["", "// Colors of this PE."]
        lines += [f"param {end.color}: color;" for end in ends.of.values()]
    if guards.mesh.outer in guards.coordinates:
        lines += ["", f"param {guards.spell(guards.mesh.outer)}: i16; // The region of this PE."]
    if guards.params:
        lines += ["", "// What this PE takes part in."]
        lines += [
            f"param {name}: bool; // {str(cond).replace(chr(10), ' ')}"
            for cond, name in guards.params.items()
        ]
    return lines


def _queues(ends: Ends) -> list[str]:
    if not ends.of:
        return []
    return ["// A transfer runs on the microthread with the number of its queue.", *ends.queues()]


def _modules(guards: Guards, kernels: Kernels) -> list[str]:
    position = ['const position = @import_module("<layout>");'] if guards.coordinates else []
    return [
        'const sys = @import_module("<memcpy/memcpy>", memcpy_params);',
        *position,
        'const time = @import_module("<time>");',
        *(['const math = @import_module("<math>");'] if kernels.code.uses_math else []),
    ]


def _memory(
    module: Module,
    buffers: Buffers,
    symbols: dict[str, Buffer],
    kernels: Kernels,
) -> list[Variable]:
    """Arrays, and pointers to those that the host sees."""
    found = [*buffers.variables(), *kernels.code.shared_variables(resources.scratch(module))]
    for symbol, buffer in symbols.items():
        name, shift = kernels.descriptors.place(buffer.value.name)
        first = f"{name}[{shift}]" if shift else name
        kind = f"[*]{stored(buffer.type.dtype)}"
        found.append(word(_pointer(symbol), kind, f"&{first}", "pointers"))
    for scalar, count in scalars_of_rounds(module).items():
        name = of_rounds(scalar)
        line = f"var {name} = @zeros([{count}]i16); // Of each round."
        found.append(Variable("variable", count * WORD_BYTES, line, "rounds"))
        found.append(word(_pointer(name), "[*]i16", f"&{name}", "pointers"))
    line = f"var cycles_of_run = @zeros([{STAMPS}]u16);"
    stamps = Variable("variable", STAMPS * WORD_BYTES, line, "stamps")
    return [*found, stamps, word("cycles_ptr", "[*]u16", "&cycles_of_run", "pointers")]


def _pointer(symbol: str) -> str:
    return f"{symbol}_ptr"


def _ids(tasks: dict[str, int]) -> list[str]:
    return [f"const {name}_id = @get_local_task_id({number});" for name, number in tasks.items()]


def _state(lowering: Lowering, guards: Guards, scalars: list[str]) -> list[Variable]:
    """What a program keeps from task to task."""
    counters = {
        "pc": ["pc"] if len(lowering.cases) > 1 else [],
        "scalars": scalars,
        "kept": guards.kept.values(),
        "loops": dict.fromkeys(lowering.loops),
        "sent": lowering.counters.values(),
    }
    found = [word(name, "i16", "0", use) for use, names in counters.items() for name in names]
    for group in lowering.shared:
        found.append(word(f"ended_{group.number}_now", "bool", "false", "flags"))
        found.append(word(f"ended_{group.number}_wanted", "bool", "false", "flags"))
    here = [guards.spell(name) for name in guards.coordinates if name != guards.mesh.outer]
    return [*found, *(word(name, "i16", "0", "coordinates") for name in here)]


def _step(lowering: Lowering, grouped: bool) -> list[str]:
    finish = [
        "time.get_timestamp(@ptrcast(*[3]u16, &cycles_of_run[3]));",
        "sys.unblock_cmd_stream();",
    ]
    cases = lowering.cases
    if len(cases) == 1:
        return _function("step", "", [*cases[0].lines, *finish])
    cases[-1].lines += ["pc = 0;", *finish, "return;"]
    each = together(len(cases), grouped)
    lines: list[str] = []
    for first in range(0, len(cases), each):
        switch = _switch(cases[first : first + each], first)
        if each == len(cases):
            lines += switch
            continue
        behind = first + each
        test = f"if (pc < {behind}) {{" if behind < len(cases) else "{"
        lines += [f"}} else {test}" if first else test, *(_PAD + line for line in switch)]
    lines += ["}"] if each < len(cases) else []
    return _function("step", "", ["while (true) {", *(_PAD + line for line in lines), "}"])


def _switch(cases: list[Case], first: int) -> list[str]:
    """A switch over cases, of which the first has the number ``first``."""
    lines = ["switch (pc) {"]
    for number, case in enumerate(cases, first):
        label = "else" if case is cases[-1] else str(number)
        lines.append(f"{_PAD}{label} => {{ // {case.comment}")
        lines += [2 * _PAD + line for line in case.lines]
        lines.append(f"{_PAD}}},")
    return [*lines, "}"]


def _tasks(
    lowering: Lowering, bodies: list[Task], guards: Guards, module: Module, entries: list[_Entry]
) -> list[str]:
    lines: list[str] = []
    if lowering.transfers.suspends:
        for task in bodies:
            lines += [f"task {task.name}() void {{", *(_PAD + line for line in task.body), "}", ""]
        lines += ["task resume() void {", f"{_PAD}@block(resume_id);", f"{_PAD}step();", "}", ""]
    start = _coordinates(guards, module)
    plain_spelling = Spelling(guards.spell, guards.most, guards.helpers)
    kept = [
        f"{name} = {expression(Expr(((atom, 1),)), plain_spelling)};"
        for atom, name in guards.kept.items()
    ]
    kept += ["time.enable_tsc();", "time.get_timestamp(@ptrcast(*[3]u16, &cycles_of_run[0]));"]
    for each in lowering.kernels.rotary.at_start.values():
        test = None if each.when is None else guards.text(each.when, "phase_here")
        kept.append(each.line if test is None else f"if ({test}) {{ {each.line} }}")
    kept.append("step();")
    if entries[0].phase is None:
        return [*lines, *_entry(entries[0], guards, start, kept)]
    lines += _function("start", "", [*start, *kept])
    for entry in entries:
        lines += ["", *_entry(entry, guards, [f"{PHASE} = {entry.phase};"], ["start();"])]
    return lines


def _entry(entry: _Entry, guards: Guards, before: list[str], behind: list[str]) -> list[str]:
    """A function that the host launches, which takes the scalars of a run."""
    names = [guards.spell(scalar_name(name)) for name in entry.scalars]
    taken = [f"{name} = given_{name};" for name in names]
    params = ", ".join(f"given_{name}: i16" for name in names)
    return _function(entry.name, params, [*before, *taken, *behind])


def _coordinates(guards: Guards, module: Module) -> list[str]:
    """Set the coordinates that run-time code uses."""
    mesh = module.the_mesh()
    values = coordinate_values(mesh)
    needed = {n for name in guards.coordinates for n in values[name].free_vars}
    own = Spelling(lambda name: f"my_{name}", helpers=guards.helpers)
    lines = []
    for axis, place in zip(mesh.plane, ("get_y_coord", "get_x_coord"), strict=True):
        if axis in needed:
            declared = "" if axis in guards.coordinates else "const "
            inside = f" % {mesh.size(axis)}" if mesh.regions > 1 else ""
            lines.append(f"{declared}{own(axis)} = @as(i16, position.{place}()){inside};")
    for name in guards.coordinates:
        if name in mesh.names:
            continue
        target = guards.spell(name)
        for number, (cond, value) in enumerate(values[name].pieces):
            text = f"{target} = {expression(value, own)};"
            if cond.is_true:
                lines.append(f"else {{ {text} }}" if number else text)
            else:
                head = "else if" if number else "if"
                lines.append(f"{head} ({condition(cond, own)}) {{ {text} }}")
    return lines


def _comptime(
    lowering: Lowering,
    bindings: list[str],
    symbols: dict[str, Buffer],
    module: Module,
    entries: list[_Entry],
) -> list[str]:
    inner = [*bindings, *lowering.kernels.code.registers.loads]
    lines = ["comptime {", *(_PAD + line for line in inner)]
    if lowering.transfers.suspends:
        tasks = ["resume", *(task.name for task in lowering.tasks())]
        lines += [f"{_PAD}@bind_local_task({name}, {name}_id);" for name in tasks]
        lines += [f"{_PAD}@block({name}_id);" for name in lowering.blocked()]
    for symbol in [*symbols, *map(of_rounds, scalars_of_rounds(module))]:
        lines.append(f'{_PAD}@export_symbol({_pointer(symbol)}, "{symbol}");')
    lines.append(f'{_PAD}@export_symbol(cycles_ptr, "cycles_of_run");')
    return [*lines, *(f"{_PAD}@export_symbol({entry.name});" for entry in entries), "}"]


def _function(name: str, params: str, body: list[str]) -> list[str]:
    return [f"fn {name}({params}) void {{", *(_PAD + line for line in body), "}"]


def _assemble(
    module: Module, phase: str, sections: list[tuple[str, list[str]]], divisions: list[str]
) -> str:
    mesh = module.the_mesh()
    size = f"{mesh.columns} x {mesh.rows}"
    if mesh.regions > 1:
        size = f"{mesh.regions} x {size}"
    lines = [
        f"// Phase {phase} of {plain(module.name)}: what each of {size} PEs runs.",
        "// Written by meshc. Transfers run beside the kernels; step() returns where it must wait",
        "// for one, and the last end of what it waits for runs resume.",
    ]
    sections = [*sections[:3], ("Integer division that rounds down", divisions), *sections[3:]]
    for title, part in sections:
        if not part:
            continue
        rule = f"// ---- {title} ".ljust(90, "-") if title else ""
        lines += ["", *([rule] if rule else []), *part]
    return "\n".join(piece for line in lines for piece in wrapped(line)) + "\n"
