"""Llama-3-8B on wafers: what fits compiles, what does not is refused with the numbers."""

from __future__ import annotations

import re

import pytest
from reduced import each

from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.ir.module import Module
from meshc.support.diagnostics import Diagnostics, MeshcError

MODEL = "llama-3-8b"
LAYERS = 32


def compiled(phase: str, mesh: str, numbers: str, layers: int | None) -> tuple[Module, Diagnostics]:
    report = Diagnostics()
    request = CompileRequest(
        device=numbers,
        mesh=mesh,
        phase=phase,
        seq=4096,
        layers=layers,
        dtype="f16",
        compile_to="tile",
    )
    found = compile_loaded(load_any(MODEL, report), request, report=report)
    return found.modules[phase], report


@pytest.mark.parametrize(
    ("phase", "mesh", "numbers"),
    each(
        [
            ("decode", "360x360", "wse2"),
            ("prefill", "660x660", "wse3"),
            ("prefill", "660x660", "wse2"),
        ],
        2,
    ),
)
def test_the_refusal_names_the_most_layers_that_fit(phase: str, mesh: str, numbers: str) -> None:
    with pytest.raises(MeshcError) as error:
        compiled(phase, mesh, numbers, None)
    (found,) = error.value.diagnostics
    assert found.code == "does-not-fit"
    assert re.match(rf"{LAYERS} layers need \d+ bytes on each core of a {mesh}", found.message)
    most = int(re.search(r"--layers (\d+) is the largest", found.help or "")[1])

    module, _ = compiled(phase, mesh, numbers, most)
    room = module.device.data_bytes
    assert max((b.address or 0) + b.type.bytes for b in module.buffers) <= room
    with pytest.raises(MeshcError, match=f"^error.does-not-fit.: {most + 1} layers"):
        compiled(phase, mesh, numbers, most + 1)


def test_all_layers_fit_the_regions_of_a_larger_wafer() -> None:
    module, report = compiled("decode", "360x360", "wse3", None)
    mesh = module.the_mesh()
    assert mesh.regions == len(mesh.origins) == len(set(mesh.origins)) == 6
    for x, y in mesh.origins:
        assert x + mesh.columns <= module.device.cores_x
        assert y + mesh.rows <= module.device.cores_y
    for (x, y), (next_x, next_y) in zip(mesh.origins, mesh.origins[1:], strict=False):
        assert abs(x - next_x) + abs(y - next_y) == 360, "neighbours in order touch"
    remarks = {message.code: message.message for message in report.messages}
    assert "are left over" in remarks["regions"]


def test_the_text_grows_neither_with_the_mesh_nor_with_the_layers() -> None:
    small, _ = compiled("decode", "64x64", "ideal", 2)  # on fewer cores chains are pairs
    large, _ = compiled("decode", "360x360", "ideal", 20)
    assert sum(1 for _ in large.walk()) <= 1.2 * sum(1 for _ in small.walk())


def test_a_mesh_larger_than_the_wafer_is_refused() -> None:
    with pytest.raises(MeshcError, match="751x2 mesh does not fit the 750x994 cores"):
        compiled("decode", "751x2", "wse2", 1)
