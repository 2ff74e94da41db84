"""meshc: compile language models onto meshes of cores. The public API; see docs/library.md.

>>> module = meshc.load("block.meshir")
>>> module = meshc.PassManager([meshc.EliminateTranspose()]).run(module)

Its names live in ``meshc.api``, which is loaded when the first of them is used: importing a part
of meshc costs that part only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from meshc.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from meshc.api import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        if name == "__all__" or not name.startswith("__"):
            if name == "torch":  # of an extra, and loaded for itself alone
                return import_module("meshc.torch")
            api = import_module("meshc.api")
            if name in ("__all__", *api.__all__):
                return getattr(api, name)
        raise AttributeError(f"module 'meshc' has no attribute '{name}'")

    def __dir__() -> list[str]:
        return sorted({*globals(), *import_module("meshc.api").__all__})
