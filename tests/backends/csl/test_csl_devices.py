"""A device for CSL is data: a wafer of one's own is a file, of which programs use what it gives."""

import ast
import json
import re
from pathlib import Path

import numpy as np
import pytest
from csl_runs import PRODUCT, bound, compiled, emit, run_files
from reduced import crossed
from route_judge import count

from meshc.backends import csl
from meshc.devices import device
from meshc.devices.csl import targets
from meshc.support.diagnostics import MeshcError

OWN = """\
name = "small-wafer"
kind = "mesh"
description = "A wafer with fewer queues, colors and ids, and less memory"
topology = "mesh"
default_dtype = "f32"
csl_arch = "{arch}"
bound_output_queues = {bound}

cores_x = 9
cores_y = 7
clock_hz = 1_000_000_000
memory_bytes = {memory}
reserved_bytes = 8192
hop_cycles = 1
route_cycles = 24
relay_cycles = 6
word_bytes = 4
words_per_cycle = 1
f32_macs_per_cycle = 2
f16_macs_per_cycle = 2
mixed_macs_per_cycle = 2
f32_lanes_per_cycle = 1
f16_lanes_per_cycle = 2
convert_lanes_per_cycle = 1
integer_lanes_per_cycle = 1
task_cycles = 3
register_load_cycles = 17
op_cycles = 20
vector_cycles = 4
scalar_cycles = 5
combine_cycles = 4
step_cycles = 100
global_memory_bytes = 0
global_bytes_per_second = 0
colors = 12
reserved_colors = 2
input_queues = 7
reserved_input_queues = 3
output_queues = 5
reserved_output_queues = {output}
microthreads = 7
reserved_microthreads = 1
task_ids = 28
free_task_ids = "{tasks}"
input_queue_words = 2
output_queue_words = 2
switch_colors = "0-3"
runtime_bytes = 1024
statement_bytes = 12
code_margin = 0.5
"""
USUAL = {"arch": "wse3", "bound": "true", "memory": 16384, "output": 3, "tasks": "9,11,19,27"}


def own_device(folder, **changed):
    path = folder / "small.toml"
    path.write_text(OWN.format(**{**USUAL, **changed}))
    return str(path)


@pytest.mark.parametrize(
    ("wafer", "size"),
    crossed([("wse3", "true"), ("wse2", "false")], [(6, "3x3"), (1, "4x6"), (7, "9x7")]),
)
def test_a_device_of_ones_own_is_a_file(wafer, size, tmp_path, monkeypatch):
    """Products and matrix-vector products take its queues, colors and ids, and are right."""
    (arch, bound_queues), (m, mesh) = wafer, size
    file = own_device(tmp_path, arch=arch, bound=bound_queues)
    text = PRODUCT.format(m=m, k=20, n=14, accumulate="f32")
    modules = compiled(text, tmp_path, device=file, mesh=mesh, dtype="f32")
    files = emit(modules)
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, 20), (20, 14)))
    (tmp_path / "judged").mkdir()
    (tmp_path / "run").mkdir()
    taken = count(files, tmp_path / "judged", arch)
    assert taken.every_color <= set(range(10))
    assert taken.queues["input"] <= {3, 4, 5, 6}
    assert taken.queues["output"] <= {3, 4}
    assert set(taken.tasks) <= {9, 11, 19, 27}
    report = json.loads(files["report.json"])
    assert report["arch"] == [arch] and f"commands_{arch}.sh" in files
    found, _ = run_files(files, {"x": x, "w": w}, tmp_path / "run", monkeypatch)
    error = np.abs(found["result"] - x.astype(np.float64) @ w.astype(np.float64))
    assert np.max(error / bound(x, w, "f32", "f32")) <= 1


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"output": 4}, "csl-queues"),
        ({"tasks": "9"}, "csl-tasks"),
        ({"memory": 8448}, "does-not-fit"),
    ],
)
def test_what_it_lacks_is_refused(changed, code, tmp_path):
    text = PRODUCT.format(m=6, k=20, n=14, accumulate="f32")
    with pytest.raises(MeshcError) as caught:
        emit(compiled(text, tmp_path, device=own_device(tmp_path, **changed), mesh="3x3"))
    assert [d.code for d in caught.value.diagnostics] == [code]


@pytest.mark.parametrize(
    "key", ["bound_output_queues", "switch_colors", "memory_bytes", "statement_bytes"]
)
def test_a_device_for_csl_says_all_that_programs_need(key, tmp_path):
    path = Path(own_device(tmp_path))
    path.write_text(re.sub(rf"^{key} = .*\n", "", path.read_text(), flags=re.MULTILINE))
    with pytest.raises(MeshcError) as caught:
        device(str(path))
    messages = [d.message for d in caught.value.diagnostics]
    assert any(f"'{key}'" in m and "missing" in m for m in messages)


def test_a_portable_program_takes_what_all_devices_have():
    both = targets(device("wse2"), portable=True)
    assert both.archs == ("wse2", "wse3") and both.bound == ("wse3",)
    for each in map(device, ("wse2", "wse3")):
        routing = each.routing
        assert set(both.output_queues) <= set(routing.output_queues.free)
        assert set(both.task_ids) <= set(routing.task_ids.free)
        assert set(both.switch_colors) <= set(each.switch_colors)


def test_no_architecture_is_named_in_the_back_end():
    """Which devices there are is known to their files alone."""
    folder = Path(csl.__file__).parent
    named = [
        f"{path.name}:{node.lineno}"
        for path in sorted(folder.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.search(r"wse[-_ ]?\d", node.value, re.IGNORECASE)
        and not _is_docstring(node, path)
    ]
    assert named == []


def _is_docstring(node, path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.Module, ast.FunctionDef, ast.ClassDef)
    return node.value in {
        inner.body[0].value.value
        for inner in ast.walk(tree)
        if isinstance(inner, kinds) and ast.get_docstring(inner) is not None
    }
