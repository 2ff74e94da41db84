"""Running an emitted program in this process."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from types import ModuleType

from meshc.support.diagnostics import fail

_LOCK = threading.Lock()


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
        sys.path.insert(0, str(folder))
        try:
            importlib.invalidate_caches()
            return importlib.import_module("main")
        finally:
            sys.path.remove(str(folder))
            _taken(own)
            sys.modules.update(kept)


def _taken(own: set[str]) -> dict[str, ModuleType]:
    """Remove the modules called ``own``, and what is inside them, from ``sys.modules``."""
    names = [name for name in sys.modules if name.partition(".")[0] in own]
    return {name: sys.modules.pop(name) for name in names}
