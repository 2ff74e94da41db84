"""A family that tests add to those that are shipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from meshc.frontend.checkpoints.hf import config
from meshc.frontend.families import family
from meshc.frontend.language import shipped

FILES = ("model.mesh", "config.toml", "tensors.toml")


@contextmanager
def added_family(name: str, texts: Mapping[str, str], folder: Path) -> Iterator[None]:
    """meshc with the family ``name`` of the three ``FILES``, as if it had been shipped; ``folder``
    is a place for it."""
    families = folder / "families"
    shutil.copytree(Path(family.__file__).parent, families)
    (families / name).mkdir()
    for file in FILES:
        (families / name / file).write_text(texts[file])
    known = (family.family_named, config._families, config._architectures, shipped._parsed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(family, "_FOLDER", families)
        for cached in known:
            cached.cache_clear()
        yield
    for cached in known:
        cached.cache_clear()
