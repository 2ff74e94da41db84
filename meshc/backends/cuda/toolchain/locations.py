"""Where the parts of a CUDA toolkit may be: a folder that the user names, the path, PyPI wheels."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

_USUAL = Path("/usr/local/cuda")


def toolkit_folders() -> Iterator[Path]:
    """Folders laid out as a toolkit (``bin``, ``include``, ``lib``) that exist, best first:
    ``$CUDA_HOME``, ``$CUDA_PATH``, the wheels of PyPI, the usual place."""
    named = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    for folder in (*named, *_wheel_folders(), _USUAL):
        if folder.is_dir():
            yield folder


def find_program(name: str) -> str | None:
    """The path of a program of the toolkit, on ``$PATH`` first; None when there is none."""
    if found := shutil.which(name):
        return found
    for folder in toolkit_folders():
        if found := shutil.which(name, path=str(folder / "bin")):
            return found
    return None


def find_headers(near: Path | None) -> Path | None:
    """The folder of ``cuda_fp16.h``, that of the toolkit ``near`` first; None when there is none.

    Wheels of CUDA 12 keep each part in a folder of its own, so its headers lie beside it.
    """
    folders = [near, near.parent / "cuda_runtime"] if near is not None else []
    for folder in (*folders, *toolkit_folders()):
        if (folder / "include" / "cuda_fp16.h").is_file():
            return folder / "include"
    return None


def _wheel_folders() -> list[Path]:
    """``nvidia/*`` of the packages that Python finds; the newest toolkit first."""
    found = importlib.util.find_spec("nvidia")
    places = found.submodule_search_locations if found is not None else None
    folders = [folder for place in places or () for folder in Path(place).glob("cu*")]
    # cu13 before cuda_nvrtc, the layout of CUDA 12.
    return sorted(folders, key=lambda folder: (folder.name.startswith("cuda_"), folder.name))
