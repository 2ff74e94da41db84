"""Names of a mesh's axes: those of a wafer, and those that a device states."""

import pytest

from meshc.devices import WAFER, AxisNames, device, load_device
from meshc.support.diagnostics import MeshcError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24x16", (24, 16)),
        ("y=16,x=24", (24, 16)),
        ("x=24, y=16", (24, 16)),
        ("x=24", (24, 1)),
        ("y = 3", (1, 3)),
    ],
)
def test_a_mesh_by_columns_and_rows_or_by_the_names_of_its_axes(text, size):
    assert WAFER.size_of(text) == size
    assert WAFER.sizes_of(text) == (*size, 0)


def test_regions_by_the_name_of_their_axis():
    assert WAFER.sizes_of("r=2,y=3,x=4") == (4, 3, 2)
    assert WAFER.sizes_of("x=4,r=1") == (4, 1, 1)
    with pytest.raises(MeshcError, match="has regions, where one plane of cores"):
        WAFER.size_of("r=2,y=3,x=4")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is no mesh"),
        ("24", "'24' is no mesh"),
        ("0x4", "'0x4' is no mesh"),
        ("y=0", "'y=0' is no mesh"),
        ("y=2,y=3", "'y=2,y=3' is no mesh"),
        ("y=2,", "'y=2,' is no mesh"),
        ("gpu=8", "no axis 'gpu'"),
        ("xh=8", "no axis 'xh'"),
        ("99999x99999", "more than any device has"),
        ("r=99999,y=99,x=99", "more than any device has"),
        ("r=0,y=2,x=2", "'r=0,y=2,x=2' is no mesh"),
    ],
)
def test_what_is_no_mesh(text, words):
    with pytest.raises(MeshcError) as caught:
        WAFER.size_of(text)
    (found,) = caught.value.diagnostics
    assert found.code == "bad-mesh" and words in found.message


_NUMBERS = """name = "mine"\nkind = "mesh"\ndescription = "mine"\ntopology = "mesh"
cores_x = 4\ncores_y = 4\nclock_hz = 1_000_000\nhop_cycles = 1\nroute_cycles = 20.5\nword_bytes = 4
default_dtype = "f32"\nf32_macs_per_cycle = 1\nf32_lanes_per_cycle = 2\n"""


def test_a_device_may_name_its_axes(tmp_path):
    assert device("wse2").axes == WAFER
    assert device("h100x8").axes == AxisNames("group", "row", "gpu")
    file = tmp_path / "mine.toml"
    file.write_text(_NUMBERS + 'axes = "plane line core"\n')
    assert load_device(file).axes.plane == ("line", "core")


@pytest.mark.parametrize(
    "axes",
    [
        *("line core", "a1 a1 b1", "Aa b1 c1", "a1 b-1 c1", "a1 b1 c1 d1", "a1  c1"),
        *(
            "b a x",
            "r y l",
            "r pos x",
            "len y x",
            "layer y x",
            "mod y x",
        ),  # what programs use themselves
        *("r xh x", "xd y x"),  # factors of the columns
        *("rows y x", "r for x", "r y " + 16 * "a"),
    ],
)
def test_names_that_axes_cannot_have(tmp_path, axes):
    file = tmp_path / "mine.toml"
    file.write_text(_NUMBERS + f'axes = "{axes}"\n')
    with pytest.raises(MeshcError) as caught:
        load_device(file)
    assert "three names in small letters" in caught.value.diagnostics[0].message
