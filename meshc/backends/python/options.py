"""Options of the Python target: those of meshes."""

from __future__ import annotations

from meshc.backends.options import MeshOptions

OPTIONS = MeshOptions
