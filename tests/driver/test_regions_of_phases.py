"""Prefill and decode deal the layers to the same regions, whose cores keep the caches."""

from __future__ import annotations

from pathlib import Path

import pytest
from reduced import each

from meshc.driver import Check, CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics

MODEL = Path(__file__).parents[2] / "examples" / "tiny_llama.mesh"


def request(**options: object) -> CompileRequest:
    """A mesh on which decode alone needs two regions for three layers, and prefill three."""
    wanted = {"device": "wse3", "mesh": "4x1", "seq": 32, "dtype": "f16", "layers": 3} | options
    return CompileRequest(**wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("phase", "regions"), each([("both", 3), ("prefill", 3), ("decode", 2)], 2)
)
def test_all_phases_take_the_most_regions_that_one_needs(phase: str, regions: int) -> None:
    found = compile_loaded(load_any(str(MODEL), Diagnostics()), request(phase=phase), [Check()])
    meshes = {name: module.the_mesh() for name, module in found.modules.items()}
    assert {mesh.regions for mesh in meshes.values()} == {regions}
    assert len({mesh.origins for mesh in meshes.values()}) == 1


def test_csl_has_the_regions_of_the_decode_step() -> None:
    found = compile_loaded(
        load_any(str(MODEL), Diagnostics()), request(target="csl", phase="decode")
    )
    assert found.modules["decode"].the_mesh().regions == 2
    assert "layout.csl" in found.files
