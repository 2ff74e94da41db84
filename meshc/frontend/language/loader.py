"""Files and texts to models: reading, ``use``, and which blocks can be called where."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

from meshc.frontend.families import family_names, is_family, model_text
from meshc.frontend.language.ast import Block, File, Model, RawModel, Use
from meshc.frontend.language.builtin_signatures import BUILTINS, did_you_mean
from meshc.frontend.language.found import Found, Stopped
from meshc.frontend.language.model_checks import check_model
from meshc.frontend.language.syntax_reader import GRAMMAR, read
from meshc.support.diagnostics import Diagnostics, MeshcError, fail
from meshc.support.spans import Source, Span

SUFFIX = ".mesh"
MAX_FILES = 32
MAX_CHARACTERS = 64 * 1024


def load_model(path: Path, diagnostics: Diagnostics | None = None) -> Model:
    """The model in the file at ``path``; files it uses lie in its folder or below.

    Warnings go to ``diagnostics``. Raises MeshcError for whatever is wrong with a file.
    """
    return parse_model(read_source(path), path.parent, diagnostics)


def parse_model(
    source: Source, folder: Path | None = None, diagnostics: Diagnostics | None = None
) -> Model:
    """The only model of ``source``, checked as far as that needs no values of parameters.

    ``folder`` is where files named by ``use "..."`` are; without it there can be none. Warnings go
    to ``diagnostics``. Raises MeshcError with every error found.
    """
    found = Found()
    loading = _Loading(found)
    file = loading.enter(source, folder)
    model = _only_model(source, file, loading)
    # A file that could not be used would make every block of it unknown.
    found.raise_errors()
    check_model(model, found)
    found.raise_errors()
    if diagnostics is not None:
        for message in found.messages:
            diagnostics.add(message)
    return model


def read_source(path: Path) -> Source:
    """The text of a file: regular, UTF-8, not too large."""
    limit = 4 * GRAMMAR.max_characters
    try:
        if not os.path.isfile(path):
            fail("source-unreadable", f"'{path}' is no file")
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except (OSError, ValueError) as error:
        fail("source-unreadable", f"'{path}' cannot be read: {_reason(error)}")
    if len(data) > limit:
        fail("source-too-large", f"'{path}' has more than {limit} bytes")
    return Source(str(path), _decoded(data, str(path)))


def library_source(name: str) -> Source:
    """The text of the shipped file, or of the model of the family, ``name``."""
    if is_family(name):
        text = model_text(name)
    else:
        text = _library().joinpath(name + SUFFIX).read_text(encoding="utf-8")
    return Source(f"<library>/{name}{SUFFIX}", text)


def library_names() -> tuple[str, ...]:
    """The shipped files that ``use`` can name, and the families."""
    entries = (entry.name for entry in _library().iterdir())
    files = [name.removesuffix(SUFFIX) for name in entries if name.endswith(SUFFIX)]
    return tuple(sorted([*files, *family_names()]))


def _library() -> Traversable:
    return resources.files("meshc.frontend.language").joinpath("library")


@dataclass
class _Loading:
    """The files of one model while their uses are followed; ``visible`` is by scope."""

    diagnostics: Diagnostics
    visible: dict[str, dict[str, Block]] = field(default_factory=dict)
    own: dict[str, tuple[Block, ...]] = field(default_factory=dict)
    entered: list[str] = field(default_factory=list)
    characters: int = 0

    def enter(self, source: Source, folder: Path | None) -> File:
        """Read ``source``, follow its uses and make its blocks visible in its scope."""
        file = read(source)
        self.entered.append(source.name)
        self.own[source.name] = file.blocks
        scope: dict[str, Block] = {}
        for use in file.uses:
            self._add(scope, self._used(use, folder))
        self._add(scope, file.blocks)
        self.visible[source.name] = scope
        return file

    def enter_model(self, raw: RawModel, file_scope: str) -> str:
        """Make the blocks inside a model visible there; the new scope's key."""
        key = f"{file_scope}:{raw.name}"
        scope = dict(self.visible[file_scope])
        self._add(scope, (s for s in raw.body if isinstance(s, Block) and s.name != "main"))
        self.visible[key] = scope
        return key

    def _used(self, use: Use, folder: Path | None) -> tuple[Block, ...]:
        try:
            source, below = _beside(use, folder) if use.quoted else (_shipped(use), None)
            if source.name in self.visible:
                return self.own[source.name]
            if source.name in self.entered:
                fail("bad-use", f"'{use.target}' uses itself, directly or not", use.span)
            if len(self.entered) >= MAX_FILES:
                fail("bad-use", f"a model has more than {MAX_FILES} files", use.span)
            self.characters += len(source.text)
            if self.characters > MAX_CHARACTERS:
                message = f"the files of a model have more than {MAX_CHARACTERS} characters"
                fail("bad-use", message, use.span)
            return self.enter(source, below).blocks
        except Stopped:
            raise
        except MeshcError as error:
            for found in error.diagnostics:
                self.diagnostics.add(found)
            return ()

    def _add(self, scope: dict[str, Block], blocks: Iterable[Block]) -> None:
        for block in blocks:
            other = scope.get(block.name)
            if block.name in BUILTINS:
                message = f"'{block.name}' is a built-in function"
                self.diagnostics.error("duplicate-name", message, block.span)
            elif other is not None and other.span != block.span:
                self.diagnostics.error(
                    "duplicate-name",
                    f"block '{block.name}' is defined twice",
                    block.span,
                    [f"the other one is at {other.span}"],
                )
            scope.setdefault(block.name, block)


