"""The statements of a phase: one line of Python per tile op, in program order."""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshc.backends.python.exchanges import Exchange, exchanges
from meshc.backends.python.expressions import condition, parameter
from meshc.backends.python.names import Names
from meshc.backends.python.parts import Part, parts
from meshc.backends.python.runtime import kernels as runtime_kernels
from meshc.backends.python.source_text import Argument, call
from meshc.backends.python.view_text import Writer
from meshc.ir.brought_functions import BROUGHT
from meshc.ir.core import Block, Op
from meshc.ir.kernels import KERNELS
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute, For, Recv, Relay, Send, Sweep, Wait
from meshc.ir.values import Value
from meshc.support.diagnostics import fail

_DEEPEST = 18  # Python allows 20 blocks inside each other
_DEFAULTS = {"accumulate": False, "transposed": False}


class Statements:
    """Writes blocks of ops; ``exchanges`` that occur again and again become calls."""

    def __init__(self, writer: Writer, exchanges: dict[str, Exchange]) -> None:
        self.writer = writer
        self.exchanges = exchanges
        self.functions: dict[str, str] = {}
        self.kernels: set[str] = set()
        self.local: dict[Value, str] = {}
        self.sent: set[Value] = set()
        self.loops: list[str] = []  # variables of the loops around, outermost first
        self.parts: list[str] = []  # functions of parts of loops
        self.passed: set[Value] = set()  # ends of relays, which lockstep cores need not wait for

    def define(self, module: Module) -> list[str]:
        """The functions of the exchanges, each with the view and what its guards depend on."""
        lines: list[str] = []
        for key, first in self.exchanges.items():
            self.local = _local_names(first, self.writer.names)
            name = self.functions[key] = self.writer.names.fresh(first.name(module))
            inner = [self.writer.declare(v) for v in first.variables(self.writer.coordinates)]
            lines += ["", "    @phase.recorded", f"    def {name}({', '.join(['view', *inner])}):"]
            lines.append(f'        """Along {", ".join(first.channels)}."""')
            self.writer.renamed[first.view] = "view"
            lines += self.block(Block(ops=list(first.ops)), 8, whole=True)
            del self.writer.renamed[first.view]
        self.local = {}
        return lines[1:]

    def block(self, block: Block, indent: int, depth: int = 0, whole: bool = False) -> list[str]:
        """The ops of ``block`` and, at its end, waits for what was not waited for.

        ``whole`` keeps exchanges as they are, for the function that defines one.
        """
        if depth > _DEEPEST:
            fail("python-nesting", f"loops and guards nest deeper than {_DEEPEST} levels")
        lines: list[str] = []
        plain: list[Op] = []
        for item in block.ops if whole else self.taken_together(block):
            if isinstance(item, Op):
                plain.append(item)
                continue
            lines += self.runs(plain, indent, depth, block)
            plain = []
            if isinstance(item, Part):
                lines += self.part(item, indent, block)
            else:
                lines += self.exchange(item, indent)
        lines += self.runs(plain, indent, depth, block)
        left = [t for t in _unawaited(block) if whole or t not in self.exchanged(block)]
        left = [t for t in left if t not in self.passed]
        if left:
            lines += call(indent, "wait", [self.token(t) for t in left])
        return lines or [" " * indent + "pass"]

    def items(self, block: Block) -> list[Op | Exchange]:
        """The ops of ``block``, known exchanges taken together."""
        starts = {e.ops[0]: e for e in exchanges(block.ops) if e.key in self.functions}
        inside = {op for e in starts.values() for op in e.ops[1:]}
        return [starts.get(op, op) for op in block.ops if op not in inside]

    def taken_together(self, block: Block) -> list[Op | Exchange | Part]:
        """The ops of ``block``, exchanges and parts of loops taken together."""
        return parts(self.items(block), self.loops, self.writer.coordinates)

    def part(self, part: Part, indent: int, block: Block) -> list[str]:
        """A call of the function of a part, which is defined beside the others and named after what
        it gives last."""
        last = part.items[-1]
        made = last.view if isinstance(last, Exchange) else last.views()[0]
        name = self.writer.names.fresh(f"{made.buffer.name}_of_{self.loops[-1]}")
        arguments = [self.writer.variables[v] for v in part.variables]
        self.parts += ["", "    @phase.recorded", f"    def {name}({', '.join(arguments)}):"]
        for item in part.items:
            if isinstance(item, Exchange):
                self.parts += self.exchange(item, 8)
            else:
                self.parts += self.run([item], 8, 0, block)
        return call(indent, name, arguments)

    def exchanged(self, block: Block) -> set[Value]:
        """Tokens of the exchanges in ``block``."""
        found = [item for item in self.items(block) if isinstance(item, Exchange)]
        return {token for e in found for op in e.ops for token in op.results}

    def exchange(self, exchange: Exchange, indent: int) -> list[str]:
        """A call of the function of an exchange."""
        variables = [self.writer.variables[v] for v in exchange.variables(self.writer.coordinates)]
        head = self.functions[exchange.key]
        return call(indent, head, [self.writer.view(exchange.view), *variables])

    def runs(self, ops: Sequence[Op], indent: int, depth: int, block: Block) -> list[str]:
        """Ops in stretches of equal guards."""
        return [line for run in _runs(ops) for line in self.run(run, indent, depth, block)]

    def run(self, ops: Sequence[Op], indent: int, depth: int, block: Block) -> list[str]:
        """Ops that share a guard; one that is equal on all cores becomes an ``if``."""
        guard = self.writer.when(ops[0].when)
        if guard is None or self.writer.varies(guard):
            return [line for op in ops for line in self.op(op, indent, depth)]
        lines = []
        inside = {id(op) for op in ops}
        for token in (t for op in ops if not isinstance(op, Relay) for t in op.results):
            outside = (o for o in block.walk() if id(o) not in inside)
            if token in _unawaited(block) or any(token in o.operands for o in outside):
                lines.append(f"{' ' * indent}{self.token(token)} = None")
        test = condition(guard, self.writer.spell, plain=True)
        lines.append(f"{' ' * indent}if {test}:")
        for op in ops:
            lines += self.op(op, indent + 4, depth + 1)
        return lines

    def op(self, op: Op, indent: int, depth: int) -> list[str]:
        """One statement."""
        if isinstance(op, Compute):
            return self.compute(op, indent)
        if isinstance(op, (Send, Recv)):
            return self.transfer(op, indent)
        if isinstance(op, Relay):
            return self.relay(op, indent)
        if isinstance(op, Wait):
            tokens = [t for t in op.tensors() if t not in self.passed]
            if not tokens:
                return []
            # receives first: a message that is taken at once need not be copied by its send
            tokens.sort(key=lambda t: t in self.sent)
            return call(indent, "wait", [*map(self.token, tokens), *self.on(op, "waiting")])
        if isinstance(op, (For, Sweep)):
            return self.loop(op, indent, depth)
        fail("not-a-tile-op", f"the Python back end does not know {op.NAME}", op.span)

    def compute(self, op: Compute, indent: int) -> list[str]:
        """A microkernel."""
        if op.kernel not in vars(runtime_kernels) and op.kernel not in BROUGHT:
            fail(
                "python-kernel",
                f"the run-time support of Python has no '{op.kernel}'",
                op.span,
                help=f"it has {', '.join(sorted(KERNELS.keys() & vars(runtime_kernels)))}",
            )
        self.kernels.add(op.kernel)
        arguments: list[Argument] = [self.writer.view(v) for v in op.views()]
        for name in (attribute.name for attribute in op.declared.attributes):
            value = op.params[name]
            if name not in _DEFAULTS or value != _DEFAULTS[name]:
                arguments.append(parameter(name, value, self.writer.spell))
        return call(indent, op.kernel, [*arguments, *self.on(op, f"{op.kernel}_cores")])

    def transfer(self, op: Send | Recv, indent: int) -> list[str]:
        """One end of a transfer."""
        channel = self.writer.names.of("channel", op.channel)
        verb = "send" if isinstance(op, Send) else "recv"
        if isinstance(op, Send):
            self.sent.add(op.result)
        arguments: list[Argument] = [self.writer.view(v) for v in op.views()]
        if isinstance(op, Recv) and op.combine != "store":
            arguments.append(f'combine="{op.combine}"')
        hint = f"{channel}_{'senders' if verb == 'send' else 'receivers'}"
        head = f"{self.token(op.result)} = {channel}.{verb}"
        return call(indent, head, [*arguments, *self.on(op, hint)])

    def relay(self, op: Relay, indent: int) -> list[str]:
        """A message passed on."""
        self.passed.add(op.result)
        channel = self.writer.names.of("channel", op.channel)
        arguments: list[Argument] = [self.writer.view(v) for v in op.views()]
        if op.onward != op.channel:
            arguments.append(f"to={self.writer.names.of('channel', op.onward)}")
        if op.combine != "add":
            arguments.append(f'combine="{op.combine}"')
        where = self.on(op, f"{channel}_relays")
        return call(indent, f"{channel}.relay", [*arguments, *where])

    def loop(self, op: For | Sweep, indent: int, depth: int) -> list[str]:
        """A loop, or a chain that is run core by core; a guard is put around the whole."""
        pad = " " * indent
        (body,) = op.regions
        guard = self.writer.when(op.when)
        if guard is not None and self.writer.varies(guard):
            name = self.writer.guard(guard, f"{_subject(body)}_members")
            inner = self.opened(op, indent + 4, depth + 1)
            return [f"{pad}with fabric.only({name}):", *inner]
        return self.opened(op, indent, depth)

    def opened(self, op: For | Sweep, indent: int, depth: int) -> list[str]:
        """The loop without its guard."""
        pad = " " * indent
        (body,) = op.regions
        if isinstance(op, For):
            inner, head = self.rounds(op, indent, depth)
        else:
            inner = self.block(body, indent + 4, depth + 1)
            chain = self.writer.chain(op, f"along_{_subject(body)}")
            head = f"for _ in {chain}:  # one core of the chain after the other"
        return [pad + head, *inner]

    def rounds(self, op: For, indent: int, depth: int) -> tuple[list[str], str]:
        """The body of a loop and the line above it, which binds what the body reads."""
        variable = self.writer.declare(op.var)
        self.loops.append(op.var)
        inner = self.block(op.regions[0], indent + 4, depth + 1)
        self.loops.pop()

        def used(name: str) -> bool:
            return any(re.search(rf"\b{name}\b", line) for line in inner)

        each = {self.writer.variables[n]: self.writer.several[n] for n in op.each}
        each = {name: values for name, values in each.items() if used(name)}
        if not each:
            head = f"for {variable if used(variable) else '_'} in "
            return inner, f"{head}range({self.writer.number(op.count)}):"
        names, values = ", ".join(each), ", ".join(each.values())
        if len(each) > 1:
            names, values = f"({names})", f"zip({values}, strict=True)"
        if not used(variable):
            return inner, f"for {names} in {values}:"
        return inner, f"for {variable}, {names} in enumerate({values}):"

    def on(self, op: Op, hint: str) -> list[str]:
        """The guard as an argument; an ``if`` around the statement has the others."""
        guard = self.writer.when(op.when)
        if guard is None or not self.writer.varies(guard):
            return []
        return [f"on={self.writer.guard(guard, hint)}"]

    def token(self, token: Value) -> str:
        """Identifier of a token."""
        return self.local.get(token) or self.writer.names.of("token", token.name)


