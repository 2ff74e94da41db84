"""Modules of all levels that lie about: those of tests of passes, of golden tests and examples."""

import re
from collections.abc import Iterator
from pathlib import Path

from meshc.ir.parser import parse_module
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source

ROOT = Path(__file__).parents[2]


def texts() -> dict[str, str]:
    """The text of each module by a name."""
    found = {}
    for folder in ("tests", "examples"):
        for path in sorted((ROOT / folder).rglob("*.meshir")):
            for number, text in enumerate(_modules(path.read_text(encoding="utf-8"))):
                if _is_whole(text):
                    found[f"{path.relative_to(ROOT)}:{number}"] = text
    return found


def _modules(text: str) -> Iterator[str]:
    return iter(re.split(r"(?m)^(?=module @)", text)[1:])


def _is_whole(text: str) -> bool:
    """Texts of refusals are none."""
    try:
        parse_module(Source("module", text))
    except MeshcError:
        return False
    return True