def _only_model(source: Source, file: File, loading: _Loading) -> Model:
    if len(file.models) != 1:
        where = file.models[1].span if file.models else Span(source, 1, 1)
        message = f"a file holds one model; this one has {len(file.models)}"
        fail("bad-model", message, where, help="write: model name { ... }")
    (raw,) = file.models
    scope = loading.enter_model(raw, source.name)
    mains = [s for s in raw.body if isinstance(s, Block) and s.name == "main"]
    if len(mains) != 1:
        message = f"model '{raw.name}' has {len(mains)} main blocks; it needs one"
        help_line = "write: main(tokens[B, L]) { ... return x }"
        fail("bad-model", message, mains[1].span if mains else raw.span, help=help_line)
    body = tuple(s for s in raw.body if not isinstance(s, Block))
    return Model(raw.name, raw.parameters, body, mains[0], scope, raw.span, loading.visible)


def _shipped(use: Use) -> Source:
    if use.target not in library_names():
        fail(
            "bad-use",
            f"there is no library file '{use.target}'",
            use.span,
            [f"the library has {', '.join(library_names())}"],
            did_you_mean(use.target, library_names())
            or f'a file of your own is quoted: use "{use.target}.mesh"',
        )
    return library_source(use.target)


def _beside(use: Use, folder: Path | None) -> tuple[Source, Path]:
    """A file named by a quoted ``use``, which must not lead out of ``folder``."""
    if folder is None:
        fail("bad-use", "a text that is no file cannot use files beside it", use.span)
    target = PurePosixPath(use.target)
    plain = use.target.isprintable() and "\\" not in use.target and ":" not in use.target
    if target.suffix != SUFFIX or target.is_absolute() or ".." in target.parts or not plain:
        fail(
            "bad-use",
            f"'{use.target}' is no relative path of a {SUFFIX} file",
            use.span,
            help="files lie in the folder of the one that uses them, or below it",
        )
    path = folder / target
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
        missing = not os.path.isfile(path)
    except OSError as error:
        fail("bad-use", f"'{use.target}' cannot be read: {_reason(error)}", use.span)
    if not inside or missing:
        why = "is no file" if missing else "leads out of the folder through a link"
        fail("bad-use", f"'{use.target}' {why}", use.span)
    return read_source(path), path.parent


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = data[: error.start].decode("utf-8")
        line = good.count("\n") + 1
        fail(
            "source-not-utf8",
            f"'{name}' is no UTF-8 text: byte {error.start} (line {line}) is "
            f"0x{data[error.start]:02x}",
            help="save the file as UTF-8",
        )


def _reason(error: Exception) -> str:
    return (error.strerror or "the system refuses") if isinstance(error, OSError) else str(error)
