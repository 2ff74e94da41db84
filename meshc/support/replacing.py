"""A new directory takes the place of an old one, and nothing of others is lost, whenever it came.

The two change places at once where the system can do that, so that there always is a directory for
whoever writes into it. What is then found in the old one and was not known is brought over to the
new one: files are removed one by one, and a folder only when it is empty.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path, PurePosixPath

from meshc.support.diagnostics import fail
from meshc.support.files import error_words
from meshc.support.scratch import held, hold, release, uninterrupted

Stamp = tuple[int, int, int]
_EXCHANGE, _HERE = 2, -100


@dataclass(frozen=True)
class Known:
    """What is known of an old directory, by relative path: files that are ``to_go``, as they were
    when they were looked at, and what ``stays``, with its path in the new one, where it is too. The
    file ``last``, by which the others are known, goes behind them."""

    to_go: Mapping[str, Stamp]
    stays: Mapping[str, str]
    last: str = ""

    def has_below(self, path: str) -> bool:
        """Whether the folder ``path`` or something in it is known."""
        known = chain(self.to_go, self.stays)
        return path in self.stays or any(one.startswith(f"{path}/") for one in known)


def stamp(path: Path) -> Stamp:
    """What changes when a file is written or replaced."""
    found = path.lstat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def asides(path: str) -> Iterator[str]:
    """Names beside that of a file, in the order in which they are tried."""
    yield f"{path}.orig"
    yield from (f"{path}.orig{number}" for number in count(1))


def replace_directory(made: Path, target: Path, known: Known) -> dict[str, str]:
    """Put the directory ``made`` of a scratch folder at ``target``, and remove what was there and
    goes. What was brought over since: its path in the new directory by that in the old one.

    Raises OSError where ``made`` cannot be put there, which changes nothing, and ``unwritable``
    where something cannot be brought over; that stays in the scratch folder then.
    """
    with uninterrupted():
        if not target.exists():
            made.rename(target)
            return {}
        leaving = _Leaving(_swapped(made, target), target, known)
        try:
            leaving.empty(leaving.old)
        except OSError as error:
            fail(
                "unwritable",
                f"'{target}' is written, but not all that was in it could be brought over: "
                f"{error_words(error)}",
                notes=[f"the rest is in '{leaving.old}'"],
            )
        release(made.parent)
        return leaving.brought


def finish_in(parent: Path, known: Callable[[Path, Path], Known]) -> None:
    """Empty what processes left in the folder ``parent`` that were killed while a directory there
    took the place of an old one; as far as that can be done. ``known`` is told what is left, and
    the directory that is there."""
    with uninterrupted():
        for folder, name in held(parent):
            target, left = parent / name, [folder / "old", folder / "new"]
            if name in ("", "..") or Path(name).name != name:
                continue
            with suppress(OSError):
                for old in filter(_is_folder, left):
                    if not os.path.lexists(target):
                        old.rename(target)
                    elif _is_folder(target):
                        _Leaving(old, target, known(old, target)).empty(old)
                if not any(map(_is_folder, left)):
                    release(folder)


def is_same(one: Path, other: Path) -> bool:
    """Whether two paths are one file, or one is the copy that was made of the other."""
    if not os.path.lexists(other):
        return False
    return os.path.samestat(one.lstat(), other.lstat()) or stamp(one)[1:] == stamp(other)[1:]


def exchange(one: Path, other: Path) -> bool:
    """Let two paths change places at once; whether the system can."""
    return _exchange is not None and _exchange(os.fsencode(one), os.fsencode(other)) == 0


def _call_of_exchange() -> Callable[[bytes, bytes], int] | None:
    """What exchanges two paths on Linux or macOS; it gives 0 when it has."""
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):
        return None
    if hasattr(library, "renameat2"):
        linux = library.renameat2
        return lambda one, other: int(linux(_HERE, one, _HERE, other, _EXCHANGE))
    if hasattr(library, "renamex_np"):
        macos = library.renamex_np
        return lambda one, other: int(macos(one, other, _EXCHANGE))
    return None


_exchange = _call_of_exchange()


def _swapped(made: Path, target: Path) -> Path:
    """Where the old directory is after ``made`` has taken its place; the scratch folder is held."""
    hold(made.parent, target.name)
    if exchange(made, target):
        return made
    old = made.parent / "old"
    try:
        target.rename(old)
        try:
            made.rename(target)
        except OSError:
            old.rename(target)
            raise
    finally:
        if not old.exists():
            release(made.parent)
    return old


@dataclass
class _Leaving:
    """An ``old`` directory that is emptied, and the ``new`` one that has its place."""

    old: Path
    new: Path
    known: Known
    brought: dict[str, str] = field(default_factory=dict)

    def empty(self, folder: Path) -> None:
        """Remove ``folder`` of the old directory, again and again until nothing comes into it."""
        while True:
            last = self.old / self.known.last
            for entry in sorted(folder.iterdir(), key=lambda one: (one == last, one)):
                with suppress(FileNotFoundError):  # somebody else moves things, too
                    self._settle(entry, entry.relative_to(self.old).as_posix())
            try:
                folder.rmdir()
            except OSError:
                if any(folder.iterdir()):
                    continue
                raise
            return

    def _settle(self, entry: Path, path: str) -> None:
        place = self.new / self.known.stays.get(path, path)
        if entry.name == "__pycache__":
            shutil.rmtree(entry, ignore_errors=True)
        elif _is_folder(entry):
            if self.known.has_below(path) or _is_folder(place):
                self.empty(entry)
            else:
                self._bring(entry, path)
        elif self.known.to_go.get(path) == stamp(entry) or (
            path in self.known.stays and is_same(entry, place)
        ):
            entry.unlink()
        elif path in self.known.stays and _is_newer(entry, place):
            os.replace(entry, place)
        else:
            self._bring(entry, path)

    def _bring(self, entry: Path, path: str) -> None:
        """Let ``entry`` be in the new directory as well: at ``path``, or beside what is there."""
        place = self.new
        *above, last = PurePosixPath(path).parts
        for part in above:
            names = (place / name for name in chain([part], asides(part)))
            place = next(p for p in names if _is_folder(p) or not os.path.lexists(p))
            place.mkdir(exist_ok=True)
        names = (place / name for name in chain([last], asides(last)))
        place = next(p for p in names if not os.path.lexists(p))
        entry.rename(place)
        self.brought[path] = place.relative_to(self.new).as_posix()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_newer(one: Path, other: Path) -> bool:
    return os.path.lexists(other) and stamp(one)[2] > stamp(other)[2]
