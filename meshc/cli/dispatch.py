"""Parse the command line, run the command, turn what goes wrong into an exit code.

0 fine, 1 diagnosed errors, 2 usage, 3 internal error (with a reproducer file), 128 + the number of
the signal that stopped it. The work of a command is imported when it is chosen.
"""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from meshc.cli.arguments import parser
from meshc.cli.output import message_objects, print_diagnostics, print_json
from meshc.cli.parsing import check_once
from meshc.cli.signals import Signals, Stopped
from meshc.support.diagnostics import InternalError, MeshcError
from meshc.support.files import write_text

EXIT_ERRORS = 1
EXIT_INTERNAL = 3

REPRODUCER = "meshc-reproducer.meshir"
_COMPLETING = "_ARGCOMPLETE"


def dispatch(arguments: Sequence[str] | None, signals: Signals) -> int:
    """Run the command that ``arguments`` (None: those of the process) spell; the exit code."""
    found = parser()
    if _COMPLETING in os.environ and arguments is None:
        import_module("meshc.cli.completion").complete(found)
    options = found.parse_args(arguments)
    command = import_module(f"meshc.cli.commands.{options.command.replace('-', '_')}")
    try:
        check_once(options)
        with signals.raised():
            code: int = command.run(options)
            sys.stdout.flush()
        return code
    except Stopped as stop:
        return stop.code
    except MeshcError as error:
        print_diagnostics(error.diagnostics)
        if getattr(options, "json", False):
            print_json({"errors": message_objects(error.diagnostics, "error")})
        return EXIT_ERRORS
    except InternalError as error:
        return _internal(error)
    except BrokenPipeError:
        # The reader of stdout is gone: stop quietly, also when the interpreter flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERRORS
    except Exception as error:
        given = sys.argv[1:] if arguments is None else arguments
        return _unexpected(error, shlex.join(["meshc", *given]))


def _internal(error: InternalError) -> int:
    """A pass broke: leave the module and the passes that show it again."""
    note = f"{REPRODUCER} shows it again: {error.command(REPRODUCER)}"
    return _report(str(error), note, error.reproducer)


def _unexpected(error: Exception, command: str) -> int:
    """Something outside the passes broke: leave the command and where it went wrong."""
    trace = "".join(traceback.format_exception(error))
    text = "".join(f"# {line}\n" for line in [command, *trace.splitlines()])
    words = f"{type(error).__name__}: {error}"
    return _report(words, f"{REPRODUCER} holds the command and the place", text)


def _report(words: str, note: str, text: str) -> int:
    print(f"internal error: {words}", file=sys.stderr)
    try:
        write_text(Path(REPRODUCER), text)
    except MeshcError as unwritable:
        print_diagnostics(unwritable.diagnostics)
    else:
        print(f"  note: this is a fault of meshc; {note}", file=sys.stderr)
    return EXIT_INTERNAL
