"""What the C computes is what the model says, and what has no C is refused by name."""

import shutil
import subprocess

import numpy as np
import pytest

import meshc

RANDOM = np.random.default_rng(4)
MATMUL = """model matmul(M=5, K=12, N=7) {
  weights f32  accumulate f32
  param w[K, N]
  main(x[M, K]) -> [M, N] { return x @ w }
}"""
MLP = """model mlp(L=6, E=16, F=20) {
  weights f32  accumulate f32
  param norm[E], w_gate[E, F], w_up[E, F], w_down[F, E]
  main(x[L, E]) -> [L, E] {
    h = rms_norm(x, norm, eps=1e-5)
    return x + (silu(h @ w_gate) * (h @ w_up)) @ w_down
  }
}"""
SHAPES = {"norm": (16,), "w_gate": (16, 20), "w_up": (16, 20), "w_down": (20, 16)}

compiler = shutil.which("cc")
needs_c = pytest.mark.skipif(compiler is None, reason="there is no C compiler")


def compiled(text, folder, **options):
    (folder / "model.mesh").write_text(text)
    asked = {"target": "one-core-c", "mesh": "1x1", **options}
    return meshc.compile(folder / "model.mesh", **asked)


def ran(made, folder, **tensors):
    """The float32 values that the program writes for ``tensors``."""
    (folder / "main.c").write_text(made.files["main.c"])
    flags = ["-std=c99", "-O1", "-Wall", "-Werror", "-Wno-unused-function"]
    subprocess.run([compiler, *flags, "main.c", "-o", "main", "-lm"], cwd=folder, check=True)
    for name, array in tensors.items():
        (folder / f"{name}.f32").write_bytes(array.astype("<f4").tobytes())
    subprocess.run(["./main", "."], cwd=folder, check=True)
    return np.frombuffer((folder / "result.f32").read_bytes(), "<f4")


def mlp(x, norm, w_gate, w_up, w_down):
    """In float64."""
    h = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * norm
    gate = h @ w_gate
    return x + (gate / (1 + np.exp(-gate)) * (h @ w_up)) @ w_down


@needs_c
@pytest.mark.parametrize("real", ["float", "double"])
def test_a_product_is_that_of_numpy(real, tmp_path):
    x, w = RANDOM.standard_normal((5, 12)), RANDOM.standard_normal((12, 7))
    made = compiled(MATMUL, tmp_path, real=real)
    assert f"static {real} b" in made.files["main.c"]
    found = ran(made, tmp_path, x=x, w=w).reshape(5, 7)
    np.testing.assert_allclose(found, x @ w, rtol=1e-5, atol=1e-5)


@needs_c
def test_a_feed_forward_layer_is_that_of_numpy_and_the_interpreter(tmp_path):
    tensors = {name: RANDOM.standard_normal(shape) for name, shape in SHAPES.items()}
    x = RANDOM.standard_normal((6, 16))
    made = compiled(MLP, tmp_path)
    found = ran(made, tmp_path, x=x, **tensors).reshape(6, 16)
    np.testing.assert_allclose(found, mlp(x, **tensors), rtol=1e-4, atol=1e-4)
    (wanted,) = meshc.run(made.modules["main"], {"x": x, **tensors})
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def refused(text, folder, **options):
    with pytest.raises(meshc.MeshcError) as caught:
        compiled(text, folder, **options)
    return str(caught.value)


def test_what_has_no_c_is_refused(tmp_path):
    softmax = MATMUL.replace("return x @ w", "return softmax(x @ w)")
    assert "no C is written for tile." in refused(softmax, tmp_path)
    assert "has one core" in refused(MATMUL, tmp_path, mesh="2x2")
    assert "real cannot be 'half'" in refused(MATMUL, tmp_path, real="half")
    said = refused(MATMUL, tmp_path, page=64)
    assert "--page is 64, but programs for --target one-core-c do not take it" in said
