"""The fenced blocks of a page, and the commands in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_NEXT = re.compile(r"\s{2,}(?=meshc )")


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name, language):
    """The texts of the blocks of a page that are in ``language``; empty for blocks of none."""
    return [text for found, text in _FENCE.findall(page(name)) if found == language]


def commands(name):
    """The command lines of meshc on a page: joined where they go on, without comments and what
    reads their output."""
    found = []
    for text in blocks(name, "sh") + blocks(name, ""):
        for line in text.replace("\\\n", " ").splitlines():
            line = line.partition("  #")[0].partition(" | ")[0].removeprefix("$ ").strip()
            if line.startswith("meshc "):
                found += [re.sub(r"\s+", " ", part) for part in _NEXT.split(line)]
    return found
