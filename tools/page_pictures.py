"""The pictures of docs/view.md: views of pages of ``meshc view``, as chromium draws them.

python tools/page_pictures.py [FOLDER]        # writes docs/images, or another folder
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from meshc.cli import main as meshc
from meshc.view import page_data, read_recorded

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
TINY = str(ROOT / "examples" / "tiny_llama.mesh")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
_WAFER = ("compile", TINY, "--target", "csl", "--mesh", "6x6", "--phase", "decode", "--seq", "32")
_GPU = ("compile", "llama-3-8b", "--target", "cuda", "--device", "h200", "--phase", "decode",
        "--seq", "1024")  # fmt: skip


class Picture(NamedTuple):
    """What is compiled, the ``view`` of its page, and the pixels that are drawn of it; at the first
    op that is called ``op``, or for the value ``value``, if the view is of one."""

    compiled: tuple[str, ...]
    view: str
    wide: int = 1280
    high: int = 720
    op: str = ""
    value: str = ""

    def address(self, data: Mapping[str, Any]) -> str:
        """The address of the view on the page with this ``data``."""
        phase = data["phases"][0]
        if self.op:
            lines = phase["modules"][-1]["text"].split("\n")
            found = next(n for n, words in enumerate(lines, 1) if words.strip().startswith(self.op))
            return f"{self.view}/0//{found}"
        if self.value:
            names = [one["name"] for one in phase["layouts"]["values"]]
            return f"{self.view}/0/{names.index(self.value)}"
        return f"{self.view}/0"


PICTURES = {
    "view_passes.png": Picture(_WAFER, "passes", op="tile.gemm"),
    "view_layouts.png": Picture(_WAFER, "layouts", high=620, value="wo"),
    "view_timeline.png": Picture(_GPU, "timeline", high=560),
}


@contextmanager
def recorded(command: tuple[str, ...]) -> Iterator[Path]:
    """The folder of a compile with its page, for a while."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "out"
        if meshc([*command, "--record", "-o", str(folder)]) or meshc(["view", str(folder)]):
            raise SystemExit(f"this was not compiled: meshc {' '.join(command)}")
        yield folder


def draw(picture: Picture, folder: Path, file: Path) -> None:
    """Write what the browser shows of the page in ``folder``, in light colours, to ``file``."""
    assert BROWSER is not None
    address = picture.address(page_data(read_recorded(folder)))
    with tempfile.TemporaryDirectory() as home:
        subprocess.run(
            [
                BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                "--force-device-scale-factor=1", "--blink-settings=preferredColorScheme=1",
                f"--user-data-dir={home}", f"--window-size={picture.wide},{picture.high}",
                "--virtual-time-budget=2000", f"--screenshot={file}",
                f"file://{folder / 'view.html'}#{address}",
            ],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip


def main() -> None:
    """Write all pictures."""
    if BROWSER is None:
        raise SystemExit("no chromium is installed")
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    target.mkdir(parents=True, exist_ok=True)
    for command in dict.fromkeys(picture.compiled for picture in PICTURES.values()):
        with recorded(command) as folder:
            for name, picture in PICTURES.items():
                if picture.compiled == command:
                    draw(picture, folder, target.absolute() / name)


if __name__ == "__main__":
    main()
