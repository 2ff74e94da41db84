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

_FILE = "<template>"  # what Jinja calls a template that has no name


class RefusedError(TemplateError):
    """The template called ``raise_exception``."""


class TooLongError(Exception):
    """The rendered text is longer than is asked for."""


class Generation(Extension):
    """The tag ``generation``, whose body is written as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """The call that writes what stands up to ``endgeneration``."""
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


class Parts(list[Any]):
    """A content that is a list of parts, and what a template does with it: whether it has ``read``
    the text of a part, and whether it has ``written`` parts as Python does."""

    read = written = False

    def __repr__(self) -> str:
        self.written = True
        return super().__repr__()


class Part(dict[str, Any]):
    """A part ``of`` a content, which is told what a template does with it."""

    def __init__(self, given: Mapping[str, Any], of: Parts) -> None:
        super().__init__(given)
        self._of = of

    def __repr__(self) -> str:
        self._of.written = True
        return super().__repr__()

    def __getitem__(self, key: str) -> Any:
        self._of.read |= key == "text"
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dictionary; a template that asks for ``text`` has read it."""
        self._of.read |= key == "text"
        return super().get(key, default)

    def items(self) -> Any:
        """As of a dictionary; whoever takes all has read the text."""
        self._of.read = True
        return super().items()

    def values(self) -> Any:
        """As of a dictionary; whoever takes all has read the text."""
        self._of.read = True
        return super().values()


def watched(content: Any) -> Parts | None:
    """A content that is a list of parts, whose use can be looked at afterwards."""
    if not isinstance(content, list):
        return None
    found = Parts()
    found.extend(Part(part, found) for part in content)
    return found


def joined(parts: list[Any]) -> str:
    """The texts of ``parts`` on lines of their own, as llama.cpp gives them to a template that only
    knows texts."""
    return "\n".join(part["text"] for part in parts)


def as_taken(template: Template, variables: Mapping[str, Any], most: int) -> list[Any]:
    """The messages of ``variables`` with contents as ``template`` takes them: lists of parts, where
    it reads their texts and does not write them as Python does, and otherwise texts. One that only
    knows texts may fail over lists: all are texts then."""
    messages = list(variables["messages"])
    lists = {i: found for i, one in enumerate(messages) if (found := watched(one.get("content")))}
    if not lists:
        return messages
    shown = [*messages]
    for i, content in lists.items():
        shown[i] = {**messages[i], "content": content}
    try:
        rendered(template, {**variables, "messages": shown}, most)
        as_texts = [i for i, one in lists.items() if one.written or not one.read]
    except (MemoryError, TooLongError):
        raise
    except Exception:
        as_texts = list(lists)
    for i in as_texts:
        messages[i] = {**messages[i], "content": joined(messages[i]["content"])}
    return messages


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
        variables = {**variables, "messages": as_taken(template, variables, asked["most"])}
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
