"""No file of code is longer than 500 lines."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_LINES = 500
FOLDERS = ("meshc", "tests", "benchmarks", "tools", "examples")
SUFFIXES = {".py", ".c", ".h", ".cc", ".cuh", ".cu", ".jinja", ".csl", ".lark", ".mesh"}


def too_long(paths):
    """Those of ``paths`` that have more lines, with their number."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    return {path: lines for path, lines in lengths.items() if lines > MOST_LINES}


def test_no_file_is_too_long():
    paths = [
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SUFFIXES and "expected" not in path.parts
    ]
    assert len(paths) > 800
    assert {path.relative_to(ROOT): lines for path, lines in too_long(paths).items()} == {}


def test_the_rule_can_fail(tmp_path):
    short, long = tmp_path / "short.py", tmp_path / "long.py"
    short.write_text("\n" * MOST_LINES)
    long.write_text("\n" * (MOST_LINES + 1))
    assert too_long([short, long]) == {long: MOST_LINES + 1}
