"""Reading and writing single files; ``output`` writes directories."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from meshc.support.diagnostics import fail
from meshc.support.scratch import scratch_folder
from meshc.support.spans import Source

FileStamp = tuple[str, int, int, int, int]
"""Path, inode, size, and when content and inode were changed."""
_TICK_NS = 50_000_000
"""More than the time in which a file system gives two writes the same date."""


def read_text(path: Path, limit_bytes: int) -> Source:
    """The UTF-8 text of a regular file of at most ``limit_bytes``; fails with ``unreadable``."""
    try:
        if not path.is_file():
            fail("unreadable", f"'{path}' is no file")
        with path.open("rb") as stream:
            data = stream.read(limit_bytes + 1)
    except (OSError, ValueError) as error:
        fail("unreadable", f"'{path}' cannot be read: {error_words(error)}")
    if len(data) > limit_bytes:
        fail("unreadable", f"'{path}' has more than {limit_bytes} bytes")
    return decoded(data, str(path))


def decoded(data: bytes, name: str) -> Source:
    """``data`` as a source text; fails with ``unreadable`` when it is no UTF-8."""
    try:
        return Source(name, data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        fail("unreadable", f"'{name}' is no UTF-8 text: byte {error.start} is wrong")


def write_text(path: Path, text: str) -> None:
    """Write one file whole or not at all; fails with ``unwritable``."""
    with reported(path):
        replace_file(path, text.encode())


def replace_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Let ``path``, or what it is a link to, hold ``data``: others see the old content or the new,
    never a part. ``mode`` is that of a new file before the umask. Raises OSError."""
    target = Path(os.path.realpath(path))
    if os.path.exists(target) and not target.is_file():
        target.write_bytes(data)  # a device or a pipe must not be replaced by a file
        return
    put_file(target, data, mode)


def put_file(target: Path, data: bytes, mode: int = 0o666, beside: Path | None = None) -> None:
    """Put a file that holds ``data`` at ``target``, whatever is there, unless it is a folder. It is
    made in the folder ``beside`` if not in its own. Raises OSError."""
    with scratch_folder(beside or target.parent) as scratch:
        made = scratch / "new"
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT, mode), "wb") as stream:
            stream.write(data)
        os.replace(made, target)


def check_place(path: Path) -> None:
    """Fail with ``unwritable`` where no file can be put at ``path``, before long work for one."""
    with reported(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        os.stat(path.parent)


def file_stamps(paths: Iterable[Path]) -> list[FileStamp | None]:
    """What changes when one of the files is written or replaced, be it by one of the same size and
    date; None for what is no file. A file that was written a moment ago is waited for until another
    write would show."""
    found: list[FileStamp | None] = []
    for path in paths:
        try:
            stat = os.stat(path)
            if abs(time.time_ns() - stat.st_ctime_ns) < _TICK_NS:
                time.sleep(_TICK_NS / 1e9)
                stat = os.stat(path)
        except OSError:
            found.append(None)
            continue
        times = stat.st_mtime_ns, stat.st_ctime_ns
        found.append((os.path.realpath(path), stat.st_ino, stat.st_size, *times))
    return found


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """An OSError in the block is the diagnosed error ``unwritable`` of ``path``."""
    try:
        yield
    except OSError as error:
        fail("unwritable", f"'{path}' cannot be written: {error_words(error)}")


def error_words(error: Exception) -> str:
    """What an operating-system error says, without paths or numbers."""
    if isinstance(error, OSError):
        return error.strerror or "the system refuses"
    return str(error)
