"""The tables of docs/keys.md: what meshc makes of the keys of files that come with models.

    python tools/key_tables.py        # writes the page

Of a ``config.json`` every answer is that of the reader to a config with another value of the key,
of those in ``tests/data/config_keys.json``, where transformers' own answers lie beside, and so of
the files of tokenizers (``tests/data/tokenizer_keys.json``); of others the tables are those that
the readers read.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from meshc.frontend.checkpoints import ModelConfig, catalogue_config, load_tokenizer
from meshc.frontend.checkpoints.gguf.cuts import CUTS
from meshc.frontend.checkpoints.gguf.rope import ROPE_KEYS
from meshc.frontend.checkpoints.hf.config import config_from_json
from meshc.frontend.checkpoints.hf.generation import INERT, NEUTRAL, READ
from meshc.frontend.checkpoints.hf.unknown import inert_keys
from meshc.frontend.checkpoints.json_text import parse_json_object
from meshc.frontend.families import family_named, family_names
from meshc.support.diagnostics import MeshcError

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "keys.md"
RECORD = ROOT / "tests" / "data" / "config_keys.json"
TOKENIZERS = ROOT / "tests" / "data" / "tokenizer_keys.json"
COMPUTED, PASSED, REFUSED = "computed", "passed over", "refused"


class TokenizerRow(NamedTuple):
    """A value of a ``key`` of a ``file`` of the tokenizer ``base``: whether transformers' answer
    ``changes`` with it, the ids and texts that are ``mine`` and ``theirs``, and what meshc does."""

    base: str
    file: str
    key: str
    value: object
    changes: bool
    mine: list[list[object] | None] | None
    theirs: Any
    said: str


def read(config: Mapping[str, Any]) -> ModelConfig:
    """The model that ``config`` describes, without a name. Raises ``MeshcError``."""
    text = parse_json_object(json.dumps(config).encode(), "config.json")
    return config_from_json(text, "")


@cache
def answers() -> dict[str, dict[str, list[tuple[object, str, str]]]]:
    """By type of model and key: each value, what transformers makes of it, and what meshc does."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    found: dict[str, dict[str, list[tuple[object, str, str]]]] = {}
    for kind, one in record.items():
        base = read(one["config"])
        found[kind] = {
            key: [
                (value, theirs, answer({**one["config"], key: value}, base))
                for value, theirs in rows
            ]
            for key, rows in one["answers"].items()
        }
    return found


def answer(config: Mapping[str, Any], base: ModelConfig) -> str:
    """What meshc makes of ``config``, of which one key is not as in that of ``base``."""
    try:
        return PASSED if read(config) == base else COMPUTED
    except MeshcError:
        return REFUSED


def _kinds(kinds: Iterable[str], every: Iterable[str]) -> str:
    chosen = sorted(kinds)
    return "all" if chosen == sorted(every) else ", ".join(chosen)


def of_config() -> list[str]:
    """The rows of the table of ``config.json``."""
    table, reasons = answers(), inert_keys()
    rows = []
    for key in sorted({key for keys in table.values() for key in keys}):
        having = [kind for kind in table if key in table[kind]]
        by_answer: dict[str, list[str]] = {COMPUTED: [], PASSED: [], REFUSED: []}
        for kind in having:
            seen = {mine for _, _, mine in table[kind][key]}
            best = next(one for one in (COMPUTED, REFUSED, PASSED) if one in seen)
            by_answer[best].append(kind)
        passed = _kinds(by_answer[PASSED], having)
        if passed and key in reasons:
            passed += f" ({reasons[key]})"
        cells = (_kinds(by_answer[COMPUTED], having), passed, _kinds(by_answer[REFUSED], having))
        rows.append(f"| `{key}` | {' | '.join(cells)} |")
    return rows


def of_generation() -> list[str]:
    """The rows of the table of ``generation_config.json``."""
    rows = {key: f"computed: {words}" for key, words in READ.items()}
    rows |= {key: "refused for `--sample` unless " + _values(v) for key, v in NEUTRAL.items()}
    rows |= dict.fromkeys(INERT, "passed over: changes nothing of which tokens come")
    return [f"| `{key}` | {words} |" for key, words in sorted(rows.items())]


