"""The same command gives the same bytes, whatever the hash seed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from reduced import only

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "program": ["examples/tiny_llama.mesh", "--mesh", "3x2", "--seq", "12"],
    "tile": [
        "llama-3-8b", "--seq", "256", "--layers", "2", "--device", "wse2", "--mesh", "240x240",
        "--phase", "decode", "--compile-to", "tile",
    ],
}  # fmt: skip


def compiled(words, folder, seed):
    """Every file by its path, and what was printed, of a compile in a process of its own."""
    out = folder / f"seed{seed}"
    command = [sys.executable, "-m", "meshc", "compile", *words, "--remarks", "-o", str(out)]
    env = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=True)
    found = {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    return found, done.stderr


@pytest.mark.parametrize("name", only(COMMANDS, "program"))
def test_two_hash_seeds_give_the_same_bytes(name, tmp_path):
    words = COMMANDS[name]
    first, second = (compiled(words, tmp_path, seed) for seed in (1, 2))
    assert first == second
    assert len(first[0]) > 1
