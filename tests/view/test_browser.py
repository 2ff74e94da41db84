"""The page in a real browser without a window: it draws itself, says no error, and shows an op with
its source line and its emitted lines."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from viewed import data, page, recorded

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium is installed")


class Shown(HTMLParser):
    """Texts of elements by their first class, and whether the page has drawn itself."""

    def __init__(self):
        super().__init__()
        self.texts, self.open, self.ready, self.main = {}, [], False, ""

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ready |= tag == "html" and given.get("data-ready") == "yes"
        if tag not in ("meta", "link", "input", "br"):
            self.open.append((tag, given.get("class", "")))

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, words):
        if any(tag == "main" for tag, _ in self.open):
            self.main += words
        for name in {n for _, names in self.open for n in names.split()}:
            self.texts[name] = self.texts.get(name, "") + words


def shown(name, address, tmp_path):
    """What the page ``name`` shows at ``address``."""
    page(name)
    return shown_at(recorded(name), address, tmp_path)


def shown_at(folder, address, home):
    """What the page in ``folder`` shows at ``address``; the browser has a ``home`` of its own."""
    found = subprocess.run(
        [
            BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            f"--user-data-dir={home}", "--virtual-time-budget=2000", "--dump-dom",
            f"file://{folder / 'view.html'}#{address}",
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    said = [line for line in found.stderr.splitlines() if "CONSOLE" in line]
    assert said == []
    result = Shown()
    result.feed(found.stdout)
    assert result.ready
    assert not re.search(r"\bnull\b|undefined|NaN|\[object", result.main)
    return result


@pytest.mark.parametrize("name, kernel", [("csl", "tile.gemm"), ("cuda", "tile.gemm")])
def test_an_op_is_found_by_its_source_line_and_its_emitted_lines(name, kernel, tmp_path):
    found = data(page(name))
    phase = found["phases"][0]
    lines = phase["modules"][-1]["text"].split("\n")
    line = next(n for n, words in enumerate(lines, 1) if words.strip().startswith(kernel))
    seen = shown(name, f"passes/0//{line}", tmp_path)
    assert lines[line - 1].strip() in seen.texts["chosen"]
    _, source, number, *_ = next(p for p in phase["modules"][-1]["places"] if p[0] == line)
    assert found["sources"][source]["text"].split("\n")[number - 1].strip() in seen.texts["source"]
    file, _, first, _ = next(entry for entry in phase["emitted"] if entry[1] == line)
    assert found["files"][file]["text"].split("\n")[first - 1].strip() in seen.texts["emitted"]


@pytest.mark.parametrize(
    "address, words",
    [
        ("files/0/f0/100", "marks lines of ops"),
        ("overview/0", "Memory of a core"), ("model/0", "repeat layers"),
        ("layouts/0/3", "classes of cores"), ("routes/0", "Colors that routers know"),
        ("memory/0", "are left"), ("waits/0", "who brings it about"),
        ("costs/0", "by the clock of the emitted program"),
    ],
)  # fmt: skip
def test_every_view_draws_itself(address, words, tmp_path):
    seen = shown("csl", address, tmp_path)
    assert words in seen.main


def test_a_core_of_a_layout_is_the_one_of_the_address(tmp_path):
    layouts = data(page("csl"))["phases"][0]["layouts"]
    number, value = next((n, v) for n, v in enumerate(layouts["values"]) if v["name"] == "wo")
    seen = shown("csl", f"layouts/0/{number}/4/5", tmp_path)
    words = seen.texts["held"].split("\n")
    assert words[0] == "core (y 4, x 5)"
    group = next(g for g in value["groups"] if g["dims"] == ["E"])
    part = layouts["parts"][group["axis"]]["part"][4]
    assert f"E: {part * group['block']} to {(part + 1) * group['block'] - 1} of 48" in words
