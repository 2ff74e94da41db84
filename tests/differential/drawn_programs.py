"""Programs of the language as data: their text, and their meaning in float64.

A program is a list of statements in single assignment form. :func:`source` writes it in the `.mesh`
language, :class:`Reference` computes it; neither asks the compiler anything.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from bounded import Arithmetic, Bounded, Rules, exact
from operations import ATOM, Dims, Fragment, Operation, Scope


@dataclass(frozen=True)
class Tensor:
    """A param, an input or a block's argument."""

    name: str
    dims: Dims


@dataclass(frozen=True)
class Apply:
    """``result = operation(args)``; ``inline`` writes it into the expression that uses it."""

    result: str
    operation: Operation
    args: tuple[str, ...]
    inline: bool = False
    stated: Dims = ()
    chosen: bool = False

    @property
    def results(self) -> tuple[str, ...]:
        return (self.result,)


@dataclass(frozen=True)
class Block:
    """A named piece; ``dims`` of its own stand for those of the arguments."""

    name: str
    formals: tuple[Tensor, ...]
    body: tuple[Apply, ...]
    returns: tuple[str, ...]


@dataclass(frozen=True)
class Call:
    """``results = block(args)``; ``names`` gives for each dim of the block the caller's."""

    results: tuple[str, ...]
    block: Block
    args: tuple[str, ...]
    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Carried:
    """A value carried through a repeat: its name there and afterwards, and where it comes from."""

    name: str
    start: str
    end: str


@dataclass(frozen=True)
class Repeat:
    """``repeat count { .. }`` with params of its own."""

    count: str
    params: tuple[Tensor, ...]
    carried: tuple[Carried, ...]
    body: tuple[Apply | Call, ...]

    @property
    def results(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.carried)

    @property
    def args(self) -> tuple[str, ...]:
        return tuple(c.start for c in self.carried) + tuple(
            name for s in self.body for name in s.args
        )


Statement = Apply | Call | Repeat


