"""What code computes here, in words that are the same where it is."""

from __future__ import annotations

import platform
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np

from meshc.version import VERSION

_ROOT = Path(__file__).parents[1]


@cache
def code_here() -> str:
    """What results of this process depend on beside their jobs: the versions of meshc, Python and
    NumPy, and a digest of the files of meshc."""
    digest, python = sha256(), ".".join(platform.python_version_tuple()[:2])
    for path in sorted(path for path in _ROOT.rglob("*") if path.is_file()):
        if path.parent.name != "__pycache__":
            digest.update(path.read_bytes())
    return f"meshc {VERSION} ({digest.hexdigest()[:12]}), Python {python}, NumPy {np.__version__}"
