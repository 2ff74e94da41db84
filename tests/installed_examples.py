"""Packages of ``examples/``, installed as a user would, without network."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def installed(name, place):
    """Install the package ``name`` below the folder ``place``; how to run Python with it."""
    shutil.copytree(EXAMPLES / name, place / "source")
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check"]
    target = ["--target", str(place / "site"), str(place / "source")]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", *options, *target],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

    def run(*command):
        paths = [str(place / "site"), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return subprocess.run(
            [sys.executable, *command],
            capture_output=True, text=True, check=False, cwd=place, env=env, timeout=300,
        )  # fmt: skip

    return run