@dataclass(frozen=True)
class Program:
    """A model. ``tokens`` names the input of token ids, if there is one; ``early`` is what prefill
    returns; ``extents`` are those of the dims that the model declares."""

    extents: Mapping[str, int]
    inputs: tuple[Tensor, ...]
    params: tuple[Tensor, ...]
    body: tuple[Statement, ...]
    returns: tuple[str, ...]
    kinds: Arithmetic = field(default_factory=Arithmetic)
    tokens: str = ""
    early: str = ""
    shared: tuple[str, str] | None = None
    stated: tuple[Dims, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def is_cached(self) -> bool:
        """Whether it has caches, and so the phases prefill and decode."""
        return any(op.operation.name == "append" for op in operations(self))

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Extents of all params by name, those of repeats stacked."""
        found = {p.name: self.shape(p.dims) for p in self.params}
        for statement in self.body:
            if isinstance(statement, Repeat):
                for p in statement.params:
                    found[p.name] = (self.extents[statement.count], *self.shape(p.dims))
        return found

    def shape(self, dims: Dims) -> tuple[int, ...]:
        """Extents of dims."""
        return tuple(1 if d == "B" else self.extents[d] for d in dims)


def operations(program: Program) -> Iterator[Apply]:
    """Every application, those in repeats and blocks included."""

    def inside(statements: Sequence[Statement]) -> Iterator[Apply]:
        for statement in statements:
            if isinstance(statement, Apply):
                yield statement
            elif isinstance(statement, Call):
                yield from statement.block.body
            else:
                yield from inside(statement.body)

    return inside(program.body)


# --- text


def source(program: Program) -> str:
    """The program in the `.mesh` language."""
    lines = [f"model random({_head(program)}) {{"]
    lines += [f"  weights {program.kinds.stored}  accumulate {program.kinds.sums}"]
    if program.shared:
        lines += [f"  heads {program.shared[0]} share {program.shared[1]}"]
    lines += _params(program.params, "  ")
    for block in dict.fromkeys(_blocks(program.body)):
        lines += _block_lines(block)
    inputs = [f"{t.name}{_shown(t.dims)}" for t in program.inputs]
    if program.tokens:
        inputs = [f"{program.tokens}[B, L]", *inputs]
    result = f" -> {', '.join(map(_shown, program.stated))}" if program.stated else ""
    lines += [f"  main({', '.join(inputs)}){result} {{"]
    ends = [program.early, *program.returns] if program.early else list(program.returns)
    last, texts = _body_lines(program.body, ends, "    ", {}, program.flags)
    lines += last
    if program.early:
        lines += [f"    return {texts.pop(0)} when prefill"]
    lines += [f"    return {', '.join(texts)}", "  }", "}"]
    return "\n".join(lines) + "\n"


def _head(program: Program) -> str:
    words = [f"{name}={extent}" for name, extent in program.extents.items()]
    if program.is_cached:
        words = [w for w in words if w[:2] not in ("L=", "S=")]
    return ", ".join([*words, *(f"{flag}=true" for flag in program.flags)])


def _shown(dims: Dims) -> str:
    return f"[{', '.join(dims)}]"


def _params(params: Sequence[Tensor], pad: str) -> list[str]:
    if not params:
        return []
    return [f"{pad}param {', '.join(f'{p.name}{_shown(p.dims)}' for p in params)}"]


def _blocks(statements: Sequence[Statement]) -> Iterator[Block]:
    for statement in statements:
        if isinstance(statement, Call):
            yield statement.block
        elif isinstance(statement, Repeat):
            yield from _blocks(statement.body)


def _block_lines(block: Block) -> list[str]:
    formals = ", ".join(f"{t.name}{_shown(t.dims)}" for t in block.formals)
    body, texts = _body_lines(block.body, block.returns, "    ", {}, ())
    return [f"  block {block.name}({formals}) {{", *body, f"    return {', '.join(texts)}", "  }"]


def _body_lines(
    statements: Sequence[Statement],
    ends: Sequence[str],
    pad: str,
    known: dict[str, Fragment],
    flags: Sequence[str],
) -> tuple[list[str], list[str]]:
    """Lines of the statements, and the text of each of ``ends``."""
    uses = Counter(name for s in statements for name in s.args) + Counter(ends)
    known, lines = dict(known), []
    for statement in statements:
        if isinstance(statement, Repeat):
            lines += _repeat_lines(statement, pad, known)
        elif isinstance(statement, Call):
            args = ", ".join(known.get(a, Fragment(a)).text for a in statement.args)
            lines.append(f"{pad}{', '.join(statement.results)} = {statement.block.name}({args})")
        else:
            found = statement.operation.text([known.get(a, Fragment(a)) for a in statement.args])
            if statement.inline and uses[statement.result] == 1:
                known[statement.result] = found
                continue
            stated = _shown(statement.stated) if statement.stated else ""
            line = f"{statement.result}{stated} = {found.text}"
            if statement.chosen and flags:
                other = f"{statement.result} = 2 * {found.within(ATOM)}"
                line = f"if {flags[0]} {{ {line} }} else {{ {other} }}"
            lines.append(f"{pad}{line}")
    return lines, [known.get(e, Fragment(e)).text for e in ends]


def _repeat_lines(statement: Repeat, pad: str, known: dict[str, Fragment]) -> list[str]:
    lines = [
        f"{pad}{c.name} = {known.get(c.start, Fragment(c.start)).text}"
        for c in statement.carried
        if c.name != c.start
    ]
    lines.append(f"{pad}repeat {statement.count} {{")
    lines += _params(statement.params, f"{pad}  ")
    # What is read behind an assignment to it, by name or in an expression, is kept before that.
    names = {c.name for c in statement.carried}
    kept = {c.end for c in statement.carried if c.end in names and c.end != c.name}
    ends = [c.end for c in statement.carried]
    body, texts = _body_lines(statement.body, ends, f"{pad}  ", known, ())
    lines += body
    assigned: list[str] = []
    for carried, text in zip(statement.carried, texts, strict=True):
        kept |= {name for name in assigned if _reads(text, name)}
        assigned += [carried.name] if text != carried.name else []
    lines += [f"{pad}  old_{name} = {name}" for name in sorted(kept)]
    for carried, text in zip(statement.carried, texts, strict=True):
        for name in kept - {text if text == carried.name else ""}:
            text = re.sub(rf"\b{name}\b", f"old_{name}", text)
        if text != carried.name:
            lines.append(f"{pad}  {carried.name} = {text}")
    return [*lines, f"{pad}}}"]


def _reads(text: str, name: str) -> bool:
    """Whether an expression that is written out reads ``name``."""
    return re.search(rf"\b{name}\b", text) is not None


# --- meaning


class Reference:
    """The program in float64. ``weights`` and what each step is given are numbers of its type;
    caches keep from step to step. ``rules`` say which errors are followed."""

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, np.ndarray],
        capacity: int,
        rules: type[Rules] = Rules,
    ) -> None:
        self.program = program
        self.weights = weights
        self.scope = Scope(rules(program.kinds), program.extents, capacity=capacity)

    def step(
        self, inputs: Mapping[str, np.ndarray], position: int = 0, prefill: bool = False
    ) -> list[Bounded]:
        """What main returns; ``position`` counts the cached tokens."""
        program, scope = self.program, self.scope
        scope.position, scope.layer = position, 0
        values = {p.name: exact(p.dims, self.weights[p.name]) for p in program.params}
        for tensor in program.inputs:
            values[tensor.name] = exact(tensor.dims, inputs[tensor.name])
        if program.tokens:
            scope.ids = {program.tokens: inputs[program.tokens]}
        self._run(program.body, values)
        ends = [program.early] if prefill and program.early else program.returns
        return [values[name] for name in ends]

    def _run(self, statements: Sequence[Statement], values: dict[str, Bounded]) -> None:
        for statement in statements:
            if isinstance(statement, Apply):
                args = [values[a] for a in statement.args]
                values[statement.result] = statement.operation.apply(self.scope, args)
            elif isinstance(statement, Call):
                self._call(statement, values)
            else:
                self._repeat(statement, values)

    def _call(self, call: Call, values: dict[str, Bounded]) -> None:
        inward = {theirs: ours for ours, theirs in call.names}
        inner = {
            formal.name: values[arg].renamed(inward)
            for formal, arg in zip(call.block.formals, call.args, strict=True)
        }
        self._run(call.block.body, inner)
        for name, end in zip(call.results, call.block.returns, strict=True):
            values[name] = inner[end].renamed(dict(call.names))

    def _repeat(self, loop: Repeat, values: dict[str, Bounded]) -> None:
        carried = {c.name: values[c.start] for c in loop.carried}
        for layer in range(self.program.extents[loop.count]):
            self.scope.layer = layer
            inner = dict(values) | carried
            inner |= {p.name: exact(p.dims, self.weights[p.name][layer]) for p in loop.params}
            self._run(loop.body, inner)
            carried = {c.name: inner[c.end] for c in loop.carried}
        self.scope.layer = 0
        values |= carried


def features(program: Program) -> set[str]:
    """What a program has, in words, for counting."""
    found = {op.operation.name for op in operations(program)}
    tops = [s for s in program.body if isinstance(s, Repeat)]
    read: Counter[str] = Counter(name for s in program.body for name in s.args)
    read.update(program.returns)
    if tops:
        found.add("repeat")
    if len(tops) > 1:
        found.add("several repeats")
    if any(len(s.carried) > 1 for s in tops):
        found.add("several carried values")
    if any(_is_read_later(program, s, c.start) for s in tops for c in s.carried):
        found.add("value used behind the repeat that carries it")
    if any(isinstance(s, Call) for s in [*program.body, *(t for s in tops for t in s.body)]):
        found.add("block")
    if len(program.returns) > 1:
        found.add("several results")
    if len(set(program.returns)) < len(program.returns):
        found.add("one value returned twice")
    if any(op.chosen for op in operations(program)) and program.flags:
        found.add("if")
    if len(program.inputs) > 1:
        found.add("several inputs")
    if any(len(p.dims) == 1 for p in program.inputs):
        found.add("input without rows")
    if any(program.shape(p.dims)[-1] == 1 for p in program.params):
        found.add("extent 1")
    return found | {f"weights {program.kinds.stored}", f"accumulate {program.kinds.sums}"}


def _is_read_later(program: Program, loop: Repeat, name: str) -> bool:
    behind = program.body[program.body.index(loop) + 1 :]
    return name in program.returns or any(name in s.args for s in behind)


def used_only(program: Program) -> Program:
    """The program without statements, params and inputs that nothing needs. The first input stays:
    it says what the rows are."""
    ends = {*program.returns, *([program.early] if program.early else [])}
    body = _needed(program.body, ends)
    read = {name for s in body for name in s.args} | ends
    inputs = tuple(t for n, t in enumerate(program.inputs) if t.name in read or not n)
    params = tuple(p for p in program.params if p.name in read)
    kept = replace(program, body=tuple(body), params=params, inputs=inputs)
    return replace(kept, extents={d: n for d, n in program.extents.items() if d in _dims(kept)})


def _needed(statements: Sequence[Statement], ends: set[str]) -> list[Statement]:
    wanted, kept = set(ends), []
    for statement in reversed(statements):
        if not wanted & set(statement.results):
            continue
        if isinstance(statement, Repeat):
            inner = _needed(statement.body, {c.end for c in statement.carried})
            read = {name for s in inner for name in s.args}
            params = tuple(p for p in statement.params if p.name in read)
            statement = replace(statement, body=tuple(inner), params=params)
        kept.append(statement)
        wanted |= set(statement.args)
    return kept[::-1]


def _dims(program: Program) -> set[str]:
    tensors = [*program.params, *program.inputs]
    counts = set()
    for statement in program.body:
        if isinstance(statement, Repeat):
            tensors += statement.params
            counts.add(statement.count)
    shared = set(program.shared or ())
    if program.tokens:
        shared |= {"L"}
    return {d for t in tensors for d in t.dims} | counts | shared
