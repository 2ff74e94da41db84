"""Recorded compiles and the data of their pages, read as a stranger would: from the HTML."""

import json
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from tempfile import mkdtemp

from meshc.cli import main

ROOT = Path(__file__).parents[2]
TINY = str(ROOT / "examples" / "tiny_llama.mesh")
COMPILES = {
    "csl": [TINY, "--target", "csl", "--mesh", "6x6", "--phase", "decode", "--seq", "32"],
    "both": [TINY, "--target", "csl", "--mesh", "6x6", "--seq", "32"],
    "python": [TINY, "--mesh", "4x4", "--seq", "32"],
    "cuda": [TINY, "--target", "cuda", "--seq", "32"],
    "mlp": [str(ROOT / "examples" / "mlp.mesh"), "--target", "csl", "--mesh", "4x4"],
}


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the text of the one with the data."""

    def __init__(self):
        super().__init__()
        self.found, self.data, self._inside = [], "", False

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._inside = tag == "script" and dict(attrs).get("id") == "data"

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.data += data


def elements(text):
    found = Elements()
    found.feed(text)
    found.close()
    return found


@cache
def recorded(name):
    """The folder of a compile that was recorded, one for all tests of a process."""
    folder = Path(mkdtemp(prefix=f"meshc-view-{name}-")) / "out"
    assert main(["compile", *COMPILES[name], "--record", "-o", str(folder)]) == 0
    return folder


@cache
def page(name):
    """The page of such a compile."""
    folder = recorded(name)
    assert main(["view", str(folder)]) == 0
    return (folder / "view.html").read_text(encoding="utf-8")


def data(text):
    return json.loads(elements(text).data)
