"""Layers dealt to regions of a wafer in emitted CSL: decode steps on the simulator, equal to the
interpreter of the tile level, in snakes of regions whose edges lie to the east, south and west."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from csl_decoding import TINY, Decoder
from csl_layers import Layers, wafer
from csl_runs import prepare, run_files, run_steps
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from reduced import each

from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.interp.tile import TileMachine
from meshc.ir.printer import print_module
from meshc.sim.stored_programs import load_program
from meshc.support.diagnostics import Diagnostics, MeshcError

pytestmark = pytest.mark.models

SHORT = {"does-not-fit", "too-many-routes", "too-many-queues", "csl-queues"}
"""Refusals of programs that need more than a core has."""


CASES = [
    # model, mesh, regions beside and above each other, and the sides where regions hand over
    ("llama-5h-mha", "r=3,y=2,x=3", (2, 2), "wse2", "cyclic", "f32", ["east", "south"]),
]
MORE_CASES = [
    ("llama-3h1", "r=2,y=3,x=2", (1, 2), "wse3", "shift", "f32", ["south"]),
    ("llama-9h3-tied", "r=4,y=2,x=2", (2, 2), "wse2", "concat", "f32", ["east", "south", "west"]),
    ("qwen2-7h1", "r=3,y=1,x=4", (2, 2), "wse3", "cyclic", "f16", ["east", "south"]),
    ("llama-5h-mha", "r=2,y=4,x=1", (2, 1), "wse3", "shift", "f32", ["east"]),
]


@pytest.mark.parametrize(
    ("model", "mesh", "snake", "arch", "kv", "dtype", "sides"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES)],
)
def test_tokens_of_a_snake_of_regions(
    model, mesh, snake, arch, kv, dtype, sides, tmp_path, monkeypatch
):
    regions, rows, columns = map(int, re.findall(r"\d+", mesh))
    across, down = snake
    device = wafer(tmp_path, arch, across * columns, down * rows)
    facts = json.loads((TINY / model / "expected.json").read_text())
    request = {"device": device, "mesh": mesh, "kv": kv, "dtype": dtype, "seq": 24}
    decoder = Decoder(model, tmp_path, monkeypatch, **request)
    assert decoder.generate(facts["prompt_ids"], 2) == facts["tokens"][:2]
    found = json.loads((tmp_path / "report.json").read_text())["regions"]
    assert [entry["next"]["side"] for entry in found[:-1]] == sides
    layers = [entry["holds"]["layers"] for entry in found]
    held = [layer for span in layers if span for layer in range(span[0], span[1] + 1)]
    assert held == list(range(len(held))) and len(layers) == regions
    assert (tmp_path / "idle.csl").exists() == (regions < across * down)


def decode_program(path, **request):
    """The decode step of the model in ``path`` as CSL: its module at the tile level and files."""
    report = Diagnostics()
    loaded = load_any(str(path), report)
    asked = CompileRequest(target="csl", phase="decode", seq=6, **request)
    compiled = compile_loaded(loaded, asked, (), report)
    return compiled.modules["decode"], compiled.files


def steps_agree(module, files, dtype, seed, folder, monkeypatch):
    """Run three steps on the simulator and in the interpreter of the tile level, and compare."""
    rng = np.random.default_rng(seed)
    kind = {"f16": np.float16, "f32": np.float32}[dtype]
    given = [b.value for b in module.buffers if b.role == "in"]
    ports = [p for p in module.ports if p.direction == "in" and p.name not in module.constants]
    shapes = {p.name: tuple(p.tensor.shape(module.dims)) for p in ports}
    (entry,) = {p.name for p in ports if p.buffer in given}
    tensors = {n: (0.4 * rng.standard_normal(s)).astype(kind) for n, s in shapes.items()}
    del tensors[entry]
    machine = TileMachine(module)
    for name, tensor in tensors.items():
        machine.load(name, tensor)
    wanted, steps = [], []
    for position in range(3):
        x = rng.standard_normal(shapes[entry]).astype(kind)
        machine.load(entry, x)
        wanted.append(machine.run({"pos": position}))
        steps.append(({entry: x}, {"pos": position}))
    found = run_steps(files, tensors, steps, folder, monkeypatch)
    near = {"f16": 3e-2, "f32": 2e-4}[dtype]
    for one, other in zip(found, wanted, strict=True):
        (values,) = other.values()
        assert np.isfinite(values).all() and np.ptp(values) > 0
        (name,) = other
        np.testing.assert_allclose(one[name], values, near, near * np.abs(values).max())


@st.composite
def programs(draw):
    """Layers, the mesh of a region, the snake of regions and what else a compile is asked."""
    groups, share = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    layers = Layers(
        N=draw(st.integers(1, 4)),
        E=draw(st.integers(2, 9)),
        H=groups * share,
        G=groups,
        D=2 * draw(st.integers(1, 3)),
        F=draw(st.integers(1, 9)),
        V=draw(st.integers(2, 9)),
    )
    regions, across = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return {
        "layers": layers,
        "regions": regions,
        "across": across,
        "rows": draw(st.integers(1, 3)),
        "columns": draw(st.integers(1, 3)),
        "arch": draw(st.sampled_from(["wse2", "wse3"])),
        "kv": draw(st.sampled_from(["auto", "cyclic", "shift", "concat"])),
        "types": draw(st.sampled_from([("f32", "f32"), ("f16", "f16"), ("f16", "f32")])),
        "seed": draw(st.integers(0, 99)),
    }


def check_program(drawn, folder, monkeypatch):
    """Compile and run what was drawn; programs for which cores have too little are drawn again."""
    rows, columns, across = drawn["rows"], drawn["columns"], drawn["across"]
    down = -(-drawn["regions"] // across)
    device = wafer(folder, drawn["arch"], across * columns, down * rows)
    path = folder / "layers.mesh"
    dtype, sums = drawn["types"]
    path.write_text(drawn["layers"].text(dtype, sums))
    mesh = f"y={rows},x={columns}"
    mesh = f"r={drawn['regions']},{mesh}" if drawn["regions"] > 1 else mesh
    asked = {"device": device, "mesh": mesh, "kv": drawn["kv"], "dtype": dtype}
    try:
        module, files = decode_program(path, **asked)
    except MeshcError as refusal:
        assert {d.code for d in refusal.diagnostics} <= SHORT, refusal
        assume(False)
    assert module.the_mesh().regions == drawn["regions"]
    steps_agree(module, files, dtype, drawn["seed"], folder, monkeypatch)


ROUNDS = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def _drawn(count):
    @settings(max_examples=count, derandomize=True, **ROUNDS)
    @given(drawn=programs())
    def check(tmp_path_factory, drawn):
        with pytest.MonkeyPatch.context() as monkeypatch:
            check_program(drawn, tmp_path_factory.mktemp("regions"), monkeypatch)

    return check


test_drawn_layers_in_drawn_regions = _drawn(2)
test_many_drawn_layers_in_drawn_regions = pytest.mark.slow(_drawn(120))


@pytest.mark.parametrize(("arch", "mesh"), each([("wse2", "2x4"), ("wse3", "2x4")], 2))
def test_features_of_f16_that_cross_to_the_other_axis_before_a_product(
    arch, mesh, tmp_path, monkeypatch
):
    """Sums are f32; what crosses is summed from one core's part and zeros, and stays f16."""
    path = tmp_path / "layers.mesh"
    path.write_text(Layers(N=1, E=8, H=4, G=2, D=4, F=40, V=33).text("f16", "f32"))
    module, files = decode_program(path, device=arch, mesh=mesh, dtype="f16")
    assert "tile.select_lanes %h_1, %h " in print_module(module)
    steps_agree(module, files, "f16", 5, tmp_path, monkeypatch)


