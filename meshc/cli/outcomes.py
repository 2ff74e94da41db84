"""Parse the command line, run the command, turn what goes wrong into an exit code.

0 fine, 1 diagnosed errors, 2 usage, 3 internal error (with a reproducer file), 128 + the number of
the signal that stopped it. What cannot be printed is an error as well, but for a reader who leaves.
The work of a command is imported when it is chosen.
"""

from __future__ import annotations

import argparse
import errno
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TextIO

from meshc.cli.command_parser import parser
from meshc.cli.parsing import check_once
from meshc.cli.printing import message_objects, print_diagnostics, print_json
from meshc.cli.signals import Signals, Stopped
from meshc.support.blame import blamed
from meshc.support.diagnostics import Diagnostic, InternalError, MeshcError, Reproducer
from meshc.support.files import error_words, write_text

EXIT_ERRORS = 1
EXIT_INTERNAL = 3

_OUTPUT_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}

REPRODUCER = "meshc-reproducer.meshir"
_COMPLETING = "_ARGCOMPLETE"


def dispatch(arguments: Sequence[str] | None, signals: Signals) -> int:
    """Run the command that ``arguments`` (None: those of the process) spell; the exit code."""
    try:
        return _outcome(arguments, signals)
    except BrokenPipeError:
        # The reader of stdout is gone: stop quietly, also when the interpreter flushes at its end.
        _give_up(sys.stdout)
        return EXIT_ERRORS
    except OSError as error:
        _give_up(sys.stdout)
        words = f"what is printed cannot be written: {error_words(error)}"
        try:
            print_diagnostics([Diagnostic("error", "unwritable", words)])
        except OSError:
            _give_up(sys.stderr)
        return EXIT_ERRORS


def _outcome(arguments: Sequence[str] | None, signals: Signals) -> int:
    """The exit code of a command. Raises OSError where stdout or stderr cannot be written."""
    found = parser()
    if _COMPLETING in os.environ and arguments is None:
        import_module("meshc.cli.shell_completion").complete(found)
    try:
        options = found.parse_args(arguments)
    finally:
        _flush()  # of a help
    command = import_module(f"meshc.cli.commands.{options.command.replace('-', '_')}")
    try:
        check_once(options)
        with signals.raised():
            code: int = command.run(options)
            _flush()
        return code
    except Stopped as stop:
        return stop.code
    except MeshcError as error:
        return _diagnosed(error.diagnostics, options)
    except InternalError as error:
        return _internal(error)
    except Exception as error:
        if _is_of_output(error):
            raise
        if (used_up := _used_up(error)) is not None:
            return _diagnosed([used_up], options)
        if (blame := blamed(error)) is not None:
            return _diagnosed(blame.diagnostics, options)
        given = sys.argv[1:] if arguments is None else arguments
        return _unexpected(error, shlex.join(["meshc", *given]))


def _used_up(error: Exception) -> Diagnostic | None:
    """What this machine has no more of, if ``error`` says so."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        code, what = "out-of-memory", "memory"
    elif number in (errno.EMFILE, errno.ENFILE):
        code, what = "out-of-files", "open files"
    else:
        return None
    words = f"the command needs more {what} than this machine, or a limit of it, leaves"
    return Diagnostic("error", code, words, notes=tuple(error_words(error).splitlines()[:1]))


def _diagnosed(diagnostics: Sequence[Diagnostic], options: argparse.Namespace) -> int:
    """Errors of the input, of the machine or of a package, in words and perhaps in JSON."""
    print_diagnostics(diagnostics)
    again = next((one.again for one in diagnostics if one.again), None)
    if again is not None:
        _left_behind(_shown_again(again), again.text)
    if getattr(options, "json", False):
        print_json({"errors": message_objects(diagnostics, "error")})
        _flush()
    return EXIT_ERRORS


def _flush() -> None:
    """Have stdout written now, where it was open when meshc started."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _is_of_output(error: Exception) -> bool:
    """Whether ``error`` says that stdout or stderr takes nothing more. They have no name, unlike
    files, whose faults are diagnosed where they are written."""
    if not isinstance(error, OSError) or error.filename is not None:
        return False
    return isinstance(error, BrokenPipeError) or error.errno in _OUTPUT_FAULTS


def _give_up(stream: TextIO | None) -> None:
    """Let ``stream`` lose what it holds, so that the interpreter does not fail at it once more."""
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _internal(error: InternalError) -> int:
    """A pass broke: leave the module and the passes that show it again."""
    again = error.reproducer
    return _report(str(error), f"this is a fault of meshc; {_shown_again(again)}", again.text)


def _shown_again(again: Reproducer) -> str:
    return f"{REPRODUCER} shows it again: {again.command(REPRODUCER)}"


def _unexpected(error: Exception, command: str) -> int:
    """Something outside the passes broke: leave the command and where it went wrong."""
    trace = "".join(traceback.format_exception(error))
    text = "".join(f"# {line}\n" for line in [command, *trace.splitlines()])
    words = f"{type(error).__name__}: {error}"
    note = f"this is a fault of meshc; {REPRODUCER} holds the command and the place"
    return _report(words, note, text)


def _report(words: str, note: str, text: str) -> int:
    print(f"internal error: {words}", file=sys.stderr)
    _left_behind(note, text)
    return EXIT_INTERNAL


def _left_behind(note: str, text: str) -> None:
    """Write what shows a fault again, and say so."""
    try:
        write_text(Path(REPRODUCER), text)
    except MeshcError as unwritable:
        print_diagnostics(unwritable.diagnostics)
    else:
        print(f"  note: {note}", file=sys.stderr)
