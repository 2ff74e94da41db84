"""Pages and docstrings point to files that exist."""

import re
from functools import cache

from sources import FILES, ROOT

POINTER = re.compile(
    r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|md|toml|cuh|jinja|mesh|meshir|csl|c|h|cc|js))`"
)
OF_OTHERS = {"python/mlc_llm/model/model_preset.py", "benchmarks/benchmark_batch.py"}
"""Files of other projects, in docs/checkpoints.md and docs/serving.md."""
EMITTED = ("DIR/", "mesh_runtime/")
"""What paths in emitted programs begin with."""


@cache
def files():
    """All files of the project, each behind a slash."""
    folders = ("meshc", "docs", "tests", "tools", "benchmarks", "examples")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    return [f"/{path.relative_to(ROOT).as_posix()}" for path in [*found, *ROOT.glob("*.*")]]


def lost(text):
    """Paths in backquotes that end no path of a file."""
    named = {path for path in POINTER.findall(text) if not path.startswith(EMITTED)} - OF_OTHERS
    return sorted(path for path in named if not any(file.endswith(f"/{path}") for file in files()))


def test_no_pointer_is_lost():
    texts = [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md"), *ROOT.glob("tools/**/*.py"), *FILES]
    found = {path.relative_to(ROOT).as_posix(): lost(path.read_text("utf-8")) for path in texts}
    assert {name: paths for name, paths in found.items() if paths} == {}


def test_what_is_lost_is_found():
    assert lost("`ir/functions.py`, ``interp/gelu.py``, `DIR/main.py`") == ["interp/gelu.py"]
