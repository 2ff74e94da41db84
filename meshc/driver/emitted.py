"""What running needs of a compile: texts and facts, which may be kept for the next run.

A kept program is found by what it was compiled from: the configuration of the model, the request,
the device and the code of meshc. It is one file that is named after its hash, so that a damaged one
is compiled again. All together take `MOST_BYTES` at most.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from meshc.backends.request import CompileRequest
from meshc.backends.target import target_of
from meshc.driver.executable import Program
from meshc.driver.models import LoadedModel
from meshc.driver.serving_facts import serving_of
from meshc.driver.weights import PACKED_FOLDER, Array, find_weights
from meshc.frontend.families import family_names
from meshc.support.cache import cache_folder, keep_for_all, recall
from meshc.support.code import code_here
from meshc.support.diagnostics import Diagnostic, Diagnostics
from meshc.support.output import write_directory
from meshc.support.room import make_room, use
from meshc.support.spans import Source, Span

MOST_BYTES = 256 << 20
"""Bytes of all programs that are kept."""
_PART = "programs"


@dataclass(frozen=True)
class Emitted:
    """The program that ``request`` makes of the model ``loaded``: the text of each of its
    ``files``, what its manifest says, and the names of the weights that it reads."""

    loaded: LoadedModel
    request: CompileRequest
    files: Mapping[str, str]
    facts: Mapping[str, object]
    weights: tuple[str, ...]

    @property
    def makes_tokens(self) -> bool:
        """Whether the program is a language model that maps tokens to tokens."""
        phases = self.facts.get("phases")
        steps = isinstance(phases, list) and "decode" in phases
        return steps and self.facts.get("embedding") is not None

    def written(
        self, folder: Path, weights: Mapping[str, Array] | str | Path | None = None
    ) -> Program:
        """The program in ``folder``, into which its files are written."""
        write_directory(folder, self.files, self.facts)
        loaded, place = self.loaded, None
        if not isinstance(weights, Mapping):
            given = None if weights is None else str(weights)
            place = find_weights(loaded.name, loaded.weights, given)
        return Program(
            folder,
            loaded.name,
            self.request.target,
            self.request.mesh_name if target_of(self.request).ON_MESH else None,
            loaded.config,
            self.request.layers,
            place,
            self.weights,
            self.makes_tokens,
            cache_folder() / PACKED_FOLDER,
            serving_of(self.facts),
        )


def emitted_once(
    loaded: LoadedModel,
    request: CompileRequest,
    emit: Callable[[], Emitted],
    report: Diagnostics,
) -> Emitted:
    """What ``emit`` gives for ``loaded`` and ``request``, from the user's cache where an earlier
    call kept it; messages that ``emit`` adds to ``report`` are kept and added with it.

    Models without a configuration, such as ``.mesh`` files, and those of families of installed
    packages, whose text may change, are emitted each time. Raises what ``emit`` raises.
    """
    if loaded.config is None or loaded.config.family not in family_names():
        return emit()
    key = f"{_PART}/{_key(loaded, request)}"
    found = recall(key)
    if found is not None:
        with suppress(OSError):
            kept = json.loads(found.read_text(encoding="utf-8"))
            use(found.parent)
            for message in _messages(kept["said"], kept["sources"]):
                report.add(message)
            weights = tuple(kept["weights"])
            return Emitted(loaded, request, kept["files"], kept["facts"], weights)
    before = len(report.messages)
    emitted = emit()
    _keep(key, emitted, report.messages[before:])
    return emitted


def _key(loaded: LoadedModel, request: CompileRequest) -> str:
    """What tells a program from others: all that it is compiled from."""
    made_from = code_here(), repr(loaded.config), repr(request), repr(request.the_device())
    return sha256("\n".join(made_from).encode()).hexdigest()[:32]


def _keep(key: str, emitted: Emitted, messages: Sequence[Diagnostic]) -> None:
    """Write ``emitted`` and the ``messages`` that came with it down, if the cache can be used."""
    spans = (message.span for message in messages)
    sources = list(dict.fromkeys(span.source for span in spans if span is not None))
    data = json.dumps(
        {
            "files": dict(emitted.files),
            "facts": dict(emitted.facts),
            "weights": emitted.weights,
            "said": [_said(message, sources) for message in messages],
            "sources": [[source.name, source.text] for source in sources],
        }
    ).encode()
    with suppress(OSError):
        make_room(cache_folder() / _PART, cache_folder() / key, len(data), MOST_BYTES)
        keep_for_all(key, data, ".json")


def _said(message: Diagnostic, sources: Sequence[Source]) -> list[object]:
    """``message`` as JSON has it, its source as its number."""
    span = message.span
    place = span and [sources.index(span.source), span.line, span.column, span.length]
    said = message.severity, message.code, message.message, place, message.notes, message.help
    return list(said)


def _messages(said: Sequence[Any], sources: Sequence[tuple[str, str]]) -> Iterator[Diagnostic]:
    """The messages of which :func:`_said` wrote."""
    texts = [Source(name, text) for name, text in sources]
    for severity, code, words, place, notes, help in said:
        span = place and Span(texts[place[0]], *place[1:])
        yield Diagnostic(severity, code, words, span, tuple(notes), help)
