"""Running an emitted program in this process."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Collection, Sequence
from functools import lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from meshc.support.diagnostics import fail

_LOCK = threading.Lock()
_TEXTS_KEPT = 64


def load_program(folder: Path) -> ModuleType:
    """The module ``main`` of the emitted program in ``folder``, with the modules it imports.

    Programs do not see each other's modules: each call imports afresh, and nothing stays in
    ``sys.modules``. Raises ``no-program`` when there is no ``main.py``.
    """
    if not (folder / "main.py").is_file():
        fail("no-program", f"there is no emitted program in {folder}", help="it has a main.py")
    own = {p.stem for p in folder.glob("*.py")} | {"mesh_runtime"}
    with _LOCK:
        kept = _taken(own)
        finder = _Finder(folder, own)
        sys.meta_path.insert(0, finder)
        try:
            return importlib.import_module("main")
        finally:
            sys.meta_path.remove(finder)
            _taken(own)
            sys.modules.update(kept)


class _Finder(MetaPathFinder):
    """Finds the modules called ``own``, and what is inside them, in ``folder``."""

    def __init__(self, folder: Path, own: Collection[str]) -> None:
        self.folder = folder
        self.own = own

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where a module of the program is; None for modules of others."""
        if fullname.partition(".")[0] not in self.own:
            return None
        where = (FileFinder(p, (_Loader, SOURCE_SUFFIXES)) for p in path or [str(self.folder)])
        return next((found for one in where if (found := one.find_spec(fullname))), None)


class _Loader(SourceFileLoader):
    """Compiles equal texts once: all programs carry the same runtime. Writes no bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        """The code of a module, which knows its file."""
        path = self.get_filename(fullname)
        return _placed(_compiled(self.get_data(path)), path)


@lru_cache(_TEXTS_KEPT)
def _compiled(text: bytes) -> CodeType:
    return compile(text, "<emitted>", "exec", dont_inherit=True)


def _placed(code: CodeType, path: str) -> CodeType:
    """``code`` and all that is inside it as code of the file at ``path``."""
    inside = (_placed(one, path) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=path, co_consts=tuple(inside))


def _taken(own: set[str]) -> dict[str, ModuleType]:
    """Remove the modules called ``own``, and what is inside them, from ``sys.modules``."""
    names = [name for name in sys.modules if name.partition(".")[0] in own]
    return {name: sys.modules.pop(name) for name in names}
