"""Meshes whose axes have other names: the same programs, and the GPUs of a node as one axis."""

import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from mesh_programs import mesh_program
from reduced import crossed, only

from meshc.backends import csl
from meshc.backends.python import HostFacts, emit
from meshc.devices import device
from meshc.driver import CompileRequest, graph_module, load_any
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.passes.manager import PassManager
from meshc.pipelines import pipeline_to, resource_passes
from meshc.support.diagnostics import Diagnostics
from meshc.support.spans import Source

TINY = Path(__file__).parents[1] / "data" / "tiny"
EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = {"r": "o", "y": "v", "x": "u"}
COORDINATES = {"xh": "uh", "xd": "ud", **NAMES}


def tile_modules(model, mesh, device_name, renamed, passes=None):
    """Tile modules of all phases on a device that calls its axes as ``NAMES`` does, or not."""
    loaded = load_any(str(model), Diagnostics())
    request = CompileRequest(device=device_name, mesh=mesh, seq=6)
    found = {}
    for phase in loaded.phases():
        module = graph_module(loaded, phase, request)
        if renamed:
            axes = {"axes": " ".join(NAMES.values())}
            module.device = replace(module.device, facts={**module.device.facts, **axes})
        found[phase] = PassManager(pipeline_to("tile", request.settings() | (passes or {}))).run(
            module
        )
    return found


def with_names(text):
    """``text`` with the axes of a wafer called as ``NAMES`` says; sizes and the names of CSL's own
    library stay."""
    text = re.sub(
        r"(?<![A-Za-z0-9@])(xh|xd|[ryx])(?![A-Za-z0-9])", lambda m: COORDINATES[m[1]], text
    )
    text = re.sub(r"(\d|columns) u (\d|rows|PEs)", r"\1 x \2", text)
    return text.replace("get_u_coord", "get_x_coord").replace("get_v_coord", "get_y_coord")


@pytest.mark.parametrize(("mesh", "regions"), crossed(["3x4", "4x2"], [1, 2]))
def test_other_names_give_the_same_tile_programs(mesh, regions):
    passes = {"split-regions": f"split-regions{{regions={regions}}}"}
    model = EXAMPLES / "tiny_llama.mesh"
    usual = tile_modules(model, mesh, "ideal", False, passes)
    named = tile_modules(model, mesh, "ideal", True, passes)
    for phase, module in usual.items():
        expected = routes(module)
        assert [with_names(text) for text in expected] == routes(named[phase])
        text = print_module(named[phase])
        assert print_module(parse_module(Source("again", text))) == text
        assert not re.search(r"\b(rank_)?(xh|xd)\b|rank_[xy]\b", text)


def routes(module):
    """What each channel connects, and each port holds, as text."""
    return [str(c.route) for c in module.channels] + [
        str(expr) for port in module.ports for expr in port.element
    ]


def test_other_names_give_the_same_emitted_programs(tmp_path):
    model = tmp_path / "matmul.mesh"
    text = (EXAMPLES / "matmul.mesh").read_text()
    model.write_text(re.sub(r"\bx\b", "left", text))
    usual, named = (tile_modules(model, "3x3", "wse2", renamed) for renamed in (False, True))
    for modules in (usual, named):
        PassManager(resource_passes()).run(modules["main"])
    for emitted in (csl.emit, lambda modules: emit(modules, HostFacts("matmul"))):
        theirs, ours = emitted(usual), emitted(named)
        assert theirs.keys() == ours.keys()
        for path in theirs:
            if not path.startswith("mesh_runtime"):
                assert with_names(theirs[path]) == ours[path], path


@pytest.mark.models
@pytest.mark.parametrize(
    ("name", "gpus"),
    only(
        product(["llama-9h3-tied", "qwen2-7h1"], [2, 1, 8, 3]),
        ("llama-9h3-tied", 8),
        ("qwen2-7h1", 3),
    ),
)
def test_gpus_of_a_node_share_a_model(name, gpus, tmp_path):
    """Tensor-parallel layouts: heads and features over ``gpu``; the tokens are those of
    transformers, in the interpreter and in the emitted program."""
    facts = json.loads((TINY / name / "expected.json").read_text())
    ids, tokens = facts["prompt_ids"], facts["tokens"]
    program = mesh_program(str(TINY / name), f"gpu={gpus}", len(ids) + len(tokens), device="h100x8")
    mesh = program.modules["decode"].mesh
    assert (mesh.plane, mesh.columns, mesh.rows) == (("row", "gpu"), gpus, 1)
    assert program.run(tmp_path, ids, len(tokens))[0] == tokens
    assert program.interpret(ids, 2) == tokens[:2]


def test_a_node_has_no_other_axes():
    assert device("h100x8").axes.size_of("gpu=8") == (8, 1)
