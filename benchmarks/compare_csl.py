"""Simulated cycles of one of our CSL programs beside those of any other.

    python benchmarks/compare_csl.py --theirs DIR --their-command 'bash run.sh 4 64' \\
        --their-cycles 'cycles: ([0-9.]+)' -- matmul.mesh --mesh 4x4 --device wse2 [--json]

What follows ``--`` are arguments of ``meshc compile --target csl``; the inputs are random. The
other program is a directory that is copied and a command that is run in the copy; the last match of
the regular expression in what it prints has the cycles as its first group. Both run on the same
simulator, and their cycles are those that the programs themselves measure.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from measuring import table

ROOT = Path(__file__).parents[1]
OUR_CYCLES = r"(\d+) cycles on the slowest PE"


def stand_ins() -> str:
    """The directory of the stand-in commands."""
    words = [sys.executable, "-m", "meshc", "sim", "bin"]
    return subprocess.run(
        words, capture_output=True, text=True, check=True, env=environment("")
    ).stdout


def environment(commands: str) -> dict[str, str]:
    """The environment of a run, with ``commands`` in front of the path."""
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    path = os.pathsep.join(filter(None, [commands.strip(), os.environ["PATH"]]))
    return {**os.environ, "PYTHONPATH": python_path, "PATH": path}


def cycles_printed(command: list[str], folder: Path, pattern: str, commands: str) -> float:
    """Run ``command`` in ``folder``; the number that the last match of ``pattern`` captures."""
    done = subprocess.run(
        command, cwd=folder, env=environment(commands), capture_output=True, text=True
    )
    found = re.findall(pattern, done.stdout)
    if done.returncode or not found:
        sys.stderr.write(done.stdout + done.stderr)
        raise SystemExit(f"no cycles from: {' '.join(command)}")
    return float(found[-1])


def our_cycles(words: list[str], folder: Path, commands: str) -> float:
    """Compile with ``words``, give random inputs, run."""
    program = folder / "ours"
    compile_words = [sys.executable, "-m", "meshc", "compile", "--target", "csl", "-o"]
    done = subprocess.run(
        [*compile_words, str(program), *words], env=environment(""), stdout=sys.stderr
    )
    if done.returncode:
        raise SystemExit(1)
    data = program / "data"
    data.mkdir()
    generator = np.random.default_rng(0)
    for name, shape in json.loads((program / "report.json").read_text())["inputs"].items():
        np.save(data / f"{name}.npy", generator.random(shape, np.float32))
    (script,) = program.glob("commands_*.sh")
    return cycles_printed(["bash", script.name], program, OUR_CYCLES, commands)


def their_cycles(options: argparse.Namespace, folder: Path, commands: str) -> float:
    """Run the other program in a copy of its directory."""
    copy = folder / "theirs"
    shutil.copytree(options.theirs, copy)
    command = ["bash", "-c", options.their_command]
    return cycles_printed(command, copy, options.their_cycles, options.stand_ins or commands)


def main() -> None:
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--theirs", required=True, type=Path, metavar="DIR")
    parser.add_argument("--their-command", required=True, metavar="CMD")
    parser.add_argument("--their-cycles", required=True, metavar="REGEX")
    parser.add_argument(
        "--stand-ins", metavar="DIR", help="another directory of stand-in commands for theirs"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words[:split])
    if split == len(words):
        parser.error("our program is missing: -- MODEL --mesh .. --device ..")
    commands = stand_ins()
    with tempfile.TemporaryDirectory() as name:
        ours = our_cycles(words[split + 1 :], Path(name), commands)
        theirs = their_cycles(options, Path(name), commands)
    found = {"ours": ours, "theirs": theirs, "ratio": theirs / ours}
    if options.json:
        print(json.dumps(found))
    else:
        rows = [("ours", f"{ours:.0f}"), ("theirs", f"{theirs:.0f}")]
        print(table(("program", "cycles"), rows))
        print(f"theirs take {found['ratio']:.2f} times the cycles of ours")


if __name__ == "__main__":
    main()
