"""``meshc view --png``: the data of a page as a picture."""

import struct

import pytest
from viewed import COMPILES, page, recorded

from meshc.cli import main

PLOTS = pytest.importorskip("matplotlib", reason="needs matplotlib (extra plots)")


IN_CI = ("csl", "cuda")
"""A target of cores and one of tasks; the pages of the others have tests of their own."""
NAMES = [n if n in IN_CI else pytest.param(n, marks=pytest.mark.slow) for n in COMPILES]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_data_give_the_same_picture(name, tmp_path):
    page(name)
    files = [tmp_path / "one.png", tmp_path / "other.png"]
    for file in files:
        assert main(["view", str(recorded(name)), "--png", str(file)]) == 0
    data = files[0].read_bytes()
    assert data == files[1].read_bytes() and data.startswith(b"\x89PNG")
    wide, high = struct.unpack(">II", data[16:24])
    assert wide > 1000 and high > 400
