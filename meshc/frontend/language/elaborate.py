"""A model in one phase as a module of the graph level."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from meshc.frontend.language.ast import (
    Assign,
    Block,
    Call,
    Choice,
    Constant,
    Dtype,
    Expression,
    Heads,
    Model,
    Params,
    Reference,
    Repeat,
    Return,
    Statement,
    Tensor,
    expressions_of,
    parts,
    statements,
)
from meshc.frontend.language.block_calls import phases
from meshc.frontend.language.constants import fold, truth
from meshc.frontend.language.dims import BATCH, CAPACITY, ROWS, show
from meshc.frontend.language.evaluate import Evaluator
from meshc.frontend.language.found import Found
from meshc.frontend.language.functions import dims_of
from meshc.frontend.language.graph_function import Emitter, Region, Weight
from meshc.frontend.language.names import DTYPES
from meshc.frontend.language.parameters import (
    LARGEST_EXTENT,
    LARGEST_TENSOR,
    Extents,
    parameter_values,
)
from meshc.frontend.language.scope import Poisoned, Scope
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.ir.read_rows import record
from meshc.ir.rows import Rows
from meshc.ir.types import DType
from meshc.ir.values import Value
from meshc.support.diagnostics import MeshcError, fail
from meshc.support.spans import Span

_LAYERS = "layers"
_DEFAULT_DTYPE = DType.F32


def elaborate(
    model: Model,
    phase: str,
    *,
    parameters: Mapping[str, Constant] | None = None,
    batch: int | None = None,
    seq: int | None = None,
    layers: int | None = None,
) -> Module:
    """The graph-level module of ``model`` in ``phase``, one of :func:`phases`.

    ``parameters`` override defaults. ``batch`` is the extent of B (default: the model's, else 1).
    ``seq`` is the cache capacity S, in prefill also the number of rows L (1 in decode); in a model
    without caches it is L and S where the model does not declare them. ``layers`` keeps the first
    layers only. The module has one function named after the phase: inputs, used params in order of
    declaration, caches; it returns the values of ``return`` and then the new caches. Its run-time
    scalar is ``pos`` (tokens cached before, decode) or ``len`` (valid rows of the prompt, prefill).
    Its header records the rows of tokens and every attention over a cache.
    Raises MeshcError with every error found.
    """
    if phase not in phases(model):
        message = f"model '{model.name}' has no phase '{phase}'"
        fail("bad-phase", message, model.span, help=f"it has {' and '.join(phases(model))}")
    values = _with_layers(model, parameter_values(model, parameters or {}), layers)
    places = {p.name: p.span for p in model.parameters}
    extents = Extents(values, _fixed(model, phase, values, batch, seq), places)
    found = Found()
    dtypes = _dtypes(model, values)
    emitter = Emitter(extents.used, dtypes["weights"])
    module = _Elaborator(model, phase, emitter, extents, found).module(values)
    if layers is not None:
        _check_one_loop(model, module)
    module.options |= {"model": model.name, "phase": phase}
    module.options |= {role: str(dtype) for role, dtype in dtypes.items()}
    if seq is not None:
        module.options["seq"] = seq
    return module


class _Elaborator(Evaluator):
    """Executes statements; expressions are the base class's."""

    def module(self, values: dict[str, Constant]) -> Module:
        """The module of the whole model."""
        scope = self.model_scope(values)
        main = self.model.main
        with self.recovering(scope):
            self._phase_dims()
            for statement in self.taken(self.model.body, scope):
                with self.recovering(scope):
                    self._declare(statement, scope)
            for formal in main.formals:
                with self.recovering(scope):
                    self._input(formal, scope)
            results = self.run(main, scope)
        self.diagnostics.raise_errors()
        function = self.emitter.finish(self.phase, results, main.span)
        scalars = {}
        if self.phase == "decode":
            scalars["pos"] = (0, self.extents.used[CAPACITY] - 1)
        elif self.phase == "prefill":
            scalars["len"] = (1, self.extents.used[CAPACITY])
        name = f"{self.model.name}_{self.phase}"
        dims = self.extents.ordered()
        module = Module(name, "graph", dims=dims, scalars=scalars, functions=[function])
        if self.phase != "main":
            module.rows = Rows(ROWS, CAPACITY)
        record(module)
        return module

    def run(self, block: Block, scope: Scope) -> list[Value]:
        """Execute a body up to its return."""
        body = list(self.taken(block.body, scope))
        last_reads = _last_reads(body)
        for index, statement in enumerate(body):
            if isinstance(statement, Return):
                if not self._holds(statement.when, scope):
                    continue
                return self._returned(block, statement, scope)
            with self.recovering(scope):
                if isinstance(statement, Repeat):
                    later = {name for name, last in last_reads.items() if last > index}
                    self._repeat(statement, later, scope)
                else:
                    self._execute(statement, scope)
        what = "main" if block.name == "main" else f"block '{block.name}'"
        fail("missing-return", f"{what} returns nothing in phase '{self.phase}'", block.span)

    def taken(self, body: Iterable[Statement], scope: Scope) -> Iterator[Statement]:
        """The statements of ``body``, with choices replaced by the branch that is taken."""
        for statement in body:
            if not isinstance(statement, Choice):
                yield statement
                continue
            branch: tuple[Statement, ...] = ()
            with self.recovering(scope):
                holding = (b for c, b in statement.branches if self._holds(c, scope))
                branch = next(holding, statement.otherwise)
            yield from self.taken(branch, scope)

    def _holds(self, condition: Expression | None, scope: Scope) -> bool:
        if condition is None:
            return True
        return truth(fold(condition, scope.constant), condition.span)

    def _phase_dims(self) -> None:
        """B, L and S are dims of the phases with caches whether or not a type names them."""
        if self.phase != "main":
            for dim in (BATCH, ROWS, CAPACITY):
                self.extents.use(dim, self.model.span)

    def _execute(self, statement: Statement, scope: Scope) -> None:
        if isinstance(statement, Assign):
            self._assign(statement, scope)
        else:
            self._declare(statement, scope)

    def _declare(self, statement: Statement, scope: Scope) -> None:
        if isinstance(statement, Heads):
            scope.heads.append(self.pair(statement.many, statement.few, scope))
        elif isinstance(statement, Params):
            for tensor in statement.tensors:
                scope.values[tensor.name] = None
                with self.recovering(scope):
                    scope.values[tensor.name] = self._weight(tensor, scope)

    def _weight(self, tensor: Tensor, scope: Scope) -> Weight:
        weight = self.emitter.weight(tensor, scope.dim_list(tensor.dims or ()))
        self._check_size(weight.outer, tensor.name, tensor.span)
        return weight

    def _input(self, formal: object, scope: Scope) -> None:
        assert isinstance(formal, Tensor)
        scope.values[formal.name] = None
        value = self.emitter.tensor(formal.name, scope.dim_list(formal.dims or ()))
        self._check_size(value, formal.name, formal.span)
        self.emitter.inputs.append(value)
        scope.values[formal.name] = value

    def _check_size(self, value: Value, name: str, span: Span) -> None:
        elements = 1
        for dim in dims_of(value):
            elements *= self.extents.used[dim]
        if elements > LARGEST_TENSOR:
            message = f"'{name}' {show(dims_of(value))} has {elements} elements"
            fail("bad-extent", message, span, help=f"at most {LARGEST_TENSOR} are possible")

    def _assign(self, statement: Assign, scope: Scope) -> None:
        before, self.emitter.hint = self.emitter.hint, statement.targets[0].name
        try:
            results = self._values(statement, scope)
        except (MeshcError, Poisoned):
            scope.values.update((t.name, None) for t in statement.targets)
            raise
        finally:
            self.emitter.hint = before
        for target, value in zip(statement.targets, results, strict=True):
            self.emitter.call(value, target.name)
            scope.values[target.name] = value
            self._check_target(target, value, scope)

    def _values(self, statement: Assign, scope: Scope) -> list[Value]:
        """One tensor for each target."""
        expression, wanted = statement.value, len(statement.targets)
        if wanted == 1 or not isinstance(expression, Call):
            found: list[Value] = [self.tensor(expression, scope)]
        else:
            results = self.results(expression, scope)
            found = [v for v in results if isinstance(v, Value)]
        if len(found) != wanted:
            message = f"{wanted} names are assigned, but the right side has {len(found)} values"
            fail("wrong-result-count", message, statement.span)
        return found

    def _check_target(self, target: Tensor, value: Value, scope: Scope) -> None:
        if target.dims is not None and scope.dim_list(target.dims) != dims_of(value):
            wanted = scope.dim_list(target.dims)
            message = f"'{target.name}' is {show(dims_of(value))}, not {show(wanted)}"
            fail("dims-mismatch", message, target.span)

    def _returned(self, block: Block, statement: Return, scope: Scope) -> list[Value]:
        before = self.emitter.hint
        if block.name == "main":
            self.emitter.hint = "result"
        results: list[Value] = []
        with self.recovering(scope):
            results = [self.tensor(value, scope) for value in statement.values]
            # A conditional return serves another phase, whose results are others.
            if block.results and statement.when is None:
                wanted = [scope.dim_list(d) for d in block.results]
                _check_results(results, wanted, statement.span)
        self.emitter.hint = before
        if not results:
            raise Poisoned
        if block.name == "main":
            for value in results:
                self.emitter.call(value, "result")
        return results

    def _repeat(self, repeat: Repeat, later: Container[str], scope: Scope) -> None:
        body = list(self.taken(repeat.body, scope))
        changed, kept = _loop_names(body, later, scope)
        dim = scope.dim(repeat.dim)
        scope_before = dict(scope.values)
        starts = {name: scope.value(name) for name in (*changed, *kept)}
        region = Region(dim)
        inner = self._repeat_scope(scope, region, starts)
        before = self.emitter.enter(region)
        for statement in body:
            with self.recovering(inner):
                self._execute(statement, inner)
        self.emitter.leave(before)
        scope.values = scope_before | dict.fromkeys(changed)
        ends = {name: inner.value(name) for name in (*changed, *kept)}
        if not changed:
            fail("bad-repeat", "the repeat changes nothing that is used after it", repeat.span)
        self._check_carried(starts, ends, repeat)
        results = self._emit_repeat(region, starts, ends, repeat.span)
        scope.values.update(zip(changed, results, strict=False))

    def _repeat_scope(self, scope: Scope, region: Region, starts: dict[str, Value]) -> Scope:
        """The names inside a repeat: what comes in from outside are arguments of its body."""
        inner = Scope(
            scope.extents, scope.blocks, scope.constants, scope.dims, {}, list(scope.heads)
        )
        for name, start in starts.items():
            argument = Value(name, start.type)
            self.emitter.call(argument, name)
            region.body.args.append(argument)
            inner.values[name] = argument
        return inner

    def _check_carried(
        self, starts: dict[str, Value], ends: dict[str, Value], repeat: Repeat
    ) -> None:
        for name, start in starts.items():
            if start.type != ends[name].type:
                fail(
                    "dims-mismatch",
                    f"'{name}' is {show(dims_of(start))} before a layer and "
                    f"{show(dims_of(ends[name]))} after it",
                    repeat.span,
                )

    def _emit_repeat(
        self, region: Region, starts: dict[str, Value], ends: dict[str, Value], span: Span
    ) -> list[Value]:
        """Append the loop; its results, the carried ones first."""
        weights, caches = region.used_weights(), list(region.caches.values())
        region.body.args += [w.inner for w in weights] + [c.inner for c in caches]
        yielded = [*ends.values(), *(c.new for c in caches)]
        region.body.ops.append(graph.Yield(operands=list(yielded), span=span))
        results = []
        for name, end in ends.items():
            results.append(Value(name, end.type))
            self.emitter.call(results[-1], name)
        for cache in caches:
            cache.new = Value(cache.outer.name, cache.outer.type)
            self.emitter.call(cache.new, cache.outer.name)
        op = graph.Repeat(
            operands=[*starts.values(), *(w.outer for w in weights), *(c.outer for c in caches)],
            results=[*results, *(c.new for c in caches)],
            regions=[region.body],
            span=span,
            dim=region.dim,
            carried=len(starts),
        )
        self.emitter.region.body.ops.append(op)
        return results


def _check_results(results: list[Value], wanted: list[tuple[str, ...]], span: Span) -> None:
    actual = [dims_of(v) for v in results]
    if actual != wanted:
        message = f"this returns {', '.join(map(show, actual))}"
        fail("dims-mismatch", message, span, [f"stated is {', '.join(map(show, wanted))}"])


def _last_reads(body: list[Statement]) -> dict[str, int]:
    """For each name that ``body`` reads, the index of the last statement that does."""
    return {
        name: index
        for index, statement in enumerate(body)
        for inner in statements((statement,))
        for name in _reads(inner)
    }


def _loop_names(
    body: list[Statement], later: Container[str], scope: Scope
) -> tuple[list[str], list[str]]:
    """Outer values that a loop's body changes and that matter later, and those it only reads."""
    exposed: dict[str, None] = {}
    written: dict[str, None] = {}
    for statement in body:
        exposed.update((n, None) for n in _reads(statement) if n not in written)
        if isinstance(statement, Assign):
            written.update((t.name, None) for t in statement.targets)
    changed = [n for n in written if n in scope.values and (n in exposed or n in later)]
    return changed, [n for n in exposed if n in scope.values and n not in written]


def _reads(statement: Statement) -> list[str]:
    """Names that the expressions of a statement refer to."""
    found = [p for e in expressions_of(statement) for p in parts(e)]
    return [p.name for p in found if isinstance(p, Reference)]


def _check_one_loop(model: Model, module: Module) -> None:
    """Which layers are the first of several kinds is for parameters to say."""
    loops = [op for op in module.function.body.ops if isinstance(op, graph.Repeat)]
    if len(loops) > 1:
        dims = [loop.dim for loop in loops]
        fail(
            "bad-parameter",
            f"model '{model.name}' has {len(loops)} loops over layers; fewer layers of one are not "
            "its first layers",
            loops[1].span,
            [f"they count {', '.join(dims)}"],
            "give these parameters smaller defaults in the model's head",
        )


def _with_layers(
    model: Model, values: dict[str, Constant], layers: int | None
) -> dict[str, Constant]:
    if layers is None:
        return values
    most = values.get(_LAYERS)
    if not isinstance(most, int) or not 1 <= layers <= most:
        message = f"model '{model.name}' has no {layers} layers"
        note = f"its parameter 'layers' is {most}" if _LAYERS in values else "it has no 'layers'"
        fail("bad-parameter", message, model.span, [note])
    return values | {_LAYERS: layers}


def _fixed(
    model: Model,
    phase: str,
    values: Mapping[str, Constant],
    batch: int | None,
    seq: int | None,
) -> dict[str, int]:
    """B, L and S as the caller and the phase say; what is missing is the model's own parameter."""
    for name, number in (("batch", batch), ("seq", seq)):
        if number is not None and not 1 <= number <= LARGEST_EXTENT:
            message = f"{name} is {number}; it must be 1 to {LARGEST_EXTENT}"
            fail("bad-extent", message, model.span)
    fixed: dict[str, int] = {}
    if batch is not None or BATCH not in values:
        fixed[BATCH] = batch or 1
    for dim in (ROWS, CAPACITY):
        if seq is not None and (phase != "main" or dim not in values):
            fixed[dim] = seq
    if phase == "decode":
        fixed[ROWS] = 1
    return fixed


def _dtypes(model: Model, values: Mapping[str, Constant]) -> dict[str, DType]:
    """The declared element types by role."""
    found = {"weights": _DEFAULT_DTYPE, "accumulate": DType.F32}
    for statement in model.body:
        if isinstance(statement, Dtype):
            word = statement.name.text
            text = word if word in DTYPES else values.get(word, word)
            if text not in DTYPES:
                message = f"there is no dtype {text!r}"
                help_line = f"dtypes are {', '.join(DTYPES)}"
                fail("bad-dtype", message, statement.name.span, help=help_line)
            found[statement.role] = DType(text)
    return found
