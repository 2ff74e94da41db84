"""Output directories: they appear whole or not at all, and what a person put there stays.

A directory is built beside its final place, which it then takes (``replacing``). Its manifest lists
the files with their hashes. Where one is there already, files that are as the manifest says are
replaced, and all others go into the new directory too. A listed file that was edited is in the way,
as is any other file where a new one belongs: that is refused, or with ``force`` it is kept as
``NAME.orig``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath

from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.files import reported
from meshc.support.replacing import (
    Known,
    Stamp,
    asides,
    finish_in,
    is_same,
    replace_directory,
    stamp,
)
from meshc.support.scratch import scratch_folder

MANIFEST = "meshc.json"
_GENERATOR = "meshc"
_MANIFEST_LIMIT_BYTES = 4 << 20
_SHOWN = 3
_ASIDES = 4
"""Names beside that of a file among which it is looked for."""

Content = str | bytes | Callable[[Path], None]


def read_manifest(folder: Path) -> dict[str, object] | None:
    """The manifest that meshc left in ``folder``, or None when it did not write the folder."""
    path = folder / MANIFEST
    try:
        if not path.is_file() or path.stat().st_size > _MANIFEST_LIMIT_BYTES:
            return None
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    ours = isinstance(found, dict) and found.get("generator") == _GENERATOR
    return found if ours else None


def write_directory(
    folder: Path,
    files: Mapping[str, Content],
    facts: Mapping[str, object],
    force: bool = False,
    report: Diagnostics | None = None,
) -> list[str]:
    """Write ``files`` and a manifest with ``facts`` as the directory ``folder``.

    A content is text, bytes, or a function that writes the path it is given. Returns the relative
    paths, sorted, manifest included. What ``force`` put aside is added to ``report`` as warnings,
    as is what others wrote in the meantime where a new file belongs.
    Fails with ``unwritable``, ``output-exists`` or ``output-edited``; nothing is changed then.
    """
    target = Path(os.path.realpath(folder))
    names = sorted([*files, MANIFEST])
    with reported(folder):
        target.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(target.parent) as scratch:
            finish_in(target.parent, _what_is_left)
            made = scratch / "new"
            made.mkdir()
            _fill(made, files, {**facts, "files": names})
            known = _what_is_known(target, folder, names, force)
            for path, name in known.stays.items():
                with suppress(FileNotFoundError):  # it is gone since
                    _keep(target, path, made, name)
            brought = replace_directory(made, target, known)
    if report is not None:
        for path, name in {**known.stays, **brought}.items():
            if path != name:
                report.warning("output-edited", f"'{folder / path}' is now '{folder / name}'")
    return names


def check_free(folder: Path, force: bool = False) -> None:
    """Fail with ``output-exists`` or ``output-edited`` when ``folder`` may not be written, as far
    as can be told before the files are known."""
    with reported(folder):
        _what_is_known(Path(os.path.realpath(folder)), folder, [MANIFEST], force)


@dataclass(frozen=True)
class _Found:
    """What meshc would lose by writing a directory anew, by relative path: files of its own that
    were edited, and others, among them links and empty folders. ``ours`` if it has a manifest;
    files that are ``as_written`` are lost by nobody."""

    ours: bool
    as_written: Mapping[str, Stamp]
    edited: tuple[str, ...]
    others: tuple[str, ...]


def _what_is_known(target: Path, folder: Path, files: Collection[str], force: bool) -> Known:
    """What goes of ``target``, and what stays beside the new ``files``."""
    if not os.path.exists(target):
        return Known({}, {})
    if not target.is_dir():
        fail("output-exists", f"'{folder}' is a file", help="name a directory")
    here = Path.cwd()
    if target in (here, *here.parents, Path.home()):
        fail("output-exists", f"'{folder}' is where you are", help="name a directory of its own")
    found = _look(target)
    names, folders = set(files), _folders(files)
    heads = {path: _in_the_way(target, path, names, folders) for path in found.others}
    clashes = [path for path, head in heads.items() if head is not None]
    if not force:
        _refuse(folder, found, clashes)
    heads |= {path: path for path in found.edited}
    taken = {*names, *heads, *_folders(heads)}
    aside = {
        head: next(name for name in asides(head) if name not in taken)
        for head in heads.values()
        if head is not None
    }
    stays = {p: p if head is None else aside[head] + p[len(head) :] for p, head in heads.items()}
    return Known(found.as_written, stays, MANIFEST)


def _what_is_left(old: Path, target: Path) -> Known:
    """What goes of an ``old`` directory whose place ``target`` has taken, and what stays as it is
    there too; all else is to be brought over."""
    found = _look(old)
    stays = {}
    for path in (*found.edited, *found.others):
        names = (path, *islice(asides(path), _ASIDES))
        here = next((name for name in names if is_same(old / path, target / name)), None)
        if here is not None:
            stays[path] = here
    return Known(found.as_written, stays, MANIFEST)


def _refuse(folder: Path, found: _Found, clashes: list[str]) -> None:
    """Fail when something would have to make room."""
    if found.edited:
        fail(
            "output-edited",
            f"'{folder}' holds files that were edited since meshc wrote them",
            notes=_few(found.edited),
            help="move them away, or use --force, which keeps each beside the new one as NAME.orig",
        )
    if clashes or (found.others and not found.ours):
        fail(
            "output-exists",
            f"'{folder}' holds files that meshc did not write there",
            notes=_few(clashes or found.others),
            help="name another directory, or use --force to write into this one; what is in the "
            "way is kept as NAME.orig",
        )


def _few(paths: Sequence[str]) -> list[str]:
    more = [f"and {len(paths) - _SHOWN} more"] if len(paths) > _SHOWN else []
    return [*paths[:_SHOWN], *more]


def _folders(paths: Iterable[str]) -> set[str]:
    return {str(above) for path in paths for above in PurePosixPath(path).parents}


def _in_the_way(target: Path, path: str, names: set[str], folders: set[str]) -> str | None:
    """The part of ``path`` that stands where a new file, or a folder of one, belongs, if any."""
    taken = names & {path, *_folders([path])}
    if taken:
        return taken.pop()
    place = target / path
    needed = path in folders and (place.is_symlink() or not place.is_dir())
    return path if needed else None


def _look(target: Path) -> _Found:
    manifest = read_manifest(target)
    listed = manifest.get("sha256") if manifest else None
    hashes: dict[str, object] = listed if isinstance(listed, dict) else {}
    ours = isinstance(listed, dict)
    as_written: dict[str, Stamp] = {}
    edited, others = [], []
    for entry in _entries(target):
        path = entry.relative_to(target).as_posix()
        if path not in hashes and not (ours and path == MANIFEST):
            others.append(path)
            continue
        with suppress(FileNotFoundError):  # it is gone since
            before = stamp(entry)
            if path == MANIFEST or _is_as_written(entry, hashes[path]):
                as_written[path] = before
            else:
                edited.append(path)
    return _Found(ours, as_written, tuple(edited), tuple(others))


def _is_as_written(entry: Path, sha256: object) -> bool:
    return entry.is_file() and not entry.is_symlink() and _sha256(entry) == sha256


def _entries(folder: Path) -> Iterator[Path]:
    """Files, links and empty folders below ``folder``; caches of Python do not count."""
    found: list[Path] = []
    with suppress(FileNotFoundError):  # it is gone since
        found = sorted(folder.iterdir())
    for entry in found:
        if entry.name == "__pycache__":
            continue
        if entry.is_dir() and not entry.is_symlink():
            inside = list(_entries(entry))
            yield from inside or [entry]
        else:
            yield entry


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fill(folder: Path, files: Mapping[str, Content], facts: Mapping[str, object]) -> None:
    """Write the files, then the manifest with their hashes."""
    hashes = {}
    for name, content in files.items():
        path = _place(folder, name)
        if callable(content):
            content(path)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        hashes[name] = _sha256(path)
    manifest = {"generator": _GENERATOR, "sha256": hashes, **facts}
    text = json.dumps(manifest, indent=2, sort_keys=True) + "\n"
    _place(folder, MANIFEST).write_text(text, encoding="utf-8")


def _place(folder: Path, name: str) -> Path:
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or PurePosixPath(name).is_absolute():
        raise ValueError(f"'{name}' leads out of the output directory")
    path = folder.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _keep(old: Path, path: str, new: Path, name: str) -> None:
    """Let ``path`` of the folder ``old`` be ``name`` of the folder ``new`` as well."""
    for above in reversed(PurePosixPath(path).parents[:-1]):
        depth = len(above.parts)
        folder = new.joinpath(*PurePosixPath(name).parts[:depth])
        if not folder.exists():
            folder.mkdir()
            shutil.copymode(old / above, folder)
    source, place = old / path, new / name
    if source.is_dir() and not source.is_symlink():
        place.mkdir(exist_ok=True)
        shutil.copymode(source, place)
        return
    try:
        os.link(source, place, follow_symlinks=False)
    except (OSError, NotImplementedError):
        shutil.copy2(source, place, follow_symlinks=False)
