"""The published schema of manifests: every emitted one is as it says, and an altered one is not."""

import json

import pytest
from json_schema import faults
from reduced import each
from test_cuda_packing import MODELS

from meshc.backends.cuda.program import FORMAT
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics
from meshc.support.schemas import json_schema

SCHEMA = json_schema("manifest")


def manifest(name, folder):
    config, options = MODELS[name]
    (folder / "config.json").write_text(json.dumps(config))
    report = Diagnostics()
    request = CompileRequest(**{"target": "cuda", "dtype": "f16", "seq": 64} | options)
    compiled = compile_loaded(load_any(str(folder), report), request, (), report)
    return json.loads(compiled.files["manifest.json"])


@pytest.mark.parametrize("name", each(MODELS, 6))
def test_emitted_manifests_are_as_the_schema_says(name, tmp_path):
    assert faults(manifest(name, tmp_path), SCHEMA) == []


def test_the_schema_is_of_this_format():
    assert SCHEMA["properties"]["format"]["const"] == FORMAT
    assert SCHEMA["$id"].endswith(f":{FORMAT}")


def altered(value):
    """``value`` with each of its parts in turn missing, of another type, or one more."""
    if isinstance(value, dict):
        yield {**value, "more": 1}, "a key more"
        for key, part in value.items():
            yield {k: v for k, v in value.items() if k != key}, f"without {key}"
            for other, words in altered(part):
                yield {**value, key: other}, f"{key}: {words}"
    elif isinstance(value, list):
        yield {"a": 1}, "no list"
        for number, part in enumerate(value[:1]):
            for other, words in altered(part):
                yield [*value[:number], other, *value[number + 1 :]], f"{number}: {words}"
    elif value is not None:
        yield [value], "a list"
        if isinstance(value, int):
            yield -5, "below 0"


# What is named by whoever compiled: any name will do, and a number of any sign may be an argument.
FREE = ("kernels", "buffers", "weights", "shared", "dealt")


def test_altered_manifests_are_not(tmp_path):
    whole = manifest("kernels of chunks", tmp_path)
    small = {
        **whole,
        **{key: dict(list(whole[key].items())[:2]) for key in ("kernels", "buffers", "weights")},
    }
    assert faults(small, SCHEMA) == []
    missed = [words for other, words in altered(small) if not faults(other, SCHEMA)]
    known = [
        words
        for words in missed
        if any(f"{key}: a key more" in words or f"{key}: without" in words for key in FREE)
        or "arguments: 0: below 0" in words
        or "overlap" in words
        or "frequencies: 0: 0: below 0" in words
    ]
    assert [words for words in missed if words not in known] == []
    assert len(missed) < 40
