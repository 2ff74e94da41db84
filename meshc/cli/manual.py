"""The manual page of the command line, in the language of man(7), from the parser of its flags."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

_CHOICES = argparse._SubParsersAction


def manual(parser: argparse.ArgumentParser) -> str:
    """The page: what ``parser`` is for, then each command with its arguments and flags."""
    lines = [
        '.TH MESHC 1 "" meshc "User Commands"',
        ".SH NAME",
        f"{_text(parser.prog)} \\- {_text(_sentence(parser.description))}",
        ".SH SYNOPSIS",
        _usage(parser),
        ".SH OPTIONS",
        *_flags(parser),
        ".SH COMMANDS",
    ]
    for name, summary, command in _commands(parser):
        lines += _command(name, summary, command)
    lines += [".SH EXIT STATUS", _text((parser.epilog or "").removeprefix("exit codes: "))]
    return "\n".join(lines) + "\n"


def _command(name: str, summary: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """A command, and the actions that it has in the place of flags."""
    yield f".SS {_text(name)}"
    yield _text(" ".join((parser.description or f"{summary}.").split()))
    yield ".PP"
    yield _usage(parser)
    yield from _flags(parser)
    for inner, words, action in _commands(parser):
        yield from _command(f"{name} {inner}", words, action)


def _commands(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Name, summary and parser of each command."""
    for action in parser._actions:
        if isinstance(action, _CHOICES):
            for listed in action._choices_actions:
                yield listed.dest, listed.help or "", action.choices[listed.dest]


def _usage(parser: argparse.ArgumentParser) -> str:
    words = " ".join(parser.format_usage().split()).removeprefix("usage: ")
    return f".B {_text(words)}"


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Arguments and flags, each with what it is for."""
    formatter = parser._get_formatter()
    for action in parser._actions:
        if isinstance(action, (_CHOICES, argparse._HelpAction)):
            continue
        yield ".TP"
        yield f".B {_text(formatter._format_action_invocation(action))}"
        yield _text(formatter._expand_help(action)) if action.help else "\\&"


def _sentence(text: str | None) -> str:
    return (text or "").strip().rstrip(".")


def _text(words: str) -> str:
    """``words`` as text: nothing in it is a request or an escape."""
    plain = " ".join(words.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{plain}" if plain[:1] in (".", "'") else plain
