"""Which lines of the emitted Python of a phase the ops of its module became.

A kernel is a call of its name whose first argument is a view of its first buffer; a transfer is a
method of its channel; a loop is one over its variable.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence

from meshc.backends.lines_of_ops import Stretch, completed, paired
from meshc.ir.core import Op
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute, For, Recv, Relay, Send

_TRANSFER = re.compile(r"\s*(?:\w+ = )?(\w+)\.(send|recv|relay)\(")
_LOOP = re.compile(r"\s*for (\w+) in ")
_CALL = re.compile(r"\s*(\w+)\(\s*(\w+)")
_VERBS = {Send: "send", Recv: "recv", Relay: "relay"}


def emitted_lines(module: Module, text: str) -> dict[Op, list[Stretch]]:
    """By op, the lines of ``text``, the file of a phase that was emitted from ``module``."""
    lines = text.split("\n")
    ops = [(key, op) for op in module.walk() if (key := _key(op)) is not None]
    return completed(module, paired(ops, _found(lines)))


def _key(op: Op) -> Hashable:
    if isinstance(op, Compute):
        return "kernel", op.kernel, _identifier(op.views()[0].buffer.name)
    if isinstance(op, For):
        return "loop", _identifier(op.var)
    if isinstance(op, (Send, Recv, Relay)):
        return "transfer", _identifier(op.channel), _VERBS[type(op)]
    return None


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _found(lines: Sequence[str]) -> Iterator[tuple[Hashable, Stretch]]:
    for at, line in enumerate(lines):
        last = at
        while last + 1 < len(lines) and _open(lines[at : last + 1]):
            last += 1
        stretch = Stretch(at + 1, last + 1)
        if match := _TRANSFER.match(line):
            yield ("transfer", match[1], match[2]), stretch
        elif match := _LOOP.match(line):
            yield ("loop", match[1]), Stretch(at + 1, at + 1)
        elif match := _CALL.match("\n".join(lines[at : last + 1])):
            yield ("kernel", match[1], match[2]), stretch


def _open(lines: Sequence[str]) -> bool:
    """Whether a parenthesis of ``lines`` is still open."""
    text = "".join(lines)
    return text.count("(") > text.count(")")
