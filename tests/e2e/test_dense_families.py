"""Dense models with windows, mistral: CUDA refuses them unless the window holds all that the cache
does. ``test_families.py`` has their tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshc

pytestmark = pytest.mark.models

FOLDERS = sorted((Path(__file__).parents[1] / "data" / "tiny_dense").iterdir())


@pytest.mark.parametrize(("seq", "masks"), [(3, False), (4, True)])
def test_a_window_as_long_as_the_cache_is_none(seq: int, masks: bool) -> None:
    found = meshc.compile(str(FOLDERS[0]), target="csl", mesh="3x3", phase="decode", seq=seq)
    assert ("mask_window" in found.files["decode.csl"]) == masks
