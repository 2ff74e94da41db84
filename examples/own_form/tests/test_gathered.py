"""The form of this package, pinned, computes what others do and sends what it says."""

import numpy as np
import pytest

import meshc

TEXT = """\
module @normed level(graph) holds(transpose_free) {
  dims E = 12, F = 6
  func @main(in %x: f32[E], weight %gain: f32[E], weight %w: f32[E, F]) -> (f32[F]) {
    %h = graph.rms_norm %x, %gain {dim = E, eps = 1e-5} : f32[E]
    %y = graph.matmul %h, %w {contract = [E]} : f32[F]
    graph.return %y
  }
}
"""


def partitioned(pins):
    passes = meshc.parse_pipeline(f'partition{{grid=3x2,forms=["{pins}"]}}')
    return meshc.PassManager(passes).run(meshc.parse(TEXT))


def test_it_gathers_and_computes_the_same():
    found = partitioned("h=gathered")
    assert "mesh.all_gather" in [op.NAME for op in found.walk()]
    random = np.random.default_rng(5)
    shapes = {"x": 12, "gain": 12, "w": (12, 6)}
    given = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    (result,) = meshc.run(found, given)
    normed = given["x"] / np.sqrt(np.mean(given["x"] ** 2) + 1e-5) * given["gain"]
    np.testing.assert_allclose(result, normed @ given["w"], rtol=1e-12)


def test_no_other_op_has_it():
    with pytest.raises(meshc.MeshcError, match="'y' has no form 'gathered' here"):
        partitioned("y=gathered")
