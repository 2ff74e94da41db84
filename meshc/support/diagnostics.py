"""Diagnostics: what a user sees when something is wrong, missed, or worth knowing.

Form: ``error[code]: words`` with file:line:column, the source line, a caret, notes and a help line
(the form of rustc and clang). Every code has an entry in ``support/codes/*.toml``, which
``meshc explain CODE`` prints.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Literal, NoReturn, TypeVar

from meshc.support.paint import Paint, plain
from meshc.support.spans import Span

Severity = Literal["error", "warning", "remark", "missed"]

Result = TypeVar("Result")

_TAB_WIDTH = 4


@dataclass(frozen=True)
class Reproducer:
    """A module as it was before a pass that broke, and the passes that were left. ``checked``: what
    broke is only seen where what each pass leaves is run."""

    message: str
    pipeline: str
    module_text: str
    checked: bool = False

    @property
    def text(self) -> str:
        """``.meshir`` text, headed by comments that say what happened and how to see it again."""
        comments = [*self.message.splitlines(), self.command("THIS_FILE")]
        return "".join(f"# {line}\n" for line in comments) + self.module_text

    def command(self, file: str) -> str:
        """What shows it again, of ``file`` with the text."""
        check = " --check" if self.checked else ""
        return f"meshc opt {file} --passes '{self.pipeline}'{check}"


@dataclass(frozen=True)
class Diagnostic:
    """One message. ``code`` is kebab-case and listed in ``support/codes``; ``again`` shows a fault
    of a pass of another package again."""

    severity: Severity
    code: str
    message: str
    span: Span | None = None
    notes: tuple[str, ...] = ()
    help: str | None = None
    again: Reproducer | None = field(default=None, compare=False)

    def render(self, paint: Paint = plain) -> str:
        """The message as text of several lines, without a trailing newline."""
        head = paint(self.severity, f"{self.severity}[{self.code}]")
        lines = [head + paint("label", f": {_printable(self.message)}")]
        if self.span is not None:
            lines += _excerpt(self.span, self.severity, paint)
        lines += [f"  {paint('label', 'note')}: {_printable(note)}" for note in self.notes]
        if self.help:
            lines.append(f"  {paint('label', 'help')}: {_printable(self.help)}")
        return "\n".join(lines)


class MeshcError(Exception):
    """One or more diagnosed errors; the command line prints them and exits with 1."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n".join(d.render() for d in self.diagnostics))

    def __reduce__(self) -> tuple[type[MeshcError], tuple[tuple[Diagnostic, ...]]]:
        return MeshcError, (self.diagnostics,)  # so that it can leave a process


class InternalError(Exception):
    """meshc is at fault: a pass broke, left bad IR, or claimed a fact that does not hold, which the
    ``reproducer`` shows again."""

    def __init__(
        self, message: str, pipeline: str, module_text: str, checked: bool = False
    ) -> None:
        super().__init__(message)
        self.reproducer = Reproducer(message, pipeline, module_text, checked)

    def __reduce__(self) -> tuple[type[InternalError], tuple[str, str, str, bool]]:
        again = self.reproducer  # so that it can leave a process
        return InternalError, (again.message, again.pipeline, again.module_text, again.checked)


class Diagnostics:
    """Collects messages of one stage, so that all its errors are shown at once."""

    def __init__(self) -> None:
        self.messages: list[Diagnostic] = []

    def add(self, diagnostic: Diagnostic) -> None:
        """Append ``diagnostic`` unless the very same one was added before."""
        if diagnostic not in self.messages:
            self.messages.append(diagnostic)

    def error(
        self,
        code: str,
        message: str,
        span: Span | None = None,
        notes: Iterable[str] = (),
        help: str | None = None,
    ) -> None:
        """Record an error; the stage goes on to find more."""
        self.add(Diagnostic("error", code, message, span, tuple(notes), help))

    def warning(self, code: str, message: str, span: Span | None = None) -> None:
        """Record something that a person should know, and that stops nothing."""
        self.add(Diagnostic("warning", code, message, span))

    def remark(self, code: str, message: str, span: Span | None = None) -> None:
        """Record something worth knowing that is no fault."""
        self.add(Diagnostic("remark", code, message, span))

    def missed(self, code: str, message: str, span: Span | None = None) -> None:
        """Record an optimization that was not possible, and why."""
        self.add(Diagnostic("missed", code, message, span))

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """The errors so far."""
        return tuple(d for d in self.messages if d.severity == "error")

    def raise_errors(self) -> None:
        """Raise :class:`MeshcError` when any error was recorded."""
        if self.errors:
            raise MeshcError(self.errors)


def fail(
    code: str,
    message: str,
    span: Span | None = None,
    notes: Iterable[str] = (),
    help: str | None = None,
) -> NoReturn:
    """Raise a single error at once, for a stage that cannot go on."""
    raise MeshcError([Diagnostic("error", code, message, span, tuple(notes), help)])


def in_each(phases: Iterable[str], action: Callable[[str], Result]) -> dict[str, Result]:
    """What ``action`` gives for each phase. Raises the errors of all phases together: once those
    that they share, the others with the phase in a note."""
    results: dict[str, Result] = {}
    failed: dict[str, tuple[Diagnostic, ...]] = {}
    for phase in phases:
        try:
            results[phase] = action(phase)
        except MeshcError as error:
            failed[phase] = error.diagnostics
    if failed:
        raise MeshcError(_merged(failed, len(results) + len(failed)))
    return results


def _merged(failed: dict[str, tuple[Diagnostic, ...]], phases: int) -> list[Diagnostic]:
    merged = []
    for one in dict.fromkeys(d for found in failed.values() for d in found):
        where = [phase for phase, found in failed.items() if one in found]
        notes = () if len(where) == phases else (f"in the phase {where[0]}",)
        merged.append(replace(one, notes=(*one.notes, *notes)))
    return merged


@cache
def known_codes() -> dict[str, dict[str, str]]:
    """Every code with its ``summary`` and ``explain`` text, read from ``support/codes/*.toml``."""
    table: dict[str, dict[str, str]] = {}
    folder = resources.files("meshc.support") / "codes"
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".toml"):
            for code, facts in tomllib.loads(entry.read_text(encoding="utf-8")).items():
                if code in table:
                    raise ValueError(f"diagnostic code '{code}' is declared twice")
                table[code] = facts
    return table


def _excerpt(span: Span, severity: Severity, paint: Paint) -> list[str]:
    """The source line with a caret under the span; long lines are cut around it."""
    raw = span.source.line(span.line)
    before = _printable(raw[: span.column - 1].expandtabs(_TAB_WIDTH))
    rest = _printable(raw[span.column - 1 :].expandtabs(_TAB_WIDTH))
    if len(before) > 90:
        before = "..." + before[-60:]
    rest = rest[:100]
    number = str(span.line)
    gutter = " " * len(number)
    caret = paint(severity, "^" * max(1, min(span.length, len(rest) or 1)))
    return [
        f"{gutter}{paint('frame', '-->')} {_printable(span.source.name)}:{span.line}:{span.column}",
        paint("frame", f"{gutter} |"),
        f"{paint('frame', f'{number} |')} {before}{rest}",
        f"{paint('frame', f'{gutter} |')} {' ' * len(before)}{caret}",
    ]


def _printable(text: str) -> str:
    """``text`` with control characters escaped: a model file must not drive the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
