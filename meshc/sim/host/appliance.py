"""The host API of the vendor's appliance: compile and run jobs, here in this process.

Compiled programs are named by the directory they lie in.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from meshc.sim import cslc
from meshc.sim.commands_folder import make_bin
from meshc.sim.host import host_classes
from meshc.support.diagnostics import fail

_ADDRESS = "%CMADDR%"


class SdkCompiler:
    """Compiles programs. What an appliance is asked for, memory and cores, is not needed."""

    def __init__(self, **options: Any) -> None:
        """Keyword arguments are ignored."""

    def __enter__(self) -> SdkCompiler:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def compile(self, app_path: str, csl_main: str, options: str = "", out_path: str = ".") -> str:
        """Compile ``csl_main`` in ``app_path``; the result is what SdkRuntime takes.

        Raises MeshcError ``csl-host`` when the program has errors, which are printed.
        """
        arguments, name = _without_output(shlex.split(options))
        folder = Path(out_path).absolute() / name
        layout = str(Path(app_path) / csl_main)
        if cslc.main([layout, *arguments, "-o", str(folder)]) != 0:
            fail("csl-host", f"'{layout}' does not compile")
        return str(folder)


def _without_output(arguments: list[str]) -> tuple[list[str], str]:
    """The arguments without the output directory, and its name."""
    kept, name, position = [], "out", 0
    while position < len(arguments):
        argument = arguments[position]
        if argument in ("-o", "--output"):
            position += 1
            name = arguments[position] if position < len(arguments) else name
        elif argument.startswith("-o="):
            name = argument[3:]
        else:
            kept.append(argument)
        position += 1
    return kept, Path(name).name or "out"


class SdkRuntime(host_classes.SdkRuntime):
    """Runs a compiled program; used with ``with``, which loads and starts it, and stops it."""


class SdkLauncher:
    """Runs host scripts beside a compiled program, in a directory of their own."""

    def __init__(self, artifact_path: str, **options: Any) -> None:
        self._artifact = Path(artifact_path)
        self._folder = Path(tempfile.mkdtemp(prefix="csl-launcher-"))

    def __enter__(self) -> SdkLauncher:
        if not os.path.isdir(self._artifact):
            fail("csl-host", f"there is no compiled program '{self._artifact}'")
        shutil.copytree(self._artifact, self._folder / self._artifact.name)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def stage(self, path: str) -> None:
        """Make a file or directory available to the scripts."""
        source = Path(path)
        if os.path.isdir(source):
            shutil.copytree(source, self._folder / source.name, dirs_exist_ok=True)
        elif os.path.isfile(source):
            shutil.copy(source, self._folder)
        else:
            fail("csl-host", f"there is no file '{path}' to stage")

    def run(self, *commands: str) -> str:
        """Run shell commands; what they print. Raises MeshcError ``csl-host`` when one fails."""
        tools = make_bin(self._folder / ".bin")
        path = os.pathsep.join((str(tools), os.environ.get("PATH", "")))
        shown = []
        for command in commands:
            text = command.replace(f"--cmaddr {_ADDRESS}", "").replace(f"--cmaddr={_ADDRESS}", "")
            done = subprocess.run(
                ["bash", "-c", text], cwd=self._folder, env={**os.environ, "PATH": path},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            )  # fmt: skip
            shown.append(done.stdout)
            if done.returncode != 0:
                fail("csl-host", f"'{command}' failed", notes=done.stdout.splitlines()[-12:])
        return "".join(shown)

    def download_artifact(self, name: str, out_path: str) -> None:
        """Copy a file that the scripts have written."""
        source, target = self._folder / name, Path(out_path)
        if not os.path.isfile(source):
            fail("csl-host", f"the scripts have written no file '{name}'")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
