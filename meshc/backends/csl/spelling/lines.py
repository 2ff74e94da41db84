"""Long lines of CSL broken at commas, one argument per line."""

from __future__ import annotations

import textwrap

WIDTH = 100
_PAD = "    "
_OPENING, _CLOSING = "([{", ")]}"


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
        inner = [piece for one in statements for piece in wrapped(f"{indent}{_PAD}{one}")]
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
    inner = [piece for part in parts[:-1] for piece in wrapped(f"{indent}{_PAD}{part},")]
    inner += wrapped(f"{indent}{_PAD}{parts[-1]}{comma}")
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
