"""Tokenizers are strangers' programs: what they do to a text is bounded, and ends in words."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from model_files import diagnosed, model_config

from meshc.frontend.checkpoints import Tokenizer, load_tokenizer
from meshc.frontend.checkpoints.tokenizing import process

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.models

LETTERS = {letter: number for number, letter in enumerate("abcdefgh ")}


def written(folder: Path, **changes: Any) -> Path:
    """A folder with a tokenizer of letters, and ``changes`` of its parts."""
    model = {"type": "BPE", "vocab": LETTERS, "merges": []}
    folder.mkdir(exist_ok=True)
    form = {"version": "1.0", "added_tokens": [], "model": model}
    (folder / "tokenizer.json").write_text(json.dumps({**form, **changes}))
    return folder


def loaded(folder: Path, **changes: Any) -> Tokenizer:
    return load_tokenizer(written(folder, **changes), model_config(vocab=20))


def replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


MULTIPLYING = {
    "type": "Sequence",
    "normalizers": [replace("a", "b" * 1000), replace("b", "c" * 1000), replace("c", "d" * 1000)],
}
# The library divides a text by the length.
PANICKING = {"type": "FixedLength", "length": 0}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that tests reach in a moment."""
    monkeypatch.setattr(process, "PROCESSOR_SECONDS", 1)
    monkeypatch.setattr(process, "MEMORY_BYTES", 256 << 20)
    monkeypatch.setattr(process, "MOST_TOKENS", 1000)
    monkeypatch.setattr(process, "MOST_CHARACTERS", 1000)


def test_a_text_that_is_multiplied_is_refused_and_the_next_one_is_read(
    tmp_path: Path, small: None
) -> None:
    tokenizer = loaded(tmp_path, normalizer=MULTIPLYING)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (found,) = diagnosed("tokenizer-costly", lambda: tokenizer.encode("aaaa"))
    assert "256 MiB for a text of 4 characters" in found.message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
    assert tokenizer.encode("hg") == [7, 6]


def test_many_tokens_are_refused(tmp_path: Path, small: None) -> None:
    tokenizer = loaded(tmp_path)
    assert len(tokenizer.encode("ab" * 500)) == 1000
    (found,) = diagnosed("tokenizer-costly", lambda: tokenizer.encode("ab" * 501))
    assert "1000 tokens" in found.message


def test_a_decoder_that_multiplies_is_refused(tmp_path: Path, small: None) -> None:
    tokenizer = loaded(tmp_path, decoder=replace("a", "b" * 600))
    assert tokenizer.decode([0]) == "b" * 600
    diagnosed("tokenizer-costly", lambda: tokenizer.decode([0, 0]))


def test_an_expression_that_takes_for_ever_is_refused(tmp_path: Path, small: None) -> None:
    look = {"type": "Replace", "pattern": {"Regex": "a(?=a*b)"}, "content": "c"}
    tokenizer = loaded(tmp_path, normalizer=look)
    (found,) = diagnosed("tokenizer-costly", lambda: tokenizer.encode("a" * 100_000))
    assert "1 seconds of a processor" in found.message
    assert tokenizer.encode("c") == [2]


def test_a_file_that_takes_too_much_is_refused_when_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MEMORY_BYTES", 128 << 20)
    words = {f"w{number}": number for number in range(400_000)}
    model = {"type": "BPE", "vocab": words, "merges": []}
    diagnosed("tokenizer-costly", lambda: loaded(tmp_path, model=model))


def test_a_panic_is_an_error_in_words(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, pre_tokenizer=PANICKING)
    (found,) = diagnosed("tokenizer-failed", lambda: tokenizer.encode("ab"))
    assert "for a text of 2 characters: chunk size must be non-zero" in found.message
    assert tokenizer.decode([0]) == "a"


def test_a_decoder_that_panics_is_an_error_in_words(tmp_path: Path) -> None:
    strip = {"type": "Strip", "content": " ", "start": 10, "stop": 10}
    tokenizer = loaded(tmp_path, decoder=strip)
    diagnosed("tokenizer-failed", lambda: tokenizer.decode([8]))
    assert tokenizer.decode([1]) == "b"


def test_a_text_without_room_is_read_no_further_than_it_must_be(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path)
    assert tokenizer.encode("a" * 150, room=40) == [0] * 150  # short texts are read whole
    assert len(tokenizer.encode(" a" * 60, room=8)) == 120
    (found,) = diagnosed("prompt-too-long", lambda: tokenizer.encode("a" * 4_000_000, room=8))
    assert "8 tokens" in found.message
    assert tokenizer.encode("b", room=8) == [1]


def test_limits_of_the_shell_are_no_fault_of_the_tokenizer(tmp_path: Path) -> None:
    """``ulimit`` gives less memory and time than a tokenizer may take elsewhere."""
    written(tmp_path)
    program = f"""
from meshc.frontend.checkpoints.tokenizing.process import Opening, TokenizerProcess
with open({str(tmp_path / "tokenizer.json")!r}) as file:
    found = TokenizerProcess(Opening(file.read()), "x")
print(found.encode("ab", True))
found.encode("a" * 4_000_000, True)
"""
    shell = 'ulimit -v 300000; ulimit -t 15; exec "$0" -c "$1"'
    command = ["sh", "-c", shell, sys.executable, program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "[0, 1]\n" and "takes more than 292 MiB" in done.stderr, done


def test_the_process_ends_with_its_tokenizer(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path)
    running: Any = tokenizer.process._running  # type: ignore[attr-defined]
    assert running.poll() is None
    del tokenizer
    assert running.poll() is not None


def test_tokens_of_the_tokenizer_alone_are_refused_where_a_prompt_has_them(tmp_path: Path) -> None:
    added = {
        "id": 9,
        "content": "<pad>",
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    tokenizer = load_tokenizer(written(tmp_path, added_tokens=[added]), model_config(vocab=9))
    assert tokenizer.encode("ab") == [0, 1]
    (found,) = diagnosed("tokenizer-mismatch", lambda: tokenizer.encode("a<pad>"))
    assert "token 9" in found.message
