"""The function of this package, from the language to programs, against NumPy in float64."""

import numpy as np
import pytest

import meshc

MODEL = """model signed(M=4, K=16, N=8) {
  weights f32  accumulate f32
  param w[K, N]
  main(x[M, K]) -> [M, N] { return softsign(x, width = 0.5) @ w }
}"""


@pytest.fixture
def signed(tmp_path):
    path = tmp_path / "signed.mesh"
    path.write_text(MODEL)
    return path


@pytest.fixture
def given():
    random = np.random.default_rng(3)
    return {"x": random.standard_normal((4, 16)), "w": random.standard_normal((16, 8))}


def wanted(given):
    x = given["x"]
    return x / (0.5 + np.abs(x)) @ given["w"]


@pytest.mark.parametrize("level", ["graph", "mesh", "tile"])
def test_the_interpreters_compute_it(signed, given, level):
    asked = {} if level == "graph" else {"mesh": "2x2"}
    module = meshc.compile(signed, compile_to=level, **asked).modules["main"]
    again = meshc.parse(meshc.print_module(module))
    (found,) = meshc.run(again, given)
    np.testing.assert_allclose(found, wanted(given), rtol=1e-5, atol=1e-5)


def test_emitted_python_carries_it(signed, given):
    compiled = meshc.compile(signed, mesh="2x2")
    assert "def softsign" in compiled.files["mesh_runtime/brought.py"]
    (found,) = compiled.load({"w": given["w"]}).run({"x": given["x"]}).values()
    np.testing.assert_allclose(found, wanted(given), rtol=1e-5, atol=1e-5)


def test_emitted_csl_has_it_as_a_function(signed):
    compiled = meshc.compile(signed, target="csl", device="wse2", mesh="2x2")
    assert "return value / (0.5 + math.abs_f32(value));" in compiled.files["main.csl"]
