"""Operations as text: the only place where they become it."""

from __future__ import annotations

from collections.abc import Iterator

from meshc.backends.ttlang.operation import (
    Body,
    Compute,
    Net,
    Operation,
    Pipe,
    Pop,
    Push,
    Read,
    Receive,
    Repeat,
    Reserve,
    Send,
    Wait,
    When,
    Window,
    Write,
)

_STEP = "    "


def text_of(operation: Operation, name: str) -> str:
    """The definition of ``operation`` as the function ``name``."""
    parameters = ", ".join(f"{tensor}: ttnn.Tensor" for tensor in operation.tensors)
    lines = [
        f"@ttl.operation(grid=({operation.columns}, {operation.rows}))",
        f"def {name}({parameters}) -> None:",
    ]
    for net in operation.nets:
        lines += _indented(_net(net))
    for buffer in operation.buffers:
        shape = f"shape=({buffer.rows}, {buffer.columns}), block_count={buffer.count}"
        made = f"ttl.make_dataflow_buffer_like({buffer.like}, {shape})"
        lines.append(f"{_STEP}{buffer.name} = {made}")
    threads = (
        ("datamovement", "bring", operation.movers[0]),
        ("compute", "compute", operation.compute),
        ("datamovement", "store", operation.movers[1]),
    )
    for kind, called, body in threads:
        lines += ["", f"{_STEP}@ttl.{kind}()", f"{_STEP}def {called}() -> None:"]
        lines += _indented([_node(), *_Statements().lines(body)], 2)
    return "\n".join(lines) + "\n"


def _node() -> str:
    return "column, row = ttl.node(dims=2)"


def _net(net: Net) -> Iterator[str]:
    """A net is of pipes to single nodes or of pipes to rectangles, never of both."""
    rectangles = any(len(pipe.receivers) > 1 for pipe in net.pipes)
    yield f"{net.name} = ttl.PipeNet(["
    for pipe in net.pipes:
        yield f"{_STEP}{_pipe(pipe, rectangles)},"
    yield "])"


def _pipe(pipe: Pipe, rectangle: bool) -> str:
    columns, rows = (_nodes(*ends, rectangle) for ends in (pipe.columns, pipe.rows))
    return f"ttl.Pipe(src={pipe.source}, dst=({columns}, {rows}))"


def _nodes(first: int, last: int, rectangle: bool) -> str:
    return f"slice({first}, {last + 1})" if rectangle else str(first)


class _Statements:
    """Writes statements of a thread; what it defines has a number, so that no name is used for two
    things."""

    def __init__(self) -> None:
        self.defined = 0

    def lines(self, body: Body) -> Iterator[str]:
        for statement in body:
            if isinstance(statement, Reserve):
                yield f"{statement.block} = {statement.buffer}.reserve()"
            elif isinstance(statement, Wait):
                yield f"{statement.block} = {statement.buffer}.wait()"
            elif isinstance(statement, Push):
                yield f"{statement.block}.push()"
            elif isinstance(statement, Pop):
                yield f"{statement.block}.pop()"
            elif isinstance(statement, Read):
                yield from self._copied(_window(statement.window), statement.block)
            elif isinstance(statement, Write):
                yield from self._copied(statement.block, _window(statement.window))
            elif isinstance(statement, (Send, Receive)):
                yield from self._through(statement)
            elif isinstance(statement, When):
                yield f"if {statement.nodes.condition}:"
                yield from _indented(self.lines(statement.then))
                if statement.other:
                    yield "else:"
                    yield from _indented(self.lines(statement.other))
            elif isinstance(statement, Repeat):
                yield f"for {statement.variable} in range({statement.count}):"
                yield from _indented(self.lines(statement.body))
            else:
                yield from _computed(statement)

    def _copied(self, source: str, target: str) -> Iterator[str]:
        self.defined += 1
        copy = f"copy{self.defined}"
        yield f"{copy} = ttl.copy({source}, {target})"
        yield f"{copy}.wait()"

    def _through(self, statement: Send | Receive) -> Iterator[str]:
        gives = isinstance(statement, Send)
        ends = (statement.block, "pipe") if gives else ("pipe", statement.block)
        function = f"{'give' if gives else 'take'}{self.defined + 1}"
        yield f"def {function}(pipe) -> None:"
        yield from _indented(self._copied(*ends))
        yield f"{statement.net}.{'if_src' if gives else 'if_dst'}({function})"


def _window(window: Window) -> str:
    rows = _slice(window.row, window.rows)
    return f"{window.tensor}[{rows}, {_slice(window.column, window.columns)}]"


def _slice(first: str, count: int) -> str:
    end = str(int(first) + count) if first.isdecimal() else f"{first} + {count}"
    return f"{first}:{end}"


def _computed(statement: Compute) -> Iterator[str]:
    held = [f"{buffer}.wait() as {block}" for block, buffer in statement.takes]
    held += [f"{buffer}.reserve() as {block}" for block, buffer in statement.gives]
    yield f"with {', '.join(held)}:"
    for (block, _), expression in zip(statement.gives, statement.expressions, strict=True):
        yield f"{_STEP}{block}.store({expression})"


def _indented(lines: Iterator[str] | list[str], steps: int = 1) -> list[str]:
    return [_STEP * steps + line for line in lines]
