"""Runs the scripts of every program below a directory with the stand-ins on PATH.

Programs come with ``commands*.sh``; others with ``compile*.sh`` and then ``execute*.sh`` or
``run*.sh`` of the same ending, or with one of these alone.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from meshc.sim.commands_folder import make_bin

_MOST_COPIED = 64 << 20
_IGNORE = shutil.ignore_patterns(".git", "__pycache__")


@dataclass(frozen=True)
class SuiteResult:
    """One run: ``arch`` is that of the programs that ran, '-' when none did; ``cycles`` the sum
    over its simulations; ``detail`` the end of its output.
    """

    program: str
    arch: str
    passed: bool
    cycles: int
    seconds: float
    detail: str


LOOKED_FOR = "commands*.sh, compile*.sh, execute*.sh or run*.sh"


def find_commands(root: Path, only: str | None) -> list[tuple[Path, ...]]:
    """The scripts of each program below ``root`` in the order in which they run.

    ``only`` is a glob on the relative path of the first.
    """
    folders = sorted({script.parent for script in root.rglob("*.sh")})
    found = [scripts for folder in folders for scripts in _commands_of(folder)]
    if only is None:
        return found
    return [s for s in found if fnmatch.fnmatch(str(s[0].relative_to(root)), f"*{only}*")]


def _commands_of(folder: Path) -> list[tuple[Path, ...]]:
    whole = sorted(folder.glob("commands*.sh"))
    if whole:
        return [(script,) for script in whole]
    seconds = [*sorted(folder.glob("execute*.sh")), *sorted(folder.glob("run*.sh"))]
    found: list[tuple[Path, ...]] = []
    for first in sorted(folder.glob("compile*.sh")):
        ending = first.name.removeprefix("compile")
        after = [s for s in seconds if s.name in (f"execute{ending}", f"run{ending}")][:1]
        found.append((first, *after))
    used = {script for scripts in found for script in scripts}
    return found + [(script,) for script in seconds if script not in used]


def run_one(
    root: Path, scripts: Sequence[Path], timeout: int, extra: Sequence[str] = ()
) -> SuiteResult:
    """Run the scripts of one program, all in one folder, in a scratch copy.

    ``extra`` are options for ``cs_python``. The stand-ins come first on PATH, and are in CSLC and
    CS_PYTHON, which some scripts use.
    """
    relative = scripts[0].relative_to(root)
    with tempfile.TemporaryDirectory(prefix="csl-suite-") as scratch:
        copy = Path(scratch) / "tree"
        _copy_tree(root, relative.parent, copy)
        cycles_file = Path(scratch) / "cycles"
        options = ["--cycles", str(cycles_file), *extra]
        folder = make_bin(Path(scratch) / "bin", options)
        env = {
            **os.environ,
            "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}",
            "MPLBACKEND": "Agg",
            "CSLC": str(folder / "cslc"),
            "CS_PYTHON": str(folder / "cs_python"),
        }
        start = time.perf_counter()
        code, output = _run(copy / relative.parent, [s.name for s in scripts], env, timeout)
        seconds = time.perf_counter() - start
        runs = cycles_file.read_text().splitlines() if cycles_file.exists() else []
    arch = "+".join(sorted({line.split()[1] for line in runs})) or "-"
    cycles = sum(int(line.split()[0]) for line in runs)
    tail = "\n".join(output.strip().splitlines()[-12:])
    return SuiteResult(str(relative.parent), arch, code == 0, cycles, seconds, tail)


def _copy_tree(root: Path, program: Path, copy: Path) -> None:
    """The program in a copy of its surroundings, since scripts source files of their parents.

    A tree that is too large to copy is shared through links, but for the program's own directory.
    """
    if _is_small(root):
        shutil.copytree(root, copy, symlinks=True, ignore=_IGNORE)
        return
    here, there = root, copy
    for part in program.parts:
        there.mkdir(parents=True)
        for entry in sorted(here.iterdir()):
            if entry.name != part and entry.name != ".git":
                (there / entry.name).symlink_to(entry)
        here, there = here / part, there / part
    shutil.copytree(here, there, symlinks=True, ignore=_IGNORE)


def _is_small(root: Path) -> bool:
    total = 0
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f != ".git"]
        for name in names:
            path = os.path.join(folder, name)
            total += 0 if os.path.islink(path) else os.path.getsize(path)
            if total > _MOST_COPIED:
                return False
    return True


def _run(folder: Path, names: list[str], env: dict[str, str], timeout: int) -> tuple[int, str]:
    """Run scripts one after the other until one fails: exit code and output."""
    process = subprocess.Popen(
        ["bash", "-c", 'for name; do bash "$name" || exit; done', "bash", *names],
        cwd=folder, env=env, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=timeout)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return 124, f"{output}\nstopped after {timeout} seconds"
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


TABLE_HEAD = f"{'program':48} {'arch':9} {'':5} {'cycles':>12} {'seconds':>8}"


def table_line(result: SuiteResult) -> str:
    """One line of the table."""
    verdict = "pass" if result.passed else "FAIL"
    return (
        f"{result.program:48} {result.arch:9} {verdict:5} {result.cycles:>12} {result.seconds:8.1f}"
    )


def as_json(results: list[SuiteResult]) -> str:
    """All results as JSON."""
    return json.dumps([asdict(r) for r in results], indent=1)
