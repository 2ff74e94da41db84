"""Finds and parses CSL files; each file is parsed once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from meshc.sim.lang import tree as t
from meshc.sim.lang.statement_parser import parse
from meshc.support.diagnostics import Diagnostics, MeshcError, fail
from meshc.support.spans import Source, Span

# Documented libraries that are not written, and what that would take.
UNBUILT = {
    "message_passing": "routers of five colors that find the way to a PE by its coordinates, which "
    "is not published",
    "string": "comptime strings as arrays with functions of their own",
    "types": "its list of functions on types, which is not published",
    "data_utils": "its list of functions on arrays, which is not published",
}


class Loader:
    """Files of one program.

    ``root`` is the folder of the layout file; ``import_paths`` are searched after it.
    """

    def __init__(self, root: str, import_paths: Sequence[str] = ()) -> None:
        self.root = root
        extra = os.environ.get("CSL_IMPORT_PATH", "").split(os.pathsep)
        self._paths = [path for path in (*import_paths, *extra) if path]
        self._files: dict[str, t.File] = {}

    def load(self, path: str, folder: str, span: Span | None) -> tuple[t.File, str, str]:
        """The tree of ``path``, its folder, and the library name when it is ``<...>``.

        A path is looked up beside the importing file, then beside the layout, then along
        --import-path and CSL_IMPORT_PATH. Raises MeshcError ``csl-no-file``.
        """
        if path.startswith("<") and path.endswith(">"):
            return self._library(path[1:-1], span), "", path[1:-1]
        found = self._find(path, folder)
        if found is None:
            fail("csl-no-file", f"there is no file '{path}'", span)
        return self._parse(found, _shown(found)), os.path.dirname(found), ""

    def beside(self, path: str, folder: str) -> str:
        """``path`` as seen from the layout, when it was written in a file of ``folder``."""
        absolute = os.path.normpath(os.path.join(folder, path))
        inside = bool(folder) and folder != self.root and os.path.isfile(absolute)
        return absolute if inside else path

    def text(self, path: str, folder: str, span: Span | None) -> str:
        """The text of a file that is no CSL. Raises MeshcError ``csl-no-file``."""
        found = self._find(path, folder)
        if found is None:
            fail("csl-no-file", f"there is no file '{path}'", span)
        return _read(found, span)

    def _find(self, path: str, folder: str) -> str | None:
        for base in [folder, self.root, *self._paths]:
            candidate = os.path.normpath(os.path.join(base, path))
            if os.path.isfile(candidate):
                return candidate
        return None

    def _library(self, name: str, span: Span | None) -> t.File:
        resource = resources.files("meshc.sim.library") / f"{name}.csl"
        key = f"<{name}>"
        if key not in self._files:
            if not resource.is_file() or ".." in name:
                if name in UNBUILT:
                    words = (
                        f"the simulator has no library '<{name}>': it would take {UNBUILT[name]}"
                    )
                    fail("csl-unsupported", words, span)
                fail("csl-no-library", f"there is no library module '<{name}>'", span)
            self._files[key] = _checked(key, resource.read_text(encoding="utf-8"))
        return self._files[key]

    def _parse(self, path: str, shown: str) -> t.File:
        if path not in self._files:
            self._files[path] = _checked(shown, _read(path, None))
        return self._files[path]


def _read(path: str, span: Span | None) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        fail("csl-no-file", f"cannot read '{_shown(path)}': {problem}", span)


def _checked(name: str, text: str) -> t.File:
    diagnostics = Diagnostics()
    file = parse(Source(name, text), diagnostics)
    if diagnostics.errors:
        raise MeshcError(diagnostics.errors)
    return file


def _shown(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