def _local_names(exchange: Exchange, names: Names) -> dict[Value, str]:
    """Names of the tokens inside a function, counted anew in each."""
    found: dict[Value, str] = {}
    for op in Block(ops=list(exchange.ops)).walk():
        for token in op.results:
            verb = "sent" if isinstance(op, Send) else "got"
            count = sum(name.startswith(verb) for name in found.values())
            found[token] = names.of("local", f"{verb}_{count + 1}" if count else verb)
    return found


def _runs(ops: Sequence[Op]) -> list[list[Op]]:
    """Ops in stretches of equal guards."""
    found: list[list[Op]] = []
    for op in ops:
        if found and found[-1][0].when == op.when:
            found[-1].append(op)
        else:
            found.append([op])
    return found


def _unawaited(block: Block) -> list[Value]:
    """Tokens that ``block`` starts and does not surely wait for."""
    awaited: set[int] = set()
    guards = {id(t): op.when for op in block.ops for t in op.results}
    for op in block.ops:
        if isinstance(op, Wait):
            awaited |= {
                id(t) for t in op.operands if op.when is None or op.when == guards.get(id(t))
            }
    return [t for op in block.ops for t in op.results if id(t) not in awaited]


def _subject(body: Block) -> str:
    """What a chain is about: its first channel, or kernel."""
    for op in body.walk():
        if isinstance(op, (Send, Recv, Relay)):
            return op.channel
    return next((op.kernel for op in body.walk() if isinstance(op, Compute)), "cores")
