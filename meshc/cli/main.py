"""Entry of the command line: parse, run the command, turn what goes wrong into an exit code.

0 fine, 1 diagnosed errors, 2 usage, 3 internal error (with a reproducer file).
"""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from meshc.cli.arguments import parser
from meshc.cli.output import print_diagnostics, print_json
from meshc.passes.manager import InternalError
from meshc.support.diagnostics import MeshcError
from meshc.support.files import write_text

EXIT_ERRORS = 1
EXIT_INTERNAL = 3
EXIT_INTERRUPTED = 130

REPRODUCER = "meshc-reproducer.meshir"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that ``arguments`` (default: those of the process) spell; the exit code.

    Usage errors leave by SystemExit with code 2, as argparse has it.
    """
    options = parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except MeshcError as error:
        print_diagnostics(error.diagnostics)
        if getattr(options, "json", False):
            errors = [{"code": d.code, "message": d.message} for d in error.diagnostics]
            print_json({"errors": errors})
        return EXIT_ERRORS
    except InternalError as error:
        return _internal(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout is gone: stop quietly, also when the interpreter flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERRORS
    except Exception as error:
        given = sys.argv[1:] if arguments is None else arguments
        return _unexpected(error, shlex.join(["meshc", *given]))


def _internal(error: InternalError) -> int:
    """A pass broke: leave the module and the passes that show it again."""
    again = f"meshc opt {REPRODUCER} --passes '{error.pipeline}'"
    return _report(str(error), f"{REPRODUCER} shows it again: {again}", error.reproducer)


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
