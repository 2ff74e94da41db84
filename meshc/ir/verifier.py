"""The verifier: what every module must be, whatever facts it claims. All mistakes at once.

Structure (one function, or one program at the tile level), declared dims and channels, every
operand defined before its use and in scope, unique names, types that follow from operands,
each op's own rules, and ends of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from meshc.ir.affine.expr import is_name
from meshc.ir.affine.piecewise import range_name
from meshc.ir.batch import AHEAD, OWNER, POSITION
from meshc.ir.builder import defined_values
from meshc.ir.checked import Checked
from meshc.ir.core import Block, Op
from meshc.ir.header import names_text
from meshc.ir.meshcheck import mesh_mistakes
from meshc.ir.module import MACHINE_LEVELS, Channel, Function, Module, Port
from meshc.ir.ops import graph, mesh, ranks, task, tile
from meshc.ir.options import MAX_EXTENT, option_mistakes
from meshc.ir.read_rows import attention_of
from meshc.ir.rows import Rows
from meshc.ir.signatures import (
    attribute_mistakes,
    count_mistake,
    form_of,
    standing_mistakes,
)
from meshc.ir.stacks import has_split, inner_type
from meshc.ir.stated import stated_mistakes
from meshc.ir.taskcheck import of_tasks, program_mistakes
from meshc.ir.types import BufferType, Layout, Split, TensorType, Type
from meshc.ir.values import Value
from meshc.ir.viewcheck import coordinates_of, operand_mistakes, repeated, unknown_names
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.spans import Span

_RETURNS = (graph.Return, mesh.Return)
_YIELDS = (graph.Yield, mesh.Yield)
_ENDS = (*_RETURNS, *_YIELDS)

_SPLITS = "a dim has one split: dim_axis:lanes, with at most as many lanes as the dim has"
_ROUTE = "a route leads from a core to one of its line: { [y, x] -> [y, x - 1] : x >= 1 }"
_LOOP = "the block takes what the op does (stacks without their dim); yield gives its results"
_PORT = "a name for each dim of the buffer, an index for each dim of the tensor"


def verify_module(module: Module) -> None:
    """Raise one :class:`MeshcError` with every ``invalid-ir`` mistake in ``module``."""
    checker = _Verifier(module)
    checker.header()
    checker.declarations()
    for function in module.functions:
        checker.function(function)
    for program in module.programs:
        checker.block(program.body, {b.value for b in module.buffers}, checker.scalars)
    for words, span, help in program_mistakes(module):
        checker.wrong(words, span, help)
    if not checker.found.messages:
        checker.recorded()
    checker.found.raise_errors()


class _Verifier:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.axes = module.mesh.parts if module.mesh else {}
        self.coordinates = coordinates_of(module)
        self.scalars = frozenset(module.scalars.keys() - tile.scalars_of_rounds(module).keys())
        self.heads = {d for one in module.attention for d in (one.query, one.key)}
        self.found = Diagnostics()
        self.count = 0
        self.checked = Checked(module)

    def wrong(self, message: str, span: Span | None = None, help: str | None = None) -> None:
        self.count += 1
        self.found.error("invalid-ir", message, span, help=help)

    # --- header and declarations

    def header(self) -> None:
        module = self.module
        for name, extent in module.dims.items():
            if not 1 <= extent <= MAX_EXTENT:
                words = f"dim {name} has the extent {extent}"
                self.wrong(words, module.places.get("dims"), f"it is one of 1 to {MAX_EXTENT}")
        for name, (low, high) in module.scalars.items():
            if low > high:
                words = f"scalar {name} has the empty range {low}..{high}"
                help = "both ends belong to a range, such as pos = 0..7"
                self.wrong(words, module.places.get("scalars"), help)
            self.own_names("the header", [name], module.places.get("scalars"))
            multiple = module.multiples.get(name, 1)
            if multiple < 1 or low % multiple:
                words = f"scalar {name} begins with {low}, which is no multiple of {multiple}"
                help = "a range begins with a multiple of its step, such as pos = 0..12 by 4"
                self.wrong(words, module.places.get("scalars"), help)
        for name, needed in ((OWNER, POSITION), (AHEAD, OWNER)):
            if name in module.scalars and needed not in module.scalars:
                words = (
                    f"scalar {name} is told of tokens of a batch, of which none has its {needed}"
                )
                self.wrong(words, module.places.get("scalars"), f"{needed} = 0..7")
        for place, words, help in stated_mistakes(module):
            self.wrong(words, module.places.get(place), help)
        for words in option_mistakes(module.options):
            self.wrong(words, module.places.get("options"))
        if (module.mesh is None) != (module.level in ("graph", "task")):
            words = "modules of the mesh and tile levels have a mesh, others none"
            help = "mesh y = 2, x = 2" if module.mesh is None else "leave out the line 'mesh'"
            self.wrong(words, module.places.get("mesh", module.places.get("module")), help)
        functions, programs = (0, 1) if module.level in MACHINE_LEVELS else (1, 0)
        if (len(module.functions), len(module.programs)) != (functions, programs):
            kind = "program" if programs else "function"
            words = f"a module of the {module.level} level has exactly one {kind}"
            self.wrong(words, module.places.get("module"), "split the text into a file for each")

    def declarations(self) -> None:
        module = self.module
        seen: set[str] = set()
        right: set[Type] = set()
        for value in defined_values(module):
            if value.name in seen:
                self.wrong(f"{value} is defined twice", self.place(str(value)))
            seen.add(value.name)
            if value.type in right:
                continue
            before = self.count
            self.type(str(value), value.type)
            if self.count == before:
                right.add(value.type)
        for duplicate in repeated(c.name for c in module.channels):
            where = f"channel @{duplicate}"
            self.wrong(f"{where} is declared twice", self.place(where), "names are unique")
        for duplicate in repeated(p.name for p in module.ports if p.direction == "out"):
            where = f"port @{duplicate}"
            help = "a result has one port; in-ports may share a name"
            self.wrong(f"{where} is declared twice", self.place(where), help)
        for channel in module.channels:
            self.route(channel)
        for port in module.ports:
            self.port(port)
        self.shared_ports()

    def place(self, where: str) -> Span | None:
        """Where the text declares a value, a channel or a port."""
        return self.module.places.get(where)

    def type(self, where: str, kind: Type, span: Span | None = None) -> None:
        span = span or self.place(where)
        if isinstance(kind, TensorType):
            self.tensor(where, kind, span)
        elif self.module.level not in MACHINE_LEVELS:
            help = "values of the other levels are tensors over named dims, such as f32[L, E]"
            self.wrong(f"{where}: {kind} belongs to the tile level", span, help)
        elif isinstance(kind, BufferType) and not all(0 < e <= MAX_EXTENT for e in kind.shape):
            help = f"extents are 1 to {MAX_EXTENT}"
            self.wrong(f"{where}: {kind} has an extent that is no positive number", span, help)

    def tensor(self, where: str, kind: TensorType, span: Span | None) -> None:
        for dim in kind.dims:
            if dim not in self.module.dims:
                help = f"the header declares {', '.join(self.module.dims) or 'no dims'}"
                self.wrong(f"{where}: dim {dim} is not declared", span, help)
        for dim in repeated(kind.dims):
            help = "give one of them another name"
            self.wrong(f"{where}: dim {dim} occurs twice in {kind}", span, help)
        if self.module.level not in MACHINE_LEVELS and kind.dtype.coded:
            help = "keep-quantised brings weights to their codes"
            self.wrong(f"{where}: {kind} belongs to the tile level", span, help)
        if self.module.level == "graph" and kind.layout is not None:
            help = "layouts belong to the mesh level; partition chooses them"
            self.wrong(f"{where}: a layout at the graph level", span, help)
        if self.module.level == "mesh" and kind.layout is None:
            help = f"every core has all of it: {kind}<>"
            self.wrong(f"{where}: {kind} has no layout", span, help)
        if kind.layout is not None:
            self.layout(where, kind, kind.layout, span)

    def layout(self, where: str, kind: TensorType, layout: Layout, span: Span | None) -> None:
        for dim in repeated(s.dim for s in layout.splits):
            self.wrong(f"{where}: dim {dim} is split twice", span, _SPLITS)
        for split in layout.splits:
            if split.dim not in kind.dims:
                self.wrong(
                    f"{where}: the layout splits {split.dim}, which is no dim of it", span, _SPLITS
                )
            if split.block < 1:
                self.wrong(f"{where}: {split} keeps no lane", span, _SPLITS)
            lanes = self.module.dims.get(split.dim, MAX_EXTENT)
            # Lanes that RoPE turns stay in pairs, so that an odd dim has one of padding; no head
            # is padding.
            padding = 0 if split.dim in self.heads else lanes % 2
            if split.block > lanes + padding and split.kind == "block":
                words = f"{where}: {split} keeps more lanes than {split.dim} has, {lanes}"
                self.wrong(words, span, _SPLITS)
            if split.copies != 1:
                self.copies(where, split, span)
            if split.skew and split.skew not in self.axes:
                self.wrong(f"{where}: there is no axis {split.skew}", span, self.axes_text())
        for axis in layout.axes():
            if axis not in self.axes:
                self.wrong(f"{where}: there is no axis {axis}", span, self.axes_text())

    def axes_text(self) -> str:
        """The axes that there are, for a help line."""
        return f"the mesh has {', '.join(self.axes)}" if self.axes else "there is no mesh"

    def copies(self, where: str, split: Split, span: Span | None) -> None:
        """Copies of a part are of a block split, on equal groups of neighbours."""
        mesh = self.module.mesh
        size = mesh.size(split.axis) if mesh and split.axis in mesh.parts else 0
        if split.copies < 1 or split.kind != "block" or split.skew or size % split.copies:
            words = f"{where}: {split} does not give equal groups of {split.axis} the same block"
            help = "as many neighbours as divide the axis, of a split without marks: G_x*2:1"
            self.wrong(words, span, help)

    def route(self, channel: Channel) -> None:
        """A route takes the coordinates of a core and gives those of another on one line."""
        route, where = channel.route, f"channel @{channel.name}"
        mesh = self.module.mesh
        known = (mesh.plane, mesh.names) if mesh else ()
        if route.inputs not in known:
            forms = " or ".join(dict.fromkeys(f"[{', '.join(names)}]" for names in known))
            words = f"{where}: a route maps {forms}, not {list(route.inputs)}"
            self.wrong(words, self.place(where), _ROUTE)
        elif route.pieces and route.arity != len(route.inputs):
            wanted = len(route.inputs)
            words = f"{where}: a route gives {wanted} coordinates, not {route.arity}"
            self.wrong(words, self.place(where), _ROUTE)
        elif len(route.inputs) == 2 and not any(
            all(str(piece.outputs[place]) == name for piece in route.pieces)
            for place, name in enumerate(route.inputs)
        ):
            words = f"{where}: a route stays in its row or in its column"
            self.wrong(words, self.place(where), _ROUTE)
        if not channel.multicast and any(range_name(e) for p in route.pieces for e in p.outputs):
            words = f"{where}: a route to several cores is of a multicast"
            self.wrong(words, self.place(where), "add {multicast = true}")
        self.names(where, route.free_vars, self.scalars)

    def port(self, port: Port) -> None:
        name = f"port @{port.name}"
        self.type(name, port.tensor)
        roles = {b.value: b.role for b in self.module.buffers}
        if port.buffer not in roles:
            self.wrong(f"{name}: {port.buffer} is no buffer", self.place(name), _PORT)
        elif not roles[port.buffer]:
            words = f"{name}: {port.buffer} is scratch, which others may lie over"
            self.wrong(words, self.place(name), "add {role = out}, or one of in, weight and state")
        if isinstance(port.buffer.type, BufferType):
            rank = len(port.buffer.type.shape)
            given, held = port.tensor.dtype, port.buffer.type.dtype
            if given is not held and (given.coded or held.coded):
                words = f"{name}: {given} for a buffer of {held}"
                self.wrong(words, self.place(name), "codes stay what they are")
            if len(port.lanes) != rank:
                words = f"{name}: {len(port.lanes)} lanes for a buffer of {rank} dims"
                self.wrong(words, self.place(name), _PORT)
        if len(port.element) != len(port.tensor.dims):
            count, rank = len(port.element), len(port.tensor.dims)
            words = f"{name}: {count} elements for a tensor of {rank} dims"
            self.wrong(words, self.place(name), _PORT)
        self.own_names(name, [*port.lanes, *(let for let, _ in port.lets)])
        known = self.coordinates | self.scalars | set(port.lanes)
        for let, expr in port.lets:
            self.names(name, expr.free_vars, known)
            known = known | {let}
        for expr in port.element:
            self.names(name, expr.free_vars, known)
        if port.where is not None:
            self.names(name, port.where.free_vars, known)

    def shared_ports(self) -> None:
        """A tensor may be packed into several buffers, so in-ports may share a name."""
        tensors: dict[str, TensorType] = {}
        for port in self.module.ports:
            if tensors.setdefault(port.name, port.tensor) != port.tensor:
                where = f"port @{port.name}"
                help = f"it was {tensors[port.name]} before"
                self.wrong(f"{where} is declared for two tensors", self.place(where), help)

    def names(self, where: str, used: frozenset[str], known: Iterable[str]) -> None:
        for name in sorted(used - set(known)):
            names = ", ".join(sorted(known)) or "none"
            self.wrong(f"{where}: '{name}' is unknown here", self.place(where), f"known: {names}")

    def own_names(self, where: str, names: Iterable[str], span: Span | None = None) -> None:
        """Lanes, loop variables and scalars are names in expressions, and other than the
        coordinates of a core."""
        for name in names:
            if not is_name(name):
                words = f"{where}: '{name}' cannot be a name in an expression"
                help = "names there have small letters, digits, '_' and '.', such as pos"
                self.wrong(words, span or self.place(where), help)
            if name in self.coordinates:
                words = f"{where}: '{name}' is a coordinate of a core and nothing else"
                help = f"names of coordinates: {', '.join(sorted(self.coordinates))}"
                self.wrong(words, span or self.place(where), help)

    def recorded(self) -> None:
        """The header says what a module, which is otherwise right, shows of rows and attention, and
        of the type of sums."""
        module = self.module
        for words, span, help in mesh_mistakes(module):
            self.wrong(words, span, help)
        if module.level != "graph":
            return
        for op in module.walk():
            if isinstance(op, graph.Append) and op.rows:
                words = names_text(Rows(op.rows, op.dim))
                header = "nothing" if module.rows is None else names_text(module.rows)
                if words != header:
                    words = f"{op.NAME}: its rows have {words}, but the header says {header}"
                    help = "the header says it once, for all"
                    self.wrong(f"{words} of them", op.span, help)
        for found, product in attention_of(module):
            if found not in module.attention:
                words = f"{product.NAME}: the header does not say attention {names_text(found)}"
                self.wrong(words, product.span, f"add: attention {names_text(found)}")

    # --- code

    def function(self, function: Function) -> None:
        scope = {p.value for p in function.params}
        for kind in function.result_types:
            self.type(f"a result of @{function.name}", kind)
        self.block(function.body, scope, frozenset())
        last = function.body.ops[-1] if function.body.ops else None
        if not isinstance(last, _RETURNS):
            help = f"end it with {self.module.level}.return"
            where = last.span if last else self.place(f"func @{function.name}")
            self.wrong(f"@{function.name} does not end in a return", where, help)
        elif [v.type for v in last.tensors()] != function.result_types:
            help = f"it declares {_types(function.result_types)}"
            self.wrong(f"@{function.name} returns other types than it declares", last.span, help)

    def block(self, block: Block, outer: set[Value], names: frozenset[str]) -> None:
        """Check ops in order; ``outer`` is defined around, ``names`` are loops and scalars."""
        scope = outer | set(block.args)
        for position, op in enumerate(block.ops):
            self.op(op, scope, names)
            if isinstance(op, _ENDS) and position < len(block.ops) - 1:
                help = "what comes behind it would never run"
                self.wrong(f"{op.NAME} is not the last op of its block", op.span, help)
            scope |= set(op.results)

    def op(self, op: Op, scope: set[Value], names: frozenset[str]) -> None:
        if op.regions or isinstance(op, ranks.RankOp):
            if self.alone(op, scope, names):
                self.inside(op, scope, names)
            return
        state = self.checked.state_of(op, names)
        if self.checked.is_right(op, state, scope):
            return
        before = self.count
        self.alone(op, scope, names)
        if self.count == before:
            self.checked.keep(op, state)

    def alone(self, op: Op, scope: set[Value], names: frozenset[str]) -> bool:
        """Check an op but for what is inside it; False for one of another level."""
        if op.NAME.partition(".")[0] not in ("", self.module.level) and not of_tasks(
            self.module, op
        ):
            help = f"ops of this level are called {self.module.level}..."
            self.wrong(f"{op.NAME} in a module of the {self.module.level} level", op.span, help)
            return False
        if isinstance(op, ranks.RankOp):
            words = ranks.rank_op_mistake(op, self.module.ranks)
            if words:
                self.wrong(f"{op.NAME}: {words}", op.span, "such as: ranks count = 2")
        mistake = count_mistake(op)
        undeclared = [mistake] if mistake else [*attribute_mistakes(op), *standing_mistakes(op)]
        for text in undeclared:
            self.wrong(f"{_name(op)}: {text}", op.span, f"its form is: {form_of(op)}")
        mistakes = operand_mistakes(self.module, op, scope, names)
        axis = getattr(op, "axis", "")
        if axis and axis not in self.axes:
            mistakes.append(f"there is no axis '{axis}'")
        if op.when is not None:
            mistakes += unknown_names(op.when.free_vars, self.coordinates | names, "the guard")
        if not mistakes and not undeclared:
            mistakes += self.own_rules(op)
        for text in mistakes:
            self.wrong(f"{_name(op)}: {text}", op.span, f"its form is: {form_of(op)}")
        return True

    def inside(self, op: Op, scope: set[Value], names: frozenset[str]) -> None:
        """Check the blocks of an op."""
        inner = names
        if isinstance(op, tile.For):
            self.own_names("tile.for", [op.var], op.span)
            inner = names | {op.var, *op.each}
        if isinstance(op, task.Family):
            self.own_names(f"family {op.name}", op.dims, op.span)
            inner = names | {*op.dims, *op.each}
        for region in op.regions:
            self.block(region, set() if isinstance(op, graph.Fuse) else scope, inner)
            if isinstance(op, graph.Repeat):
                self.repeat(op, region)
            if isinstance(op, graph.Fuse):
                self.fuse(op, region)

    def own_rules(self, op: Op) -> list[str]:
        """What ``infer`` and ``verify`` of the op say."""
        extents = self.module.dims
        try:
            kinds = op.infer(extents)
            op.verify(extents)
        except MeshcError as error:
            self.count += 1
            for found in error.diagnostics:
                self.found.add(replace(found, help=found.help or f"its form is: {form_of(op)}"))
            return []
        except (KeyError, ValueError, TypeError, IndexError, ZeroDivisionError):
            # Ops read dims by name and operands by place: any of these means they do not fit.
            return ["its operands and attributes do not fit together"]
        if kinds is None or isinstance(op, tile.Wait):
            return []
        stated = [v.type for v in op.results]
        if stated != list(kinds):
            return [f"gives {_types(kinds)}, not {_types(stated)}"]
        return []

    def repeat(self, op: graph.Repeat, body: Block) -> None:
        last = body.ops[-1] if body.ops else None
        if not isinstance(last, _YIELDS):
            self.wrong(f"{op.NAME}: the body does not end in a yield", op.span, _LOOP)
            return
        layers = self.layers_of(op)
        stacks = (*op.tensors()[op.carried :], *op.results[op.carried :])
        apart = [v.name for v in stacks if layers and not has_split(v.type, layers)]
        if layers and apart:
            words = f"{op.NAME}: %{apart[0]} does not give each region its layers, {layers}"
            self.wrong(words, op.span, "split-regions deals layers to regions")
            return
        wanted = [
            inner_type(op, position, v.type, layers) for position, v in enumerate(op.tensors())
        ]
        if wanted != [v.type for v in body.args]:
            self.wrong(f"{op.NAME}: the block does not take {_types(wanted)}", op.span, _LOOP)
        given = [v.type for v in last.tensors()]
        if given != [
            inner_type(op, position, v.type, layers) for position, v in enumerate(op.results)
        ]:
            self.wrong(f"{op.NAME}: the results are not what yield gives", op.span, _LOOP)
        if not 0 <= op.carried <= min(len(op.operands), len(op.results)):
            self.wrong(f"{op.NAME}: carries {op.carried} values it does not have", op.span, _LOOP)
        elif op.rounds and len(given) == len(op.results):
            self.rounds(op)

    def rounds(self, op: graph.Repeat) -> None:
        """Layers of a run are named by two scalars, and results go on with what is left out."""
        unknown = [name for name in op.rounds if name not in self.module.scalars]
        if len(op.rounds) != 2 or unknown:
            words = f"{op.NAME}: rounds are no two run-time scalars of the header"
            self.wrong(words, op.span, "the first layer of a run and their number")
            return
        for position in range(op.carried, len(op.results)):
            op.continued(position)

    def layers_of(self, op: graph.Repeat) -> Split | None:
        """How layers are dealt to the regions of the mesh, if there are several."""
        mesh = self.module.mesh
        if self.module.level != "mesh" or mesh is None or mesh.regions == 1:
            return None
        return Split(op.dim, mesh.outer, -(-self.module.dims.get(op.dim, 0) // mesh.regions))

    def fuse(self, op: graph.Fuse, body: Block) -> None:
        last = body.ops[-1] if body.ops else None
        if not isinstance(last, _YIELDS):
            self.wrong(f"{op.NAME}: the body does not end in a yield", op.span, _LOOP)
            return
        wanted = [v.type for v in op.tensors()]
        if wanted != [v.type for v in body.args]:
            self.wrong(f"{op.NAME}: the block does not take {_types(wanted)}", op.span, _LOOP)
        if [v.type for v in last.tensors()] != [v.type for v in op.results]:
            self.wrong(f"{op.NAME}: the results are not what yield gives", op.span, _LOOP)


def _name(op: Op) -> str:
    return f"tile.{op.kernel}" if isinstance(op, tile.Compute) else op.NAME


def _types(kinds: Iterable[Type | None]) -> str:
    return ", ".join("a stack over the layers" if k is None else str(k) for k in kinds) or "nothing"
