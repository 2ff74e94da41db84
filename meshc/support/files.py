"""Reading text and writing output: directories appear whole or not at all.

A directory is built beside its final place and then renamed. One that is there already is replaced
only when its manifest says that meshc wrote it and nothing was added since, or when forced.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from meshc.support.diagnostics import fail
from meshc.support.spans import Source

MANIFEST = "meshc.json"
_GENERATOR = "meshc"
_MANIFEST_LIMIT_BYTES = 4 << 20

Content = str | bytes | Callable[[Path], None]


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
    _written(lambda: _replace_file(path, text.encode()), path)


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
    folder: Path, files: Mapping[str, Content], facts: Mapping[str, object], force: bool = False
) -> list[str]:
    """Write ``files`` and a manifest with ``facts`` as the directory ``folder``.

    A content is text, bytes, or a function that writes the path it is given. Returns the relative
    paths, sorted, manifest included. Fails with ``unwritable``, or ``output-exists`` when something
    is there that meshc did not write; nothing is changed then.
    """
    target = Path(os.path.realpath(folder))
    names = sorted([*files, MANIFEST])
    check_free(folder, force)
    _written(lambda: _build(target, files, {**facts, "files": names}), folder)
    return names


def check_free(folder: Path, force: bool = False) -> None:
    """Fail with ``output-exists`` when ``folder`` may not be (re)placed."""
    target = Path(os.path.realpath(folder))
    if not os.path.exists(target):
        return
    if not target.is_dir():
        fail("output-exists", f"'{folder}' is a file", help="name a directory")
    here = Path.cwd()
    if target in (here, *here.parents, Path.home()):
        fail("output-exists", f"'{folder}' is where you are", help="name a directory of its own")
    if force:
        return
    surplus = _surplus(target)
    if surplus:
        fail(
            "output-exists",
            f"'{folder}' holds files that meshc did not write there",
            notes=[f"such as {name}" for name in surplus[:3]],
            help="name another directory, or use --force to replace it with all it holds",
        )


def error_words(error: Exception) -> str:
    """What an operating-system error says, without paths or numbers."""
    if isinstance(error, OSError):
        return error.strerror or "the system refuses"
    return str(error)


def _surplus(target: Path) -> list[str]:
    """Files in ``target`` that its manifest does not list; caches of Python do not count."""
    manifest = read_manifest(target)
    listed = manifest.get("files") if manifest else None
    known = {str(name) for name in listed} if isinstance(listed, list) else set()
    found: list[str] = []
    for place, folders, files in os.walk(target):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        for name in sorted(files):
            path = (Path(place) / name).relative_to(target).as_posix()
            if path not in known:
                found.append(path)
    return found


def _build(target: Path, files: Mapping[str, Content], facts: Mapping[str, object]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        for name, content in files.items():
            _fill(made, name, content)
        manifest = {"generator": _GENERATOR, **facts}
        _fill(made, MANIFEST, json.dumps(manifest, indent=2, sort_keys=True) + "\n")
        made.chmod(0o777 & ~_umask())
        _swap(made, target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _fill(folder: Path, name: str, content: Content) -> None:
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or PurePosixPath(name).is_absolute():
        raise ValueError(f"'{name}' leads out of the output directory")
    path = folder.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    if callable(content):
        content(path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def _swap(made: Path, target: Path) -> None:
    """Put ``made`` at ``target``; what was there comes back when that fails."""
    if not target.exists():
        made.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        target.rename(old / "old")
        try:
            made.rename(target)
        except OSError:
            (old / "old").rename(target)
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _replace_file(path: Path, data: bytes) -> None:
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        target.write_bytes(data)  # a device or a pipe must not be replaced by a file
        return
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _written(work: Callable[[], None], path: Path) -> None:
    try:
        work()
    except OSError as error:
        fail("unwritable", f"'{path}' cannot be written: {error_words(error)}")
