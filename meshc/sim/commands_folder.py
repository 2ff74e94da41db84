"""The directory of stand-in commands."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

_COMMANDS = {"cslc": "meshc.sim.cslc", "cs_python": "meshc.sim.cs_python"}


def make_bin(folder: Path) -> Path:
    """Write ``cslc`` and ``cs_python`` scripts to ``folder``; they use this interpreter."""
    folder.mkdir(parents=True, exist_ok=True)
    root = Path(__file__).resolve().parents[2]
    for name, module in _COMMANDS.items():
        script = folder / name
        script.write_text(
            "#!/bin/sh\n"
            f"PYTHONPATH={shlex.quote(str(root))}${{PYTHONPATH:+:$PYTHONPATH}} "
            f'exec {shlex.quote(sys.executable)} -m {module} "$@"\n',
            encoding="utf-8",
        )
        script.chmod(0o755)
    return folder
