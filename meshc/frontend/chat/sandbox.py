"""A program that fills in one chat template: a JSON object on stdin, another one on stdout.

Templates come with models, so they are strangers' code. Jinja's sandbox keeps them from Python, but
not from nested loops and doubled texts, which no count of iterations bounds (one power of two
numbers may take hours); so this program limits its own processor time and memory, and whoever
starts it bounds how long it may take. It imports nothing of meshc and runs by its path.

The environment is the one that Hugging Face transformers documents for chat templates: blocks are
trimmed, loops have break and continue, and there are ``raise_exception``, ``strftime_now``, a
``tojson`` that writes text as it is, and the tag ``generation``, which marks answers in training.
"""

from __future__ import annotations

import json
import resource
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_MARK = "the text of a part"
_FILE = "<template>"  # what Jinja calls a template that has no name


class RefusedError(TemplateError):
    """The template called ``raise_exception``."""


class TooLongError(Exception):
    """The rendered text is longer than is asked for."""


class Generation(Extension):
    """The tag ``generation``, whose body is written as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller: Callable[[], str]) -> str:
        return caller()


class PlainNamespace(Namespace):
    """A namespace without names that start with an underscore, as Python's own do."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *given = args  # as in Jinja's, so that one of the names may be ``self``
        names = dict(*given, **kwargs)
        for name in names:
            PlainNamespace._check(name)
        Namespace.__init__(self, names)

    def __setitem__(self, name: str, value: Any) -> None:
        PlainNamespace._check(name)
        super().__setitem__(name, value)

    @staticmethod
    def _check(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise TemplateError(f"a namespace has no name {name!r}")


def raise_exception(message: object) -> NoReturn:
    """What templates call for a conversation that they cannot write."""
    raise RefusedError(str(message))


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """``value`` as JSON; unlike Jinja's own filter this escapes nothing for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def environment(clock: Callable[[str], str]) -> ImmutableSandboxedEnvironment:
    """The environment of chat templates; ``clock`` writes the date by a format."""
    found = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, LoopControlExtension]
    )
    found.filters["tojson"] = to_json
    found.globals["raise_exception"] = raise_exception
    found.globals["strftime_now"] = clock
    found.globals["namespace"] = PlainNamespace
    found.globals["dict"] = lambda *args, **kwargs: dict(*args, **kwargs)  # no class to look into
    return found


def rendered(template: Template, variables: Mapping[str, Any], most: int) -> str:
    """What ``template`` writes. Raises TooLongError beyond ``most`` characters."""
    pieces, length = [], 0
    for piece in template.generate(**variables):
        pieces.append(piece)
        length += len(piece)
        if length > most:
            raise TooLongError
    return "".join(pieces)


def with_contents(messages: list[Any], change: Callable[[list[Any]], Any]) -> list[Any]:
    """``messages`` with ``change`` of the contents that are lists of parts."""
    return [
        {**one, "content": change(one["content"])} if isinstance(one.get("content"), list) else one
        for one in messages
    ]


def joined(parts: list[Any]) -> str:
    """The texts of ``parts`` on lines of their own, as llama.cpp gives them to a template that only
    knows texts."""
    return "\n".join(part["text"] for part in parts)


def takes_parts(template: Template, variables: Mapping[str, Any], most: int) -> bool:
    """Whether ``template`` writes the texts of contents that are lists of parts, and no more of
    these: one that only knows texts fails, writes nothing, or writes the list as Python does."""

    def marked(parts: list[Any]) -> list[Any]:
        return [{**part, "text": _MARK} for part in parts]

    messages = with_contents(variables["messages"], marked)
    if messages == variables["messages"]:
        return True  # there are no parts
    try:
        text = rendered(template, {**variables, "messages": messages}, most)
    except (MemoryError, TooLongError):
        raise
    except Exception:
        return False
    return _MARK in text and repr({"text": _MARK})[1:-1] not in text


def answer(asked: Mapping[str, Any]) -> dict[str, object]:
    """The ``text`` and whether it is ``dated``, or a ``fault``, with ``words`` and perhaps the
    ``line`` of the template."""
    now, formats = datetime.fromisoformat(asked["now"]), []

    def clock(form: str) -> str:
        formats.append(form)
        return now.strftime(form)

    jinja = environment(clock)
    try:
        used = meta.find_undeclared_variables(jinja.parse(asked["template"]))
        unknown = sorted(used & set(asked["unknown"]))
        if unknown:
            return {"fault": "unknown", "words": unknown[0]}
        template, variables = jinja.from_string(asked["template"]), asked["variables"]
        if not takes_parts(template, variables, asked["most"]):
            variables = {**variables, "messages": with_contents(variables["messages"], joined)}
        return {"text": rendered(template, variables, asked["most"]), "dated": bool(formats)}
    except TooLongError:
        return {"fault": "length"}
    except MemoryError:
        return {"fault": "memory"}
    except RefusedError as error:
        return {"fault": "refused", "words": str(error), "line": _line(error)}
    except Exception as error:
        # Whatever goes wrong in a template is an error of that template, of any class.
        words = str(error) or type(error).__name__
        return {"fault": "failed", "words": words, "line": _line(error)}


def _line(error: Exception) -> int | None:
    """The line of the template where ``error`` was raised."""
    if isinstance(error, TemplateSyntaxError):
        return error.lineno
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == _FILE]
    return lines[-1] if lines else None


def _limit(kind: int, most: int) -> None:
    """Have the kernel hold this process to ``most``, where it can."""
    # Where a kernel knows no such limit, the deadline of whoever waits is left.
    with suppress(OSError, ValueError):
        resource.setrlimit(kind, (most, most))


def main() -> None:
    """Answer once."""
    asked = json.load(sys.stdin)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CPU, asked["seconds"])
    _limit(resource.RLIMIT_AS, asked["bytes"])
    json.dump(answer(asked), sys.stdout)


if __name__ == "__main__":
    main()
