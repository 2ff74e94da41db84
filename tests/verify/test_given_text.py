"""Modules from outside: what their headers say of the device is checked, with its place."""

import pytest

from meshc.ir.parser import parse_module
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
        ("colors = many", "'colors' must be a whole number or \"unlimited\""),
        ("colors = inf", "'colors' must be a whole number"),
        ("reserved_colors = unlimited", "'reserved_colors' must be a whole number"),
        ("output_queues = 0", "between 1 and 4096, not 0"),
        ("output_queues = 6, reserved_output_queues = 6", "none of the 6 output_queues"),
        ("memory_bytes = 8, reserved_bytes = 9", "leave nothing"),
        ("words_per_cycle = 0", "between 1e-06 and"),
    ],
)
def test_wrong_device_numbers(device, words):
    with pytest.raises(MeshcError) as caught:
        read(f"name = toy assumed {device}")
    (found,) = caught.value.diagnostics
    assert found.code == "bad-device" and words in found.message
    assert found.span.line == 3


def test_some_numbers_are_enough():
    found = read("name = toy, enforced = true assumed colors = 4, reserved_colors = 1")
    assert found.device.free("colors") == 3


def test_a_number_that_is_not_there_is_asked_for():
    found = read("name = toy, enforced = true assumed colors = 4")
    with pytest.raises(MeshcError) as caught:
        found.device.free("colors")
    (error,) = caught.value.diagnostics
    assert error.code == "device-number"
    assert "device 'toy' does not give 'reserved_colors'" in error.message
    assert 'reserved_colors = {value = .., unit = "colors"' in error.help
    assert error.notes == ()


def test_a_module_without_a_device_has_no_numbers():
    module = parse_module(Source("t.meshir", TEXT.replace("  device DEVICE\n", "")))
    with pytest.raises(MeshcError, match="device-number"):
        module.the_device()
