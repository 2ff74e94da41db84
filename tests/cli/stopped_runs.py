"""Stops a command at chosen moments: a process that imports meshc once and forks for each moment.

    python stopped_runs.py FOLDER STEP SIGNAL... -- WORD...

A moment is a change of the file system, or an attempt at one, in the run of the command: the n-th
makes the process send itself a signal. Every STEP-th moment is tried, with the signals in turn,
each in a copy of FOLDER/before; a line of JSON tells what was left. The last line is about a run to
the end.
"""

import json
import os
import shutil
import sys
import traceback
from pathlib import Path

import meshc.api
import meshc.cli.commands.compile
from meshc.cli import main

# What Python keeps of modules that are imported first in a run is no change of the command's.
sys.dont_write_bytecode = True

CHANGES = {"os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree"}


class Moments:
    """Counts changes of the file system, and sends ``number`` at the ``chosen`` one."""

    def __init__(self, chosen, number):
        self.chosen, self.number, self.seen = chosen, number, 0
        sys.addaudithook(self.hook)

    def hook(self, event, arguments):
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE
        if writes or event in CHANGES:
            self.seen += 1
            if self.seen == self.chosen:
                os.kill(os.getpid(), self.number)


def attempt(folder, words, chosen, number):
    """Run the command in a child process, in a fresh ``folder``; what it leaves there."""
    shutil.copytree(folder.parent / "before", folder)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.chdir(folder)
            os.environ["TMPDIR"] = str(folder)
            os.dup2(os.open("printed", os.O_WRONLY | os.O_CREAT), 1)
            os.dup2(1, 2)
            sys.argv = ["meshc", *words]
            moments = Moments(chosen, number)
            code = main()
            os.write(writer, str(moments.seen).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(writer)
    seen = os.read(reader, 20).decode()
    os.close(reader)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    printed = (folder / "printed").read_text()
    (folder / "printed").unlink()
    left = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    folders = sorted(p.name for p in folder.iterdir())
    shutil.rmtree(folder)
    return {"moment": chosen, "signal": number, "code": code, "printed": printed,
            "left": left, "folders": folders, "seen": int(seen or 0)}  # fmt: skip


def sweep(folder, step, numbers, words):
    """Print what each moment leaves, and then what a run to the end does."""
    whole = attempt(folder / "whole", words, 0, 0)
    for turn, moment in enumerate(range(1, whole["seen"] + 1, step)):
        print(json.dumps(attempt(folder / "part", words, moment, numbers[turn % len(numbers)])))
    print(json.dumps(whole))


if __name__ == "__main__":
    split = sys.argv.index("--")
    place, every, *signals = sys.argv[1:split]
    assert meshc.api and meshc.cli.commands.compile  # imported before the forks
    sweep(Path(place), int(every), [int(n) for n in signals], sys.argv[split + 1 :])
