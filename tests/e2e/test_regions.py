"""Layers in regions that lie in a snake: activations cross edges to the east, south and west."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mesh_programs import MeshProgram, load_program, mesh_program, write
from reduced import each

import meshc.devices
from meshc.analysis.traffic.handovers import handovers
from meshc.driver import CompileRequest, compile_loaded, find_weights, load_any, open_weights
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.verify import check_fact

pytestmark = pytest.mark.models

TINY = Path(__file__).parents[1] / "data" / "tiny"
EXAMPLES = Path(__file__).parents[2] / "examples"
IDEAL = Path(meshc.devices.__file__).parent / "data" / "ideal.toml"


def snake(folder: Path, columns: int, rows: int) -> str:
    """A device with room for two by two regions."""
    text = IDEAL.read_text().replace("enforced = false", "enforced = true")
    for key, size in (("cores_x", 2 * columns), ("cores_y", 2 * rows)):
        assert f"{key} = {{value = 4_096" in text
        text = text.replace(f"{key} = {{value = 4_096", f"{key} = {{value = {size}")
    path = folder / "snake.toml"
    path.write_text(text)
    return str(path)


def compiled(
    folder: Path, name: str, mesh: str, kv: str = "shift", regions: int = 4, batch: int = 1
) -> MeshProgram:
    columns, rows = map(int, mesh.split("x"))
    passes = {
        "split-regions": f"split-regions{{regions={regions}}}",
        "shift-kv-cache": f"shift-kv-cache{{policy={kv}}}",
    }
    device = snake(folder, columns, rows)
    return mesh_program(str(TINY / name), mesh, 24, passes=passes, device=device, batch=batch)


@pytest.mark.parametrize(
    ("name", "mesh", "kv"),
    each(
        [
            ("llama-3h1", "3x2", "shift"),
            ("qwen2-7h1", "1x4", "shift"),
            ("llama-9h3-tied", "2x3", "cyclic"),
            ("llama-rope3", "1x1", "shift"),
            ("llama-5h-mha", "5x1", "concat"),
            ("llama-biased-f16", "4x4", "cyclic"),
        ],
        2,
    ),
)
def test_tokens_of_a_snake_of_regions(name: str, mesh: str, kv: str, tmp_path: Path) -> None:
    facts = json.loads((TINY / name / "expected.json").read_text())
    ids, tokens = facts["prompt_ids"], facts["tokens"]
    program = compiled(tmp_path, name, mesh, kv)
    for module in program.modules.values():
        ways = {(h.axis, h.way) for h in handovers(module.the_mesh())}
        assert ways == {("x", 1), ("y", 1), ("x", -1)}
        check_fact(module, "routed")
    assert program.run(tmp_path / "emitted", ids, len(tokens))[0] == tokens
    assert program.interpret(ids, 2) == tokens[:2]


def test_requests_of_a_batch_cross_together(tmp_path: Path) -> None:
    prompts, found = ([5, 17, 3, 8], [9], [2, 30, 7]), []
    for regions in (1, 4):
        program = compiled(tmp_path, "llama-3h1", "3x2", regions=regions, batch=len(prompts))
        folder = tmp_path / str(regions)
        write(folder, program.files())
        model = load_program(folder).load(program.tensors)
        found.append(model.generate_all(prompts, 6))
    assert found[0] == found[1]


def test_many_rows_move_core_by_core_and_a_vector_crosses_an_edge_once(tmp_path: Path) -> None:
    modules = compiled(tmp_path, "llama-3h1", "3x2").modules
    names = {phase: {c.name for c in module.channels} for phase, module in modules.items()}
    edges, moves = {"edge_x", "edge_y", "edge_back_x"}, {"onward_x_1", "onward_y_1"}
    assert edges | moves <= names["prefill"], "rows of tokens are split over both axes"
    assert edges <= names["decode"] and not moves & names["decode"]


def test_a_mesh_may_name_its_regions(tmp_path: Path) -> None:
    """``r=2`` deals the layers to two planes, which stand side by side on a device without
    places."""
    facts = json.loads((TINY / "llama-3h1" / "expected.json").read_text())
    loaded = load_any(str(TINY / "llama-3h1"), Diagnostics())
    request = CompileRequest(mesh="r=2,y=2,x=3", seq=24)
    found = compile_loaded(loaded, request)
    assert {module.the_mesh().regions for module in found.modules.values()} == {2}
    write(tmp_path, found.files)
    place = find_weights("llama-3h1", TINY / "llama-3h1", None)
    tensors = open_weights(place, loaded.config, None, Diagnostics())
    program = load_program(tmp_path).load(tensors)
    (made,) = program.generate_all([facts["prompt_ids"]], len(facts["tokens"]))
    assert made == facts["tokens"]


def test_regions_without_layers_are_refused() -> None:
    loaded = load_any(str(EXAMPLES / "matmul.mesh"), Diagnostics())
    with pytest.raises(
        MeshcError, match="share the layers of a loop, and this program has none"
    ) as got:
        compile_loaded(loaded, CompileRequest(mesh="r=2,y=2,x=2"))
    assert got.value.diagnostics[0].code == "bad-option"
