"""Weights that stay quantised in emitted CSL: decode steps of drawn models on the simulator are
those of decoded weights in the interpreter of the tile level, which runs the program without
them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from csl_layers import Layers, wafer
from csl_runs import run_steps
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.interp.tile import TileMachine
from meshc.ir.codes import CODE_FORMATS
from meshc.support.diagnostics import Diagnostics, MeshcError

pytestmark = pytest.mark.models

STEPS = 3
SHORT = {"does-not-fit", "csl-memory-full", "too-many-routes", "too-many-queues", "csl-queues"}
"""Refusals of programs that need more than a core has."""
NEAR = {"f32": 2e-4, "f16": 3e-2}


def decode_program(path, kept, **request):
    """The decode step as CSL: its module at the tile level, files and remarks."""
    asked = CompileRequest(target="csl", phase="decode", seq=6, keep_quantised=kept, **request)
    report = Diagnostics()
    compiled = compile_loaded(load_any(str(path), report), asked, (), report)
    return compiled.modules["decode"], compiled.files


def shapes_of(module):
    """Shapes of the tensors that a host gives, and the name of the one that a step is given."""
    given = [b.value for b in module.buffers if b.role == "in"]
    ports = [p for p in module.ports if p.direction == "in" and p.name not in module.constants]
    (entry,) = {p.name for p in ports if p.buffer in given}
    return {p.name: tuple(p.tensor.shape(module.dims)) for p in ports}, entry


def drawn_weights(kept, plain, seed):
    """Random tensors of the program that keeps weights, and those of the one that does not, with
    weights decoded by the formats' definitions. Products of as many numbers as these models have
    are about as large as what they multiply, so that squares sum up within f16."""
    random = np.random.default_rng(seed)
    (shapes, entry), (whole, _) = shapes_of(kept), shapes_of(plain)
    tensors, decoded, parts = {}, {}, {}
    for name, shape in shapes.items():
        weight, _, rest = name.partition(".")
        form = CODE_FORMATS.get(rest.split(".")[0])
        if rest.endswith("codes"):
            tensors[name] = random.integers(0, 1 << form.codes.bits, shape).astype(np.uint8)
        elif rest.endswith("scales"):
            scales = random.standard_normal(shape) / (4 << form.codes.bits)
            tensors[name] = scales.astype(np.float16)
        elif rest.endswith("least"):
            tensors[name] = (random.standard_normal(shape) / 8).astype(np.float16)
        elif name != entry:
            tensors[name] = (0.4 * random.standard_normal(shape)).astype(np.float16)
        if rest:
            parts.setdefault(weight, {})[rest.split(".")[1]] = tensors[name]
        elif name != entry:
            decoded[name] = tensors[name]
    for name, own in parts.items():
        form = next(CODE_FORMATS[n.split(".")[1]] for n in tensors if n.startswith(f"{name}."))
        codes = own["codes"].astype(np.float32)
        (axis,) = [a for a in range(codes.ndim) if own["scales"].shape[a] != codes.shape[a]]

        def of_rows(part, axis=axis, form=form, own=own):
            return own[part].astype(np.float32).repeat(form.group, axis)

        decoded[name] = (codes - np.float32(form.zero)) * of_rows("scales")
        if form.least is not None:
            decoded[name] += of_rows("least")
    assert decoded.keys() == whole.keys() - {entry}
    return tensors, decoded


def agree(kept, files, plain, dtype, seed, folder, monkeypatch):
    """Steps of emitted CSL with weights that stay quantised, and of the other program in the
    interpreter."""
    tensors, decoded = drawn_weights(kept, plain, seed)
    shapes, entry = shapes_of(kept)
    machine = TileMachine(plain)
    for name, tensor in decoded.items():
        machine.load(name, tensor)
    random = np.random.default_rng([seed, 1])
    wanted, steps = [], []
    for position in range(STEPS):
        x = random.standard_normal(shapes[entry]).astype(np.float16)
        machine.load(entry, x)
        wanted.append(machine.run({"pos": position}))
        steps.append(({entry: x}, {"pos": position}))
    found = run_steps(files, tensors, steps, folder, monkeypatch)
    for one, other in zip(found, wanted, strict=True):
        ((name, values),) = other.items()
        assert np.isfinite(values).all() and np.ptp(values) > 0
        bound = NEAR[dtype]
        np.testing.assert_allclose(one[name], values, bound, bound * np.abs(values).max())


def check(drawn, folder, monkeypatch):
    """Compile and run a drawn model; at least one of its weights stays quantised."""
    regions, rows, columns = drawn["regions"], drawn["rows"], drawn["columns"]
    device = wafer(folder, drawn["arch"], columns, regions * rows)
    path = folder / "layers.mesh"
    dtype, sums = drawn["types"]
    path.write_text(drawn["layers"].text(dtype, sums))
    mesh = f"y={rows},x={columns}"
    mesh = f"r={regions},{mesh}" if regions > 1 else mesh
    asked = {"device": device, "mesh": mesh, "dtype": dtype}
    try:
        kept, files = decode_program(path, (f"all={drawn['form']}",), **asked)
    except MeshcError as refusal:
        assert {d.code for d in refusal.diagnostics} <= SHORT, refusal
        assume(False)
    plain, _ = decode_program(path, (), **asked | {"device": "ideal", "compile_to": "tile"})
    codes = [b for b in kept.buffers if b.type.dtype.coded]
    assert codes and kept.the_mesh().regions == regions
    agree(kept, files, plain, dtype, drawn["seed"], folder, monkeypatch)
    weights = [[b for b in m.buffers if b.role == "weight"] for m in (kept, plain)]
    assert sum(b.type.bytes for b in weights[0]) < sum(b.type.bytes for b in weights[1])
    memory = json.loads(files["report.json"])["memory"]
    said = memory["quantised"]
    for b in codes:
        name = b.value.name.removesuffix(".codes")
        parts = [w.type.bytes for w in weights[0] if w.value.name.startswith(f"{name}.")]
        assert said[name]["bytes"] == sum(parts)
        assert said[name]["decoded"] == np.prod(b.type.shape) * (4 if dtype == "f32" else 2)
    assert said.keys() == {b.value.name.removesuffix(".codes") for b in codes}
    assert {name: memory["buffers"][name] for name in (b.value.name for b in codes)} == {
        b.value.name: b.type.bytes for b in codes
    }


@st.composite
def models(draw):
    """Layers whose features are whole groups on every row of cores, and where they lie. Those of
    heads and of the MLP are whole groups on some columns and not on others."""
    form = draw(st.sampled_from(sorted(n for n, kind in CODE_FORMATS.items() if kind.whole)))
    group = CODE_FORMATS[form].group
    rows, columns = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    groups, share = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    layers = Layers(
        N=draw(st.integers(1, 2)),
        E=group * rows * draw(st.integers(1, 64 // group or 1)),
        H=groups * share,
        G=groups,
        D=2 * draw(st.integers(1, 8)),
        F=draw(st.sampled_from([group * columns, 16, 40])),
        V=draw(st.integers(2, 40)),
    )
    return {
        "form": form,
        "layers": layers,
        "regions": draw(st.integers(1, 2)) if layers.N > 1 else 1,
        "rows": rows,
        "columns": columns,
        "arch": draw(st.sampled_from(["wse2", "wse3"])),
        "types": draw(st.sampled_from([("f32", "f32"), ("f16", "f16"), ("f16", "f32")])),
        "seed": draw(st.integers(0, 99)),
    }


def _drawn(count):
    @settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn=models())
    def run(tmp_path_factory, drawn):
        with pytest.MonkeyPatch.context() as monkeypatch:
            check(drawn, tmp_path_factory.mktemp("kept"), monkeypatch)

    return run


test_drawn_models = _drawn(2)
test_many_drawn_models = pytest.mark.slow(_drawn(60))
