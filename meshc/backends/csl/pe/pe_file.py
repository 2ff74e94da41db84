"""The file of one phase: what every PE runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from meshc.analysis.csl import resources
from meshc.analysis.csl.banks import shifts
from meshc.analysis.csl.instruction_costs import Costs
from meshc.analysis.csl.memory import wrong_memory
from meshc.analysis.csl.request_rounds import told_once
from meshc.analysis.csl.sum_registers import wrong_register
from meshc.analysis.csl.tasks import wrong_task
from meshc.analysis.csl.words import (
    STAMPS,
    TABLE_BYTES,
    WORD_BYTES,
    known_at_start,
    wrong_words,
)
from meshc.analysis.layout.coordinates import coordinate_values
from meshc.analysis.proofs.name_bounds import largest
from meshc.backends.csl.fabric.channels import Ends
from meshc.backends.csl.kernels.expressible import check_expressible
from meshc.backends.csl.kernels.extents import check_extents, kept_parts
from meshc.backends.csl.kernels.table import Kernels
from meshc.backends.csl.pe.buffers import Buffers, buffers_of
from meshc.backends.csl.pe.code_size import code_size
from meshc.backends.csl.pe.core_memory import CoreMemory
from meshc.backends.csl.pe.program import Case, Lowering
from meshc.backends.csl.spelling.expressions import Spelling, condition, expression, helpers
from meshc.backends.csl.spelling.guards import Guards
from meshc.backends.csl.spelling.memory_dsds import Descriptors, stored
from meshc.backends.csl.spelling.names import Names, of_rounds, plain, scalar_name
from meshc.backends.csl.spelling.variables import Variable, bytes_by_use, declarations, word
from meshc.backends.csl.timing.breakdown import Prediction, prediction
from meshc.backends.csl.timing.cases import Cases, together
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.devices.csl import Targets
from meshc.ir.affine import Cond, Expr
from meshc.ir.core import Op
from meshc.ir.module import Buffer, Module
from meshc.ir.ops.tile import scalars_of_rounds
from meshc.ir.phases import PHASE, guards_of_phases, phases_of
from meshc.support.diagnostics import fail

_RUN = "run"


@dataclass(frozen=True)
class PeFile:
    """The file of a phase as a tree, and what the layout and the host must know of it: ``launched``
    are the functions that the host launches, each with the scalars that it is given, and
    ``predicted`` the cycles of each. Ops that share what others became are ``alike`` with them."""

    file: tuple[csl.Statement, ...]
    guards: Guards
    ends: Ends
    symbols: dict[str, Buffer]
    memory: CoreMemory
    predicted: dict[str, Prediction]
    tasks: dict[str, int]
    launched: dict[str, tuple[str, ...]]
    alike: dict[Op, Op]


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
    bindings = ends.bindings(lambda end: guards.test(end.static_uses, f"{end.color}_used"))
    _check_memory(module, kernels)
    memory = _memory(module, buffers, symbols, kernels)
    state = _state(lowering, guards, [*scalars.values()])
    body = _step(lowering, grouped)
    ends_of_transfers = _tasks(lowering, bodies, guards, module, entries)
    code = [*kernels.code.functions, *lowering.functions, body, *ends_of_transfers]
    divisions = helpers([*code, *descriptors.constants])
    sections: list[tuple[str, csl.Statements]] = [
        ("", _params(ends, guards)),
        ("", _modules(guards, code)),
        ("", _queues(ends)),
        ("Integer division that rounds down", divisions),
        ("Memory", declarations(memory)),
        ("State of the program", [*_ids(tasks), *declarations(state)]),
        ("Descriptors", descriptors.constants),
        ("Kernels", [*kernels.code.registers.constants, *kernels.code.functions]),
        ("What the program does in several places", lowering.functions),
        ("The program", [body]),
        ("Start, and what ends of transfers do", ends_of_transfers),
        ("", [_comptime(lowering, bindings, symbols, module, entries)]),
    ]
    device = module.the_device()
    taken = CoreMemory(
        device.whole("memory_bytes"),
        (*memory, *state, *kernels.code.variables, *descriptors.tables),
        code_size([*divisions, *code], device),
    )
    _check_words(module, taken.variables)
    predicted: dict[str, Prediction] = {}
    if timed:
        cases = Cases(module, lowering.transfers, grouped, direct)
        for entry in entries:
            predicted[entry.name] = prediction(module, kernels, cases, lowering.runs, entry.told)
    launched = {entry.name: entry.scalars for entry in entries}
    file = _assemble(module, phase, sections)
    alike = lowering.alike
    return PeFile(file, guards, ends, symbols, taken, predicted, tasks, launched, alike)


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


def _params(ends: Ends, guards: Guards) -> list[csl.Statement]:
    found: list[csl.Statement] = [_param("memcpy_params", "comptime_struct")]
    if ends.of:
        found += [csl.Blank(), csl.Remark("Colors of this PE.")]
        found += [_param(end.color, "color") for end in ends.of.values()]
    if guards.mesh.outer in guards.coordinates:
        region = guards.spell(guards.mesh.outer)
        found += [csl.Blank(), _param(region, "i16", "The region of this PE.")]
    if guards.params:
        found += [csl.Blank(), csl.Remark("What this PE takes part in.")]
        found += [
            _param(name, "bool", str(cond).replace("\n", " "))
            for name, cond in guards.given.items()
        ]
    return found


def _param(name: str, kind: str, remark: str = "") -> csl.Statement:
    return csl.Declare("param", name, None, kind, remark)


def _queues(ends: Ends) -> list[csl.Statement]:
    if not ends.of:
        return []
    remark = "A transfer runs on the microthread with the number of its queue."
    return [csl.Remark(remark), *ends.queues()]


def _modules(guards: Guards, code: csl.Statements) -> list[csl.Statement]:
    """What the file imports: the position of a core and mathematics only where they are used."""
    calls = (node.function for node in csl.walk(code) if isinstance(node, csl.Call))
    found = {"sys": csl.imported("memcpy/memcpy", "memcpy_params")}
    found |= {"position": csl.imported("layout")} if guards.coordinates else {}
    found |= {"time": csl.imported("time")}
    found |= {"math": csl.imported("math")} if any(f.startswith("math.") for f in calls) else {}
    return [csl.const(name, module) for name, module in found.items()]


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
        first = csl.element(name, shift) if shift else name
        kind = f"[*]{stored(buffer.type.dtype)}"
        found.append(word(_pointer(symbol), kind, csl.address(first), "pointers"))
    for scalar, count in scalars_of_rounds(module).items():
        name = of_rounds(scalar)
        found.append(_zeros(name, count, "i16", "rounds", "Of each round."))
        found.append(word(_pointer(name), "[*]i16", csl.address(name), "pointers"))
    stamps = _zeros("cycles_of_run", STAMPS, "u16", "stamps")
    return [*found, stamps, word("cycles_ptr", "[*]u16", csl.address("cycles_of_run"), "pointers")]


def _zeros(name: str, count: int, kind: str, use: str, remark: str = "") -> Variable:
    """An array of words."""
    zeros = csl.call("@zeros", csl.Literal(f"[{count}]{kind}"))
    declared = csl.Declare("var", name, zeros, remark=remark)
    return Variable("variable", count * WORD_BYTES, declared, use)


def _pointer(symbol: str) -> str:
    return f"{symbol}_ptr"


def _ids(tasks: dict[str, int]) -> list[csl.Statement]:
    return [
        csl.const(f"{name}_id", csl.call("@get_local_task_id", number))
        for name, number in tasks.items()
    ]


def _state(lowering: Lowering, guards: Guards, scalars: list[str]) -> list[Variable]:
    """What a program keeps from task to task."""
    counters = {
        "pc": ["pc"] if len(lowering.cases) > 1 else [],
        "scalars": scalars,
        "kept": guards.kept.values(),
        "loops": dict.fromkeys(lowering.loops),
        "sent": lowering.counters.values(),
    }
    found = [word(name, "i16", 0, use) for use, names in counters.items() for name in names]
    for group in lowering.shared:
        for flag in ("now", "wanted"):
            name = f"ended_{group.number}_{flag}"
            found.append(word(name, "bool", csl.FALSE, "flags"))
    here = [guards.spell(name) for name in guards.coordinates if name != guards.mesh.outer]
    return [*found, *(word(name, "i16", 0, "coordinates") for name in here)]


def _step(lowering: Lowering, grouped: bool) -> csl.Function:
    finish = [_stamp(3), csl.do("sys.unblock_cmd_stream")]
    cases = lowering.cases
    if len(cases) == 1:
        return csl.function("step", [], [*cases[0].body, *finish])
    cases[-1].body += [csl.assign("pc", 0), *finish, csl.Return()]
    each = together(len(cases), grouped)
    arms: list[tuple[csl.Expression | None, csl.Body]] = []
    for first in range(0, len(cases), each):
        behind = first + each
        test = csl.infix("pc", "<", behind) if behind < len(cases) else None
        arms.append((test, (_switch(cases[first:behind], first),)))
    forever = csl.While(csl.TRUE, arms[0][1] if len(arms) == 1 else (csl.If(tuple(arms)),))
    return csl.function("step", [], [forever])


def _stamp(first: int) -> csl.Statement:
    """The time in the words from this one on."""
    words = csl.call(
        "@ptrcast", csl.Literal("*[3]u16"), csl.address(csl.element("cycles_of_run", first))
    )
    return csl.do("time.get_timestamp", words)


def _switch(cases: list[Case], first: int) -> csl.Switch:
    """A switch over cases, of which the first has the number ``first``."""
    labels = [*map(str, range(first, first + len(cases) - 1)), "else"]
    told = zip(labels, cases, strict=True)
    return csl.Switch(
        csl.Name("pc"), tuple((label, one.comment, tuple(one.body)) for label, one in told)
    )


def _tasks(
    lowering: Lowering,
    bodies: dict[str, list[csl.Statement]],
    guards: Guards,
    module: Module,
    entries: list[_Entry],
) -> list[csl.Statement]:
    found: list[csl.Statement] = []
    if lowering.transfers.suspends:
        bodies = {**bodies, "resume": [csl.do("@block", "resume_id"), csl.do("step")]}
        for name, body in bodies.items():
            found.append(csl.Function(name, (), tuple(body), word="task"))
    start = _coordinates(guards, module)
    plain_spelling = Spelling(guards.spell, guards.most)
    kept: list[csl.Statement] = [
        csl.assign(name, expression(Expr(((atom, 1),)), plain_spelling))
        for atom, name in guards.kept.items()
    ]
    kept += [csl.do("time.enable_tsc"), _stamp(0)]
    for each in lowering.kernels.rotary.at_start.values():
        cond = Cond.true() if each.when is None else each.when
        kept += csl.chosen([(guards.test(cond, "phase_here"), [each.setter])], short=True)
    kept.append(csl.do("step"))
    if entries[0].phase is None:
        return [*found, _entry(entries[0], guards, start, kept)]
    found.append(csl.function("start", [], [*start, *kept]))
    for entry in entries:
        assert entry.phase is not None
        phase = csl.assign(PHASE, entry.phase)
        found.append(_entry(entry, guards, [phase], [csl.do("start")]))
    return found


def _entry(
    entry: _Entry, guards: Guards, before: csl.Statements, behind: csl.Statements
) -> csl.Function:
    """A function that the host launches, which takes the scalars of a run."""
    names = [guards.spell(scalar_name(name)) for name in entry.scalars]
    taken = [csl.assign(name, f"given_{name}") for name in names]
    params = [f"given_{name}: i16" for name in names]
    return csl.function(entry.name, params, [*before, *taken, *behind])


def _coordinates(guards: Guards, module: Module) -> list[csl.Statement]:
    """Set the coordinates that run-time code uses."""
    mesh = module.the_mesh()
    values = coordinate_values(mesh)
    needed = {n for name in guards.coordinates for n in values[name].free_vars}
    own = Spelling(lambda name: f"my_{name}")
    found: list[csl.Statement] = []
    for axis, place in zip(mesh.plane, ("get_y_coord", "get_x_coord"), strict=True):
        if axis in needed:
            here: csl.Expression = csl.cast("i16", csl.call(f"position.{place}"))
            here = here % mesh.size(axis) if mesh.regions > 1 else here
            name = f"my_{axis}"
            found.append(
                csl.assign(name, here) if axis in guards.coordinates else csl.const(name, here)
            )
    for name in guards.coordinates:
        if name in mesh.names:
            continue
        arms: list[tuple[csl.Expression | None, csl.Body]] = []
        for cond, value in values[name].pieces:
            test = None if cond.is_true else condition(cond, own)
            arms.append((test, (csl.assign(guards.spell(name), expression(value, own)),)))
        found += arms[0][1] if arms[0][0] is None else (csl.If(tuple(arms), short=True),)
    return found


def _comptime(
    lowering: Lowering,
    bindings: csl.Statements,
    symbols: dict[str, Buffer],
    module: Module,
    entries: list[_Entry],
) -> csl.Scope:
    body = [*bindings, *lowering.kernels.code.registers.loads]
    if lowering.transfers.suspends:
        tasks = ["resume", *lowering.tasks()]
        body += [csl.do("@bind_local_task", name, f"{name}_id") for name in tasks]
        body += [csl.do("@block", f"{name}_id") for name in lowering.blocked()]
    for symbol in [*symbols, *map(of_rounds, scalars_of_rounds(module))]:
        body.append(csl.do("@export_symbol", _pointer(symbol), csl.text(symbol)))
    body.append(csl.do("@export_symbol", "cycles_ptr", csl.text("cycles_of_run")))
    return csl.Scope(
        (*body, *(csl.do("@export_symbol", entry.name) for entry in entries)), "comptime"
    )


def _assemble(
    module: Module, phase: str, sections: list[tuple[str, csl.Statements]]
) -> tuple[csl.Statement, ...]:
    mesh = module.the_mesh()
    size = f"{mesh.columns} x {mesh.rows}"
    if mesh.regions > 1:
        size = f"{mesh.regions} x {size}"
    found: list[csl.Statement] = [
        csl.Remark(f"Phase {phase} of {plain(module.name)}: what each of {size} PEs runs."),
        csl.Remark(
            "Written by meshc. Transfers run beside the kernels; step() returns where it must wait"
        ),
        csl.Remark("for one, and the last end of what it waits for runs resume."),
    ]
    for title, part in sections:
        if part:
            rule = [csl.Remark(f"---- {title} ".ljust(87, "-"))] if title else []
            found += [csl.Blank(), *rule, *part]
    return tuple(found)
