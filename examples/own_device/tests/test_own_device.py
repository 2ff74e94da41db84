"""The device of this package: programs are made for its numbers, and refused beyond them."""

import pytest

import meshc

MODEL = """model product(M=8, K=32, N=16) {
  weights f32  accumulate f32
  param w[K, N]
  main(x[M, K]) -> [M, N] { return x @ w }
}"""


@pytest.fixture
def product(tmp_path):
    path = tmp_path / "product.mesh"
    path.write_text(MODEL)
    return path


def test_a_program_knows_its_numbers(product):
    compiled = meshc.compile(product, device="pocket", mesh="4x4")
    found = compiled.modules["main"].the_device()
    assert (found.name, found.cores_x, found.memory_bytes) == ("pocket", 12, 24_576)


def test_more_cores_than_it_has_are_refused(product):
    with pytest.raises(meshc.MeshcError, match="12x12"):
        meshc.compile(product, device="pocket", mesh="13x4")
