"""Compiles C and C++ text with the system's compiler and keeps the result by content."""

from __future__ import annotations

import ctypes as ct
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from meshc.support.cache import keep_privately, recall_or_make
from meshc.support.scratch import scratch_folder

_INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)


class BuildError(Exception):
    """There is no compiler, or it refused the text; the message holds its first lines."""


def opened(library: Path, mode: int = ct.DEFAULT_MODE) -> ct.CDLL:
    """The shared library that was built, in this process. Raises BuildError."""
    try:
        return ct.CDLL(str(library), mode=mode)
    except OSError as problem:
        try:
            return ct.CDLL(str(keep_privately(library, problem)), mode=mode)
        except OSError:
            raise BuildError(f"the system does not load what was compiled: {problem}") from problem


@dataclass(frozen=True)
class Common:
    """A source that many libraries contain: it is compiled once, to an object file, with the flags
    of ``toolchain`` where there is one, and otherwise with those of the library."""

    name: str
    text: str
    headers: Mapping[str, str]
    toolchain: Toolchain | None = None


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
        parsed: str | None = None,
    ) -> Path:
        """The shared library made of ``sources`` (name to text) and ``common``, compiled unless it
        is known. ``parsed`` is one of the ``headers``, with which all sources begin: GCC parses it
        once for all libraries in which it and what it includes are the same.

        Raises BuildError.
        """
        path = self._required_path()
        texts = [headers, sources]
        if common is not None:
            texts += [common.headers, {common.name: common.text}]
            texts += [{"flags": " ".join((common.toolchain or self).flags)}]
        key = self._key(path, label, *texts)

        def made() -> bytes:
            objects = []
            if common is not None:
                objects = [str((common.toolchain or self)._object(path, common, label))]
            linked = ["-shared", *sorted(sources), *objects, *self.libraries]
            given = {} if parsed is None else self._parsed(path, parsed, headers, label)
            return self._run(path, linked, headers, sources, kept=given)

        try:
            return recall_or_make(key, made, ".so")
        except OSError as problem:
            raise BuildError(str(problem)) from problem

    def _object(self, path: str, common: Common, label: str) -> Path:
        """The object file made of ``common``, compiled unless it is known."""
        source = {common.name: common.text}
        key, words = self._key(path, f"{label}-object", common.headers, source), ["-c", common.name]
        return recall_or_make(key, lambda: self._run(path, words, common.headers, source), ".o")

    def _parsed(
        self, path: str, header: str, headers: Mapping[str, str], label: str
    ) -> dict[str, Path]:
        """The file that GCC takes in place of ``header``, by its name; none for other compilers."""
        if not _is_gcc(path):
            return {}
        texts = _included(header, headers)
        key = self._key(path, f"{label}-parsed", {"": header}, texts)
        words = ["-x", "c++-header" if self.language == "C++" else "c-header", header]
        return {f"{header}.gch": recall_or_make(key, lambda: self._run(path, words, texts))}

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

    def _run(
        self,
        path: str,
        words: Sequence[str],
        *texts: Mapping[str, str],
        kept: Mapping[str, Path] = MappingProxyType({}),
    ) -> bytes:
        """What the compiler makes in a folder that holds ``texts``, and links to files ``kept``."""
        with scratch_folder() as scratch:
            for names in texts:
                for name, text in names.items():
                    (scratch / name).write_text(text, encoding="utf-8")
            for name, file in kept.items():
                (scratch / name).symlink_to(file)
            made = scratch / "made"
            command = [path, *self.flags, "-o", str(made), *words]
            done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
            if done.returncode:
                raise BuildError("\n".join(done.stderr.strip().splitlines()[:8]))
            return made.read_bytes()


def _included(header: str, headers: Mapping[str, str]) -> dict[str, str]:
    """``header`` and those of the ``headers`` that it includes, directly or not."""
    found: dict[str, str] = {}
    waiting = [header]
    while waiting:
        name = waiting.pop()
        if name in headers and name not in found:
            found[name] = headers[name]
            waiting += _INCLUDE.findall(headers[name])
    return found


@cache
def _identity(path: str) -> str:
    """What distinguishes compilers: libraries of one are not used after a change to another."""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.split("\n", 1)[0]


@cache
def _is_gcc(path: str) -> bool:
    """Whether a compiler is GCC, which looks for a parsed header beside the header itself."""
    words = [path, "-dM", "-E", "-x", "c", os.devnull]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    defined = {line.split()[1] for line in done.stdout.splitlines() if len(line.split()) > 1}
    return "__GNUC__" in defined and "__clang__" not in defined
