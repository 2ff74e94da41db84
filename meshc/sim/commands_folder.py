"""The directory of stand-in commands."""

from __future__ import annotations

import hashlib
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from meshc.support.cache import cache_folder, tell_unusable
from meshc.support.files import put_file

_COMMANDS = {"cslc": "meshc.sim.cslc", "cs_python": "meshc.sim.cs_python"}


def own_bin(options: Sequence[str] = ()) -> Path:
    """The commands in a directory that only this interpreter, this copy of meshc and these
    ``options`` of ``cs_python`` use: one of the user's cache or, where that cannot be written, a
    new one among temporary files, which stays."""
    place = "\0".join((sys.executable, str(Path(__file__).resolve()), *options))
    name = f"bin-{hashlib.sha256(place.encode()).hexdigest()[:16]}"
    try:
        return make_bin(cache_folder() / name, options)
    except OSError as problem:
        tell_unusable(problem, "the commands are among the temporary files")
        return make_bin(Path(tempfile.mkdtemp(prefix="meshc-bin-")), options)


def make_bin(folder: Path, options: Sequence[str] = ()) -> Path:
    """Write ``cslc`` and ``cs_python`` scripts to ``folder``; they use this interpreter.

    ``options`` go to ``cs_python`` in front of its script.
    """
    folder.mkdir(parents=True, exist_ok=True)
    root = Path(__file__).resolve().parents[2]
    for name, module in _COMMANDS.items():
        script = folder / name
        extra = "".join(shlex.quote(o) + " " for o in options) if name == "cs_python" else ""
        text = (
            "#!/bin/sh\n"
            f"PYTHONPATH={shlex.quote(str(root))}${{PYTHONPATH:+:$PYTHONPATH}} "
            f"exec {shlex.quote(sys.executable)} -m {module} "
            f'{extra}"$@"\n'
        )
        put_file(script, text.encode(), mode=0o755)
    return folder
