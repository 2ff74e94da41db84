"""Compiles C and C++ text with the system's compiler and keeps the result by content."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from meshc.support.cache import keep, recall
from meshc.support.scratch import scratch_folder


class BuildError(Exception):
    """There is no compiler, or it refused the text; the message holds its first lines."""


@dataclass(frozen=True)
class Toolchain:
    """A compiler: ``$VARIABLE`` or the first of ``commands`` on the path, and its flags."""

    language: str
    variable: str
    commands: tuple[str, ...]
    flags: tuple[str, ...]
    libraries: tuple[str, ...] = ()

    def path(self) -> str | None:
        """The compiler's path; None when there is none."""
        for name in (os.environ.get(self.variable), *self.commands):
            found = shutil.which(name) if name else None
            if found:
                return found
        return None

    def build(self, sources: Mapping[str, str], headers: Mapping[str, str], label: str) -> Path:
        """The shared library made of ``sources`` (name to text), compiled unless it is known.

        Raises BuildError.
        """
        path = self.path()
        if path is None:
            raise BuildError(f"no {self.language} compiler was found")
        digest = hashlib.sha256((_identity(path) + " ".join(self.flags)).encode())
        for name, text in sorted({**headers, **sources}.items()):
            digest.update(f"{name}\0{text}\0".encode())
        key = f"{label}-{digest.hexdigest()[:32]}"
        try:
            return recall(key) or keep(key, self._compile(path, sources, headers), ".so")
        except OSError as problem:
            raise BuildError(str(problem)) from problem

    def _compile(self, path: str, sources: Mapping[str, str], headers: Mapping[str, str]) -> bytes:
        with scratch_folder() as scratch:
            for name, text in {**headers, **sources}.items():
                (scratch / name).write_text(text, encoding="utf-8")
            made = scratch / "made.so"
            command = [path, *self.flags, "-o", str(made), *sorted(sources), *self.libraries]
            done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
            if done.returncode:
                raise BuildError("\n".join(done.stderr.strip().splitlines()[:8]))
            return made.read_bytes()


@cache
def _identity(path: str) -> str:
    """What distinguishes compilers: libraries of one are not used after a change to another."""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.split("\n", 1)[0]
