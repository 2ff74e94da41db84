"""fuse-collective on models over GPUs: what is computed stays the same, and what is fused."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import meshc
from meshc.driver import CompileRequest, graph_module, load_any
from meshc.interp.check import check_same
from meshc.interp.mesh import run_mesh
from meshc.ir.clone import clone_module
from meshc.pipelines import pipeline_to

MODEL = Path(__file__).parents[2] / "examples" / "tiny_llama.mesh"


def lowered(gpus, phase, model=MODEL):
    request = CompileRequest(device="h100x8", mesh=f"gpu={gpus}", seq=6)
    module = graph_module(load_any(str(model), meshc.Diagnostics()), phase, request)
    return meshc.PassManager(pipeline_to("mesh", request.settings())[:3]).run(module)


def fused(module, text="fuse-collective"):
    return meshc.PassManager(meshc.parse_pipeline(text)).run(clone_module(module))


def counts(module):
    return Counter(op.NAME.removeprefix("mesh.") for op in module.walk())


@pytest.mark.parametrize(("gpus", "phase"), [(2, "decode"), (4, "prefill"), (3, "decode")])
def test_a_layer_has_one_fused_op_and_its_residual_in_parts(gpus, phase):
    """Behind attention; the sum behind the feed-forward part has its norm in the next layer, where
    what is normalised by rows is gathered, as behind the last layer."""
    before = lowered(gpus, phase)
    after = fused(before)
    new = counts(after) - counts(before)
    assert new == {"all_reduce_norm": 1, "reduce_scatter": 1, "all_gather": 2, "part": 1}
    assert counts(before)["all_reduce"] - counts(after)["all_reduce"] == 2
    assert check_same(before, after).agrees


TEXT = """module @m level(mesh) holds(padding_safe, partitioned) {
  dims B = 5, E = 6
  options dtype = f32, accumulate = f32
  mesh row = 1, gpu = 3
  func @main(in %p: f32[B, E]<>, in %x: f32[B, E]<B_gpu%:2>, weight %g: f32[E]<>) -> (RESULTS) {
    %q = mesh.relayout %p : f32[B, E]<+gpu>
    %h, %y = mesh.all_reduce_norm %q, %x, %g {axis = gpu, rows = B, dim = E, eps = 0.25} : RESULTS
    mesh.return %h, %y
  }
}
""".replace("RESULTS", "f32[B, E]<>, f32[B, E]<B_gpu%:2>")


def test_the_op_means_a_sum_a_residual_and_a_norm():
    """Every GPU brings the same here, so the sum is three times that."""
    random = np.random.default_rng(1)
    p, x, g = (random.standard_normal(size) for size in ((5, 6), (5, 6), 6))
    normed, stream = run_mesh(meshc.parse(TEXT, "m.meshir"), {"p": p, "x": x, "g": g})
    wanted = 3 * p + x
    scale = np.sqrt((wanted**2).mean(-1, keepdims=True) + 0.25)
    np.testing.assert_allclose(stream, wanted, rtol=1e-12)
    np.testing.assert_allclose(normed, wanted / scale * g, rtol=1e-12)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("rows = B, dim = E", "rows = E, dim = E", "no two dims"),
        ("rows = B, dim = E", "rows = B, dim = F", "no two dims"),
        ("axis = gpu, rows", "axis = row, rows", "to be completed over row alone"),
        ("%q, %x, %g {", "%p, %x, %g {", "to be completed over gpu alone"),
        ("%q, %x, %g {", "%q, %p, %g {", "must be complete, and lie alike before and after"),
        ("in %x: f32[B, E]<B_gpu%:2>", "in %x: f32[B, E]<E_gpu:2>", "lie alike before and after"),
        ("weight %g: f32[E]<>", "weight %g: f32[B]<>", "the gain has dim E alone"),
        ("weight %g: f32[E]<>", "weight %g: f32[E]<E_gpu:2>", "E does not lie alike"),
        ("%q, %x, %g {", "%q, %g, %g {", "must have the same dims"),
        ("eps = 0.25} : f32[B, E]<>,", "eps = 0.25} : f32[B, E]<B_gpu:2>,", "as the partial sums"),
        ("eps = 0.25", "eps = -1.0", "it is at least 0"),
    ],
)  # fmt: skip
def test_what_is_no_fused_reduction_is_refused(old, new, words):
    text = TEXT.replace("dims B = 5, E = 6", "dims B = 5, E = 6, F = 6")
    assert old in text
    with pytest.raises(meshc.MeshcError) as error:
        meshc.PassManager([]).run(meshc.parse(text.replace(old, new), "m.meshir"))
    assert words in error.value.diagnostics[0].message


def test_no_lower_level_is_made_of_it():
    """There are kernels for it, but no tile program."""
    module = fused(lowered(2, "decode"))
    with pytest.raises(meshc.MeshcError, match="all_reduce_norm has no expansion"):
        meshc.PassManager(pipeline_to("tile")[3:]).run(module)
