"""Files of pictures that commands draw."""

from __future__ import annotations

from pathlib import Path

from meshc.support.diagnostics import fail
from meshc.support.files import check_place, replace_file, reported


def check_picture(name: str) -> None:
    """Raise ``bad-argument`` for a file of ``--plot`` that is no PNG by its name, and
    ``unwritable`` where none can be put there."""
    if Path(name).suffix != ".png":
        fail("bad-argument", f"--plot is '{name}', whose name does not end in .png")
    check_place(Path(name))


def write_picture(file: Path, picture: bytes) -> None:
    """Write a picture whole or not at all. Raises ``unwritable``."""
    with reported(file):
        replace_file(file, picture)
