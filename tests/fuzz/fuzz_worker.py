"""The child of a campaign: makes inputs from numbers, runs them, answers with verdicts."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

from fuzz_limits import INPUT_TIME, Verdict, answer, bound_memory
from fuzz_subjects import SUBJECTS, Case

from meshc.support.diagnostics import MeshcError, known_codes

_CODE = re.compile(r"^error\[([a-z0-9-]+)\]", re.M)


def judged(subject: str, case: Case) -> Verdict:
    """Run a case in a folder of its own."""
    shown = io.StringIO()
    home = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, data in case.files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_bytes(data)
        try:
            with contextlib.redirect_stderr(shown), contextlib.redirect_stdout(io.StringIO()):
                code = SUBJECTS[subject].run(case)
            return _verdict(code, shown.getvalue())
        except MeshcError as error:
            return _refused([d.code for d in error.diagnostics], str(error))
        except SystemExit:
            return Verdict("usage")
        except BaseException as error:
            return Verdict("traceback", (), _place(error), f"{type(error).__name__}: {error}"[:300])
        finally:
            os.chdir(home)


def _verdict(code: int, shown: str) -> Verdict:
    if code == 0:
        return Verdict("fine")
    if code == 1:
        return _refused(_CODE.findall(shown), shown)
    if code == 2:
        return Verdict("usage")
    report = Path("meshc-reproducer.meshir")
    trace = report.read_text() if report.is_file() else ""
    place = re.findall(r'File "[^"]*?(meshc/[^"]*)", line \d+, in (\w+)', trace)
    where = ":".join(place[-1]) if place else ""
    words = shown.partition("internal error: ")[2].partition("\n")[0]
    return Verdict("internal", (), where or _kind_of(shown), words[:300])


def _kind_of(shown: str) -> str:
    """The claim and the first diagnostic of an internal error, without what is the input's own."""
    words = shown.partition("internal error: ")[2].partition("  note:")[0].split("\n")
    return re.sub(r"'[^']*'|[%@]\S+|\d+|\(.*|\[.*?\]", "_", " ".join(words[:2]))[:90]


def _refused(codes: list[str], shown: str) -> Verdict:
    if "internal error" in shown:
        words = shown[shown.index("internal error") :].partition("\n")[0]
        return Verdict("internal", (), re.sub(r"'[^']*'|\d+", "_", words)[:120], shown[:400])
    if not codes or not set(codes) <= set(known_codes()):
        return Verdict("traceback", (), "diagnostics", f"a refusal with the codes {codes}")
    return Verdict("refused", tuple(dict.fromkeys(codes)))


def _place(error: BaseException) -> str:
    """The innermost function of meshc that the error went through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "meshc" in f.filename] or list(frames)
    last = ours[-1]
    return f"{last.filename.rpartition('meshc/')[2]}:{last.name}"


def main() -> None:
    """Answer the parent until it closes the pipe."""
    warnings.simplefilter("ignore")
    output = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    seconds = int(sys.argv[1])
    bound_memory()
    for line in sys.stdin:
        request = json.loads(line)
        subject = request["subject"]
        INPUT_TIME.make()
        sys.setrecursionlimit(1000)  # commands may have raised it
        if "files" in request:
            files = {name: base64.b64decode(data) for name, data in request["files"].items()}
            case = Case(files, tuple(request["arguments"]))
        else:
            case = SUBJECTS[subject].case(request["number"])
        INPUT_TIME.begin(seconds)
        answer(output, judged(subject, case))


if __name__ == "__main__":
    main()
