"""Bounded reading of files that a stranger may have written."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from meshc.support.diagnostics import fail


def open_regular(path: Path, what: str) -> tuple[BinaryIO, int]:
    """``path`` opened for reading, with its size in bytes.

    Pipes and devices are refused before they are opened: reading one could block for ever.
    ``what`` names the kind of file in messages. Errors: ``checkpoint-unreadable``.
    """
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            fail(
                "checkpoint-unreadable",
                f"{what} '{path}' is not a regular file",
                help="give the path of a file",
            )
        return open(path, "rb"), status.st_size
    except (OSError, ValueError) as error:
        # ValueError: a path with a NUL byte.
        reason = error.strerror if isinstance(error, OSError) else str(error)
        fail(
            "checkpoint-unreadable",
            f"cannot read {what} '{path}': {reason}",
            help="check the path and its permissions",
        )


def read_bounded(path: Path, limit_bytes: int, what: str) -> bytes:
    """All bytes of ``path``, refused when there are more than ``limit_bytes``.

    Errors: ``checkpoint-unreadable``.
    """
    stream, _ = open_regular(path, what)
    with stream:
        data = stream.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        fail(
            "checkpoint-unreadable",
            f"{what} '{path}' is larger than {limit_bytes} bytes",
            help="this is far beyond what such a file needs; is it the right file?",
        )
    return data


def list_directory(folder: Path) -> list[Path]:
    """The entries of ``folder``, sorted by name. Errors: ``checkpoint-unreadable``."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        fail(
            "checkpoint-unreadable",
            f"cannot list the directory '{folder}': {error.strerror}",
            help="check its permissions",
        )
