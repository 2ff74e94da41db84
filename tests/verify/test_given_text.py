"""Modules from outside: what their headers say of the device is checked, with its place."""

import pytest

from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source
from meshc.verify.given import read_module

TEXT = """module @m level(mesh) {
  dims L = 2, E = 4
  device DEVICE
  mesh y = 2, x = 2
  func @f(in %x: f32[L, E]<E_x:2>) -> (f32[L, E]<E_x:2>) {
    mesh.return %x
  }
}
"""


def read(device):
    return read_module(Source("t.meshir", TEXT.replace("DEVICE", device)))


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("colors = many", "'colors' must be a whole number"),
        ("colors = inf", "'colors' must be a whole number"),
        ("output_queues = 0", "between 1 and 4096, not 0"),
        ("output_queues = 6, reserved_output_queues = 6", "none of the 6 output_queues"),
        ("memory_bytes = 8, reserved_bytes = 9", "leave nothing"),
        ("words_per_cycle = 0", "between 1e-06 and"),
    ],
)
def test_wrong_device_numbers(device, words):
    with pytest.raises(MeshcError) as caught:
        read(device)
    (found,) = caught.value.diagnostics
    assert found.code == "bad-device" and words in found.message
    assert found.span.line == 3


def test_some_numbers_are_enough():
    assert read("name = toy, colors = 4, enforced = true").device["colors"] == 4
