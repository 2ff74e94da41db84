"""CONTRIBUTING.md divides the tests into parts of less than a minute, none left out."""

import re
import shlex
from fnmatch import fnmatch

from sources import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(tests/[^`]+)` \| (\d+) s \|", re.MULTILINE)
IGNORED = "--ignore-glob="


def files_of(words):
    """The files of tests that pytest collects for the ``words`` of a command."""
    words = shlex.split(words)
    left_out = [word.removeprefix(IGNORED) for word in words if word.startswith(IGNORED)]
    found = set()
    for word in words:
        if not word.startswith(IGNORED):
            named = sorted(ROOT.glob(word))
            assert named, word
            for path in named:
                found |= {path} if path.is_file() else {*path.rglob("test_*.py")}
    return {path for path in found if not any(fnmatch(str(path), one) for one in left_out)}


def test_every_file_is_in_one_part():
    parts = {words: files_of(words) for words, _ in ROW.findall(PAGE)}
    assert len(parts) > 20
    found = [path for files in parts.values() for path in files]
    assert sorted(found) == sorted((ROOT / "tests").rglob("test_*.py"))


def test_no_part_took_a_minute():
    assert [words for words, seconds in ROW.findall(PAGE) if int(seconds) >= 60] == []
