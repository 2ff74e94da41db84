"""What was made once and is kept in the user's cache: found by a key, proved by its hash.

A key is the name of a folder; what it holds is a file that is named after the hash of its content.
So a damaged file is not taken for what it was: it is made again and replaced. Files appear whole,
and are never removed, so any number of processes may share a cache.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from meshc.support.files import replace_file


def cache_folder() -> Path:
    """The folder of all that is kept: ``$XDG_CACHE_HOME/meshc`` or ``~/.cache/meshc``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "meshc"


def recall(key: str) -> Path | None:
    """The sound file that is kept for ``key``; None when there is none, or none can be read."""
    try:
        for path in sorted((cache_folder() / key).iterdir()):
            if path.stem == _digest(path.read_bytes()):
                return path
    except OSError:
        pass
    return None


def keep(key: str, data: bytes, suffix: str = "") -> Path:
    """Keep ``data`` for ``key``; the file, whose name ends in ``suffix``. Raises OSError."""
    path = cache_folder() / key / f"{_digest(data)}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data, mode=0o777)
    return path


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