# The roles of a model and its regions on a small mesh: heads and groups, lanes and features in the
# same proportions, as many regions in the same snake, the last of them with fewer layers.
LLAMA_3_8B = Layers(N=11, E=32, H=4, G=1, D=8, F=56, V=63)
LLAMA_2_13B = Layers(N=7, E=24, H=3, G=3, D=8, F=65, V=63)
TWINS = [
    pytest.param(
        "llama-3-8b", LLAMA_3_8B, 6, (2, 3), "wse3", "360x360", None, marks=pytest.mark.slow
    ),
    pytest.param(
        "llama-3-8b", LLAMA_3_8B, 4, (2, 2), "wse2", "360x360", 24, marks=pytest.mark.slow
    ),
    pytest.param(
        "llama-2-13b", LLAMA_2_13B, 4, (2, 2), "wse2", "375x375", 24, marks=pytest.mark.slow
    ),
]


@pytest.mark.parametrize(("model", "layers", "regions", "snake", "arch", "mesh", "count"), TWINS)
def test_a_model_and_its_small_twin(model, layers, regions, snake, arch, mesh, count, tmp_path):
    """The whole model has the regions of its twin, and its files are as large."""
    check_twin(model, layers, regions, snake, arch, mesh, count, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "layers", "regions", "snake", "arch", "mesh", "count"), TWINS)
