"""Compiles C and C++ text with the system's compiler and keeps the result by content."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from meshc.support.cache import keep, recall
from meshc.support.scratch import scratch_folder


class BuildError(Exception):
    """There is no compiler, or it refused the text; the message holds its first lines."""


@dataclass(frozen=True)
class Common:
    """A source that many libraries contain: it is compiled once, to an object file."""

    name: str
    text: str
    headers: Mapping[str, str]


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

    def build(
        self,
        sources: Mapping[str, str],
        headers: Mapping[str, str],
        label: str,
        common: Common | None = None,
    ) -> Path:
        """The shared library made of ``sources`` (name to text) and ``common``, compiled unless it
        is known.

        Raises BuildError.
        """
        path = self._required_path()
        texts = [headers, sources]
        if common is not None:
            texts += [common.headers, {common.name: common.text}]
        key = self._key(path, label, *texts)
        try:
            known = recall(key)
            if known is not None:
                return known
            objects = [] if common is None else [str(self._object(path, common, label))]
            linked = ["-shared", *sorted(sources), *objects, *self.libraries]
            return keep(key, self._run(path, linked, headers, sources), ".so")
        except OSError as problem:
            raise BuildError(str(problem)) from problem

    def _object(self, path: str, common: Common, label: str) -> Path:
        """The object file made of ``common``, compiled unless it is known."""
        source = {common.name: common.text}
        key = self._key(path, f"{label}-object", common.headers, source)
        return recall(key) or keep(
            key, self._run(path, ["-c", common.name], common.headers, source), ".o"
        )

    def _required_path(self) -> str:
        path = self.path()
        if path is None:
            raise BuildError(f"no {self.language} compiler was found")
        return path

    def _key(self, path: str, label: str, *texts: Mapping[str, str]) -> str:
        """What the result of this compiler with ``texts`` (name to text) is kept by."""
        digest = hashlib.sha256((_identity(path) + " ".join(self.flags)).encode())
        for names in texts:
            for name, text in sorted(names.items()):
                digest.update(f"{name}\0{text}\0".encode())
        return f"{label}-{digest.hexdigest()[:32]}"

    def _run(self, path: str, words: Sequence[str], *texts: Mapping[str, str]) -> bytes:
        """What the compiler makes in a folder that holds ``texts``."""
        with scratch_folder() as scratch:
            for names in texts:
                for name, text in names.items():
                    (scratch / name).write_text(text, encoding="utf-8")
            made = scratch / "made"
            command = [path, *self.flags, "-o", str(made), *words]
            done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
            if done.returncode:
                raise BuildError("\n".join(done.stderr.strip().splitlines()[:8]))
            return made.read_bytes()


@cache
def _identity(path: str) -> str:
    """What distinguishes compilers: libraries of one are not used after a change to another."""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.split("\n", 1)[0]
