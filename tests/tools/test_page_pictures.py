"""The pictures of docs/view.md are what its pages look like."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "page_pictures.py"
MOST_CHANGED = 0.05
"""Of the pixels: other fonts move a text by less than a view that is another one."""


def loaded():
    spec = importlib.util.spec_from_file_location("page_pictures", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = loaded()


def test_the_page_shows_the_pictures_that_there_are():
    page = (ROOT / "docs" / "view.md").read_text(encoding="utf-8")
    assert "python tools/page_pictures.py" in page
    drawn = sorted(path.name for path in script.IMAGES.glob("view_*.png"))
    assert drawn == sorted(script.PICTURES)
    assert [name for name in drawn if f"](images/{name})" not in page] == []


def changed(one, other):
    """The share of pixels of two pictures that are not the same."""
    image = pytest.importorskip("matplotlib.image", reason="needs matplotlib (extra plots)")
    pixels = [np.asarray(image.imread(path))[..., :3] for path in (one, other)]
    if pixels[0].shape != pixels[1].shape:
        return 1.0
    return float(np.mean(np.any(np.abs(pixels[0] - pixels[1]) > 0.02, axis=-1)))


@pytest.mark.slow
@pytest.mark.skipif(script.BROWSER is None, reason="no chromium is installed")
@pytest.mark.parametrize("name", script.PICTURES)
def test_a_picture_is_what_the_page_looks_like(name, tmp_path):
    picture, kept = script.PICTURES[name], script.IMAGES / name
    with script.recorded(picture.compiled) as folder:
        script.draw(picture, folder, tmp_path / name)
        other = script.Picture(picture.compiled, "overview", picture.wide, picture.high)
        script.draw(other, folder, tmp_path / "other.png")
    assert changed(kept, tmp_path / name) < MOST_CHANGED, f"draw it anew: python {SCRIPT.name}"
    assert changed(kept, tmp_path / "other.png") > MOST_CHANGED