def test_steps_of_a_small_twin(
    model, layers, regions, snake, arch, mesh, count, tmp_path, monkeypatch
):
    """They are those of the interpreter."""
    module, files = check_twin(model, layers, regions, snake, arch, mesh, count, tmp_path)
    steps_agree(module, files, "f16", 1, tmp_path, monkeypatch)


def check_twin(model, layers, regions, snake, arch, mesh, count, tmp_path):
    """Compare a model with its small twin; the module and files of that."""
    loaded = load_any(model, Diagnostics())
    asked = CompileRequest(target="csl", device=arch, mesh=mesh, phase="decode", layers=count)
    whole = compile_loaded(loaded, asked, (), Diagnostics())
    entries = json.loads(whole.files["report.json"])["regions"]
    path = tmp_path / "twin.mesh"
    path.write_text(layers.text("f16"))
    across, down = snake
    asked = {"device": wafer(tmp_path, arch, 3 * across, 2 * down), "dtype": "f16"}
    module, files = decode_program(path, mesh=f"r={regions},y=2,x=3", **asked)
    twins = json.loads(files["report.json"])["regions"]
    sides = [[each["next"]["side"] for each in of[:-1]] for of in (entries, twins)]
    assert sides[0] == sides[1] and len(entries) == regions
    sizes = [sum(map(len, of.values())) for of in (whole.files, files)]
    assert sizes[0] < 2 * sizes[1]
    return module, files


@pytest.mark.parametrize(
    ("arch", "layers", "short"), [("wse2", 24, 172_080), ("wse3", 36, 172_080)]
)
def test_a_model_that_all_regions_cannot_hold(arch, layers, short):
    """Llama-2-13B has 40 layers."""
    loaded = load_any("llama-2-13b", Diagnostics())
    asked = CompileRequest(target="csl", device=arch, mesh="375x375", phase="decode")
    with pytest.raises(MeshcError) as refused:
        compile_loaded(loaded, asked, (), Diagnostics())
    (found,) = refused.value.diagnostics
    assert found.code == "does-not-fit" and f"{short} bytes short" in found.message
    assert found.help is not None and f"--layers {layers} is the largest" in found.help


@pytest.mark.slow
def test_regions_share_compiled_code(tmp_path, monkeypatch):
    """Cores whose parameters are equal are one program: of three regions the first, one between
    and the last differ, and more regions between do not."""
    counts = []
    for regions in (3, 4):
        folder = tmp_path / str(regions)
        folder.mkdir()
        device = wafer(folder, "wse3", 3 * regions, 2)
        path = folder / "layers.mesh"
        path.write_text(Layers(N=2 * regions, E=6, H=1, G=1, D=2, F=6, V=6).text("f32"))
        asked = {"device": device, "mesh": f"r={regions},y=2,x=3", "dtype": "f32"}
        _, files = decode_program(path, **asked)
        prepare(files, {}, folder, monkeypatch)
        counts.append(len(load_program(folder / "out").classes))
    assert counts[0] == counts[1]


STACK = """model stack(N=3, M=5, E=7, F=4) {
  weights f32  accumulate f32
  main(x[M, E]) -> [M, E] {
    repeat N {
      param w[E, F], v[F, E]
      x = x @ w @ v
    }
    return x
  }
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["wse3", pytest.param("wse2", marks=pytest.mark.slow)])
def test_cores_take_turns_in_every_region(arch, tmp_path, monkeypatch):
    """Products of many rows by SUMMA in three regions, around a corner: switches turn in lines that
    begin anywhere, and rows cross edges core by core."""
    path = tmp_path / "stack.mesh"
    path.write_text(STACK)
    asked = CompileRequest(
        target="csl",
        device=wafer(tmp_path, arch, 6, 4),
        mesh="r=3,y=2,x=3",
        dtype="f32",
        algo=("gemm=summa",),
    )
    compiled = compile_loaded(load_any(str(path), Diagnostics()), asked, (), Diagnostics())
    layout = compiled.files["layout.csl"]
    assert "row_turns_up(@get_color(0), top + y, left, 3);" in layout and "// onward_x_1" in layout
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 7)).astype(np.float32)
    w, v = (rng.standard_normal(s).astype(np.float32) for s in ((3, 7, 4), (3, 4, 7)))
    given = {"x": x, "w": w, "v": v}
    (result,) = run_files(compiled.files, given, tmp_path, monkeypatch)[0].values()
    for n in range(3):
        x = x @ w[n] @ v[n]
    np.testing.assert_allclose(result, x, 1e-4, 1e-4 * np.abs(x).max())
