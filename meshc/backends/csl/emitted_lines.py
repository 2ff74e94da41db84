"""Which lines of the program of a PE the ops of its module became.

The file says it: code of a kernel stands behind a comment that spells its op, a transfer is an
operation on descriptors named after its channel, and loops and waits head the cases of ``step``.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence

from meshc.backends.csl.pe.program import said
from meshc.backends.lines_of_ops import Stretch, completed, paired
from meshc.ir.core import Op
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute, For, Recv, Relay, Send, Transfer

Found = Iterator[tuple[tuple[Hashable, ...], Stretch]]

_COMMENT = re.compile(r"(?P<code>.*?)// (?P<said>.*)")
_CALL = re.compile(r"\s*(\w+)\(.*\);")
_FUNCTION = re.compile(r"fn (\w+)\(")
_SHARED = re.compile(r"// In \d+ places of the program\.")
_CASE = re.compile(r"for (\w+) = 0 \.\. ")
_LOOP = re.compile(r"\s*for \(@range\(i16, .*\)\) \|(\w+)\| \{")
_LEAVES = re.compile(r"\s*(pc = |return;|if \(|while |\w+ (\+)?= )")
_ENDS = re.compile(r"\b\w+?_(in|out)_\d")
_MOST_WRAPPED = 4
"""Lines that the comment of an op may take."""


def emitted_lines(module: Module, text: str) -> dict[Op, list[Stretch]]:
    """By op, the lines of ``text``, the program of a PE that was emitted from ``module``."""
    lines = text.split("\n")
    known = {said(op) for op in module.walk() if isinstance(op, Compute)}
    moved = [*_transfers(lines, module)]
    found = [*_kernels(lines, known), *_loops(lines), *moved]
    ops = [(key, op) for op in module.walk() if (key := _key(op)) is not None]
    pairs = paired(ops, found)
    # Arrays that lie over each other have one name in the text: what is left goes by its channel.
    by_channel = [(key[:2], stretch) for key, stretch in moved]
    left = [(key[:2], op) for key, op in ops if op not in pairs and isinstance(op, Transfer)]
    return completed(module, pairs | paired(left, by_channel))


def _key(op: Op) -> tuple[Hashable, ...] | None:
    if isinstance(op, Compute):
        return "kernel", said(op)
    if isinstance(op, For):
        return "loop", _identifier(op.var)
    ends: list[tuple[str, str]] = []
    if isinstance(op, (Recv, Relay)):
        ends.append((_identifier(op.channel), "in"))
    if isinstance(op, Send):
        ends.append((_identifier(op.channel), "out"))
    if isinstance(op, Relay):
        ends.append((_identifier(op.onward), "out"))
    return ("transfer", frozenset(ends), _identifier(op.views()[0].buffer.name)) if ends else None


def _identifier(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")


def _kernels(lines: Sequence[str], known: set[str]) -> Found:
    functions = {match[1]: _closed(lines, at) for at, match in _matches(lines, _FUNCTION)}
    shared = {name for name, one in functions.items() if _SHARED.match(lines[one.first - 2])}
    for at, line in enumerate(lines):
        comment = _COMMENT.match(line)
        if comment is None:
            continue
        trailing = bool(comment["code"].strip())
        words, last = _spelt(lines, at, known, trailing)
        if not words:
            continue
        end = _end(lines, at if trailing else last + 1, known, shared)
        yield ("kernel", words), Stretch(at + 1, end + 1)
        for called in (_CALL.match(one) for one in lines[at : end + 1]):
            if called and called[1] in functions.keys() - shared:
                yield ("kernel", words), functions[called[1]]


def _spelt(lines: Sequence[str], at: int, known: set[str], trailing: bool) -> tuple[str, int]:
    """The op that a comment spells, on one line or on several, and its last line."""
    words = ""
    for last in range(at, min(at + (1 if trailing else _MOST_WRAPPED), len(lines))):
        comment = _COMMENT.match(lines[last])
        if comment is None or (not trailing and comment["code"].strip()):
            break
        words = f"{words} {comment['said']}".strip()
        if words in known:
            return words, last
    return "", at


def _end(lines: Sequence[str], first: int, known: set[str], shared: set[str]) -> int:
    """The last line of the code that begins on line ``first`` (from 0): up to what spells another
    op, starts a transfer, calls what several ops share or leaves the block."""
    depth, opened = _indent(lines[first]), first
    for at in range(first + 1, len(lines)):
        line = lines[at]
        if not line.strip() or _indent(line) < depth:
            return at - 1
        comment = _COMMENT.match(line)
        trailing = comment is not None and bool(comment["code"].strip())
        another = comment is not None and bool(_spelt(lines, at, known, trailing)[0])
        if _indent(line) > depth:
            if another or _ENDS.search(line):  # of a loop or statement that begins there
                return max(first, opened - 1)
            continue
        call = _CALL.match(line)
        if another or _LEAVES.match(line) or _ENDS.search(line):
            return at - 1
        if call is not None and call[1] in shared:
            return at - 1
        opened = at if line.strip() not in (");", "}") else opened
    return len(lines) - 1


def _transfers(lines: Sequence[str], module: Module) -> Found:
    """Vector operations on ends of channels, with the buffer whose elements pass."""
    if not module.channels:
        return
    channels = _any_of(channel.name for channel in module.channels)
    end = re.compile(rf"\b({channels})_(in|out)_\d")
    buffer = re.compile(rf"\b({_any_of(b.value.name for b in module.buffers)})(?:_all|_\d|\[|\b)")
    for at, line in enumerate(lines):
        if not re.match(r"\s*@(f|mov)\w+\(", line):
            continue
        last = at
        while ";" not in lines[last] and last + 1 < len(lines):
            last += 1
        code = " ".join(one.partition("//")[0] for one in lines[at : last + 1])
        if ends := frozenset(end.findall(code)):
            memory = buffer.search(end.sub("", code))
            yield ("transfer", ends, memory[1] if memory else ""), Stretch(at + 1, last + 1)


def _loops(lines: Sequence[str]) -> Found:
    """Cases that begin a loop, and loops that need no case."""
    for at, line in enumerate(lines):
        comment, loop = _COMMENT.match(line), _LOOP.match(line)
        case = _CASE.match(comment["said"]) if comment is not None else None
        if case is not None:
            yield ("loop", case[1]), Stretch(at + 1, at + 1)
        elif loop is not None:
            yield ("loop", loop[1]), Stretch(at + 1, at + 1)


def _any_of(names: Iterable[str]) -> str:
    """A pattern for the identifiers of ``names``, longer ones first."""
    return "|".join(sorted(map(_identifier, names), key=len, reverse=True))


def _matches(lines: Sequence[str], pattern: re.Pattern[str]) -> Iterator[tuple[int, re.Match[str]]]:
    for at, line in enumerate(lines):
        if match := pattern.match(line):
            yield at, match


def _closed(lines: Sequence[str], first: int) -> Stretch:
    """A function, from its head to the brace that closes it."""
    last = next((at for at in range(first, len(lines)) if lines[at] == "}"), first)
    return Stretch(first + 1, last + 1)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
