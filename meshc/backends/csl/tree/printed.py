"""The text of a tree of CSL, its long lines broken at commas, one argument per line."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from meshc.backends.csl.tree import syntax_tree as csl
from meshc.ir.core import Op

WIDTH = 100
PAD = "    "
_OPENING, _CLOSING = "([{", ")]}"
_OPERATORS = ("or",), ("and",), ("==", "!=", "<", "<=", ">", ">="), ("&",), (">>",), ("+", "-")
_LEVELS = {each: level for level, alike in enumerate(_OPERATORS) for each in alike}
_PRODUCT = len(_OPERATORS)
_LEVELS |= dict.fromkeys("*/%", _PRODUCT)
_SINGLE = _PRODUCT + 1
_CHAINS = ("or", "and", "+", "-", "*")
"""What is done in order where it follows operators that bind alike, of products only others."""


class Line(NamedTuple):
    """A line of a file, the op that it came from, and the function that it is in."""

    text: str
    op: Op | None = None
    function: str = ""


def printed(statements: Iterable[csl.Statement]) -> str:
    """The text of a file."""
    return "".join(f"{line.text}\n" for line in lines_of(statements))


def lines_of(statements: Iterable[csl.Statement]) -> Iterator[Line]:
    """The lines of a file. Functions stand apart from what is before and behind them."""
    before: csl.Statement = csl.Blank()
    for statement in statements:
        function = statement.name if isinstance(statement, csl.Function) else ""
        apart = function or isinstance(before, csl.Function)
        if apart and not isinstance(before, (csl.Blank, csl.Remark)) and statement != csl.Blank():
            yield Line("")
        for line in _lines([statement], ""):
            for text in wrapped(line.text):
                yield Line(text, line.op, function)
        before = statement


# --- expressions


def spelled(expression: csl.Expression) -> str:
    """``expression`` as text."""
    match expression:
        case csl.Name(text) | csl.Literal(text):
            return text
        case csl.Infix(left, operator, right):
            return f"{_operand(left, operator)} {operator} {_operand(right, operator, last=True)}"
        case csl.Prefix(operator, operand):
            text = spelled(operand)
            product = isinstance(operand, csl.Infix) and operand.operator == "*"
            alone = _level(operand) == _SINGLE or (operator == "-" and product)
            return f"{operator}{text if alone else f'({text})'}"
        case csl.Call(function, arguments):
            return f"{function}({_listed(arguments)})"
        case csl.Element(array, index):
            return f"{array}[{spelled(index)}]"
        case csl.Either(test, then, otherwise):
            return f"if ({spelled(test)}) {spelled(then)} else {spelled(otherwise)}"
        case csl.Record(fields):
            named = (f".{name} = {spelled(of)}" if name else spelled(of) for name, of in fields)
            return f".{{ {', '.join(named)} }}"
        case csl.Words(kind, values):
            return f"{kind}{{ {_listed(values)} }}"
        case csl.Walked(variables, extents, of):
            counts = ", ".join(map(str, extents))
            return f"|{', '.join(variables)}|{{{counts}}} -> {spelled(of)}"
    raise TypeError(f"{expression} has no spelling")


def _listed(values: Iterable[csl.Expression]) -> str:
    return ", ".join(map(spelled, values))


def _level(expression: csl.Expression) -> int:
    """How tightly the parts of an expression hang together."""
    if isinstance(expression, csl.Infix):
        return _LEVELS[expression.operator]
    if isinstance(expression, csl.Prefix) and expression.operator == "-":
        return min(_level(expression.operand), _SINGLE)
    return -1 if isinstance(expression, csl.Either) else _SINGLE


def _operand(operand: csl.Expression, operator: str, last: bool = False) -> str:
    """An operand of ``operator``, in parentheses where it needs them or reads better."""
    level, own = _LEVELS[operator], _level(operand)
    inner = operand.operator if isinstance(operand, csl.Infix) else ""
    if own == level:
        alone = not last and operator in _CHAINS and (level < _PRODUCT or inner == "*")
    else:
        alone = own > level and (operator, inner) != ("or", "and")
    return spelled(operand) if alone else f"({spelled(operand)})"


# --- statements


def _lines(statements: Iterable[csl.Statement], pad: str) -> Iterator[Line]:
    """Lines that may be too long."""
    for statement in statements:
        if isinstance(statement, csl.Became):
            mark = f" // {statement.remark}" if statement.remark else ""
            for line in _lines(statement.body, pad):
                yield Line(line.text + mark, line.op or statement.op)
                mark = ""
        else:
            yield from _of_one(statement, pad)


def _of_one(statement: csl.Statement, pad: str) -> Iterator[Line]:
    match statement:
        case csl.Blank():
            yield Line("")
        case csl.Remark(text):
            yield Line(f"{pad}// {text}")
        case csl.If(arms, short):
            yield from _arms(arms, short, pad)
        case csl.For(variable, numbers, body):
            head = f"for (@range(i16, {_listed(numbers)})) |{variable}|"
            yield from _block(head, body, pad)
        case csl.While(test, body):
            yield from _block(f"while ({spelled(test)})", body, pad)
        case csl.Scope(body, word):
            yield from _block(word, body, pad)
        case csl.Function(name, parameters, body, result, remark, word):
            if remark:
                yield Line(f"// {remark}")
            yield from _block(f"{word} {name}({', '.join(parameters)}) {result}", body, pad)
        case csl.Switch(subject, cases):
            yield Line(f"{pad}switch ({spelled(subject)}) {{")
            for label, remark, body in cases:
                yield Line(f"{pad}{PAD}{label} => {{ // {remark}")
                yield from _lines(body, pad + 2 * PAD)
                yield Line(f"{pad}{PAD}}},")
            yield Line(f"{pad}}}")
        case csl.Declare(_, _, csl.Either() as value) if len(one := _simple(statement)) > WIDTH:
            head = one[: one.index("if (")]
            yield Line(f"{pad}{head}if ({spelled(value.test)})")
            yield Line(f"{pad}{PAD}{spelled(value.then)}")
            yield Line(f"{pad}else")
            yield Line(f"{pad}{PAD}{spelled(value.otherwise)};")
        case _:
            yield Line(pad + _simple(statement))


def _simple(statement: csl.Statement) -> str:
    """A statement of one line."""
    match statement:
        case csl.Do(call):
            return f"{spelled(call)};"
        case csl.Assign(target, value, operator):
            return f"{spelled(target)} {operator} {spelled(value)};"
        case csl.Declare(word, name, value, kind, remark):
            typed = f": {kind}" if kind else ""
            given = "" if value is None else f" = {spelled(value)}"
            return f"{word} {name}{typed}{given};{f' // {remark}' if remark else ''}"
        case csl.Return(None):
            return "return;"
        case csl.Return(value) if value is not None:
            return f"return {spelled(value)};"
    raise TypeError(f"{statement} is no statement of one line")


def _block(head: str, body: csl.Body, pad: str) -> Iterator[Line]:
    yield Line(f"{pad}{head} {{" if head else f"{pad}{{")
    yield from _lines(body, pad + PAD)
    yield Line(f"{pad}}}")


def _arms(
    arms: tuple[tuple[csl.Expression | None, csl.Body], ...], short: bool, pad: str
) -> Iterator[Line]:
    begin = ""
    for test, body in arms:
        head = begin + ("" if test is None else f"if ({spelled(test)}) ")
        if short:
            yield Line(f"{pad}{head}{{ {' '.join(map(_simple, body))} }}")
            begin = "else "
            continue
        yield Line(f"{pad}{head}{{")
        yield from _lines(body, pad + PAD)
        begin = "} else "
    if not short:
        yield Line(f"{pad}}}")


# --- long lines


def wrapped(line: str) -> list[str]:
    """``line``, or where it is too long its last bracketed list over several lines."""
    if len(line) <= WIDTH:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    code, mark, comment = line.partition("// ")
    if mark:
        rest = [] if not code.strip() else wrapped(code.rstrip())
        return [*_comment(comment, indent), *rest]
    span = _longest_list(line)
    if span is None:
        return [line]
    start, end = span
    if line[start + 1 : end].rstrip().endswith(";"):
        statements = [f"{part};" for part in _split(line[start + 1 : end], ";")]
        inner = [piece for one in statements for piece in wrapped(f"{indent}{PAD}{one}")]
        return [line[: start + 1], *inner, indent + line[end:]]
    parts = _split(line[start + 1 : end])
    head, tail = line[: start + 1], line[end:]
    last = head + ", ".join([*parts[:-1], ".{"])
    if parts[-1].startswith(".{ ") and len(parts) > 1 and len(last) <= WIDTH:
        # the last argument is a struct: its fields take the lines
        head = last
        tail = "}" + tail
        parts = _split(parts[-1][3:-2])
    comma = "" if head.endswith("(") else ","
    inner = [piece for part in parts[:-1] for piece in wrapped(f"{indent}{PAD}{part},")]
    inner += wrapped(f"{indent}{PAD}{parts[-1]}{comma}")
    return [head.rstrip(), *inner, indent + tail.lstrip()]


def _comment(text: str, indent: str) -> list[str]:
    head = f"{indent}// "
    return textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=head, break_long_words=False
    )


def _longest_list(line: str) -> tuple[int, int] | None:
    """The outermost brackets that hold the most text."""
    best, open_, depth = None, 0, 0
    for place, letter in enumerate(line):
        if letter in _OPENING:
            if depth == 0:
                open_ = place
            depth += 1
        elif letter in _CLOSING:
            depth -= 1
            if depth == 0 and (best is None or place - open_ > best[1] - best[0]):
                best = (open_, place)
    return best if best is not None and best[1] - best[0] > 2 else None


def _split(text: str, separator: str = ",") -> list[str]:
    """Parts between separators that stand in no bracket and in no capture list."""
    parts, depth, start, capture = [], 0, 0, False
    for place, letter in enumerate(text):
        depth += (letter in _OPENING) - (letter in _CLOSING)
        capture ^= letter == "|"
        if letter == separator and depth == 0 and not capture:
            parts.append(text[start:place].strip())
            start = place + 1
    return [p for p in [*parts, text[start:].strip()] if p]