def _values(values: Iterable[object]) -> str:
    return " or ".join(f"`{json.dumps(value)}`" for value in (None, *values))


def of_gguf() -> list[str]:
    """The rows of the table of keys of architectures in GGUF files."""
    found: dict[str, set[str]] = {}
    every = set()
    for family in map(family_named, family_names()):
        gguf = family.gguf
        if gguf is None or gguf.refused_because:
            continue
        every.add(gguf.architecture)
        own = {key.removeprefix(gguf.prefix) for key in sorted(gguf.tables.keys())}
        own |= set(ROPE_KEYS) if gguf.tables.rope_types else set()
        own |= {"attention.sliding_window"} if gguf.tables.windows else set()
        for key in own | {"attention.value_length", "tensor_data_layout"}:
            found.setdefault(key, set()).add(gguf.architecture)
    return [f"| `{key}` | {_kinds(kinds, every)} |" for key, kinds in sorted(found.items())]


@cache
def of_tokenizers(every: int = 1) -> tuple[TokenizerRow, ...]:
    """What comes of each value of a key of the files of a tokenizer, or of one in so many."""
    record = json.loads(TOKENIZERS.read_text(encoding="utf-8"))
    found = []
    for base, one in record["bases"].items():
        plain = tokens(one["files"], record["texts"])
        for file, key, value, number in one["rows"][::every]:
            mine = tokens(changed(one["files"], file, key, value), record["texts"])
            said = REFUSED if mine is None else PASSED if mine == plain else COMPUTED
            theirs = one["answers"][number]
            found.append(TokenizerRow(base, file, key, value, number != 0, mine, theirs, said))
    return tuple(found)


def changed(files: Mapping[str, Any], name: str, key: str, value: object) -> dict[str, Any]:
    """``files`` with another value of the ``key`` of one of them; ``model.x`` is inside model."""
    outer, _, inner = key.partition(".")
    given = files.get(name, {})
    return {**files, name: {**given, outer: {**given[outer], inner: value} if inner else value}}


def tokens(files: Mapping[str, Any], texts: Sequence[str]) -> list[list[object] | None] | None:
    """Ids and text of each of ``texts`` by the tokenizer in ``files``, None for one that is
    refused; None where the tokenizer is."""
    config = replace(
        catalogue_config("smollm2-135m"), vocab=int(files["config.json"]["vocab_size"])
    )
    with tempfile.TemporaryDirectory() as place:
        for name, value in files.items():
            (Path(place) / name).write_text(json.dumps(value), encoding="utf-8")
        try:
            tokenizer = load_tokenizer(place, config)
        except MeshcError:
            return None
        found: list[list[object] | None] = []
        for text in texts:
            try:
                ids = tokenizer.encode(text)
            except MeshcError:
                found.append(None)
            else:
                found.append([ids, tokenizer.decode(ids)])
        return found


def of_tokenizer_files() -> list[str]:
    """The rows of the table of the files of tokenizers."""
    rows = []
    every = {row.base for row in of_tokenizers()}
    for file, key in dict.fromkeys((row.file, row.key) for row in of_tokenizers()):
        own = [row for row in of_tokenizers() if (row.file, row.key) == (file, key)]
        by_answer: dict[str, list[str]] = {COMPUTED: [], PASSED: [], REFUSED: []}
        for base in sorted(every):
            seen = {row.said for row in own if row.base == base}
            best = next(one for one in (COMPUTED, REFUSED, PASSED) if one in seen)
            by_answer[best].append(base)
        cells = " | ".join(_kinds(by_answer[one], every) for one in by_answer)
        rows.append(f"| `{file}` | `{key}` | {cells} |")
    return rows


def page() -> str:
    """The text of the page, with the tables of today."""
    tables = {
        "config": of_config(),
        "generation": of_generation(),
        "gguf": of_gguf(),
        "tokenizers": of_tokenizer_files(),
        "cuts": [", ".join(f"`{name}`" for name in sorted(CUTS))],
    }
    text = PAGE.read_text(encoding="utf-8")
    for name, rows in tables.items():
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        held, end, after = rest.partition("<!-- end -->")
        head = [line for line in held.splitlines()[:2] if line.startswith("|")]
        text = before + mark + "".join(f"{line}\n" for line in [*head, *rows]) + end + after
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
