"""The device catalogue and a user's own device file."""

import os
import re
import time
from pathlib import Path

import pytest

from meshc.devices import KEYS, KINDS, Number, describe, device, device_names, load_device
from meshc.devices.checks import UNSOURCED
from meshc.support.diagnostics import MeshcError, known_codes

GOOD = """
name = "mine"
kind = "mesh"
description = "four by four"
cores_x = 4
cores_y = 4
clock_hz = 1_000_000
topology = "mesh"
hop_cycles = 1
route_cycles = 20.5
word_bytes = 4
default_dtype = "f32"
f32_macs_per_cycle = 1
f32_lanes_per_cycle = 2
"""


def errors(tmp_path, text):
    path = tmp_path / "my.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(MeshcError) as caught:
        load_device(path)
    return caught.value.diagnostics


def test_catalogue_is_complete():
    expected = (
        "a100x2",
        "b200",
        "b200x8",
        "blackhole",
        "dojo",
        "gh200",
        "h100",
        "h100-pcie",
        "h100x2",
        "h100x4",
        "h100x8",
        "h20",
        "h200",
        "h200x8",
        "ideal",
        "toy",
        "wse2",
        "wse3",
    )
    assert device_names() == expected


@pytest.mark.parametrize("name", device_names())
def test_catalogue_entries_are_consistent(name):
    found = device(name)
    assert found.name == name
    assert found.default_dtype in found.dtypes
    assert found.cores <= found.cores_x * found.cores_y
    text = describe(found)
    assert text.startswith(f"{name}: ") and found.description in text
    hash(found)


@pytest.mark.parametrize("name", device_names())
def test_every_number_of_the_catalogue_says_where_it_is_from(name):
    found = device(name)
    text = describe(found)
    for key, number in found.numbers.items():
        assert number.kind in KINDS and number.source, key
        assert number.source != UNSOURCED
        (row,) = [line for line in text.splitlines() if line.split()[:1] == [key]]
        assert KEYS[key].unit in row and number.kind in row and row.endswith(number.source)
    named = {number.source.split(":")[0] for number in found.numbers.values()}
    for short, title in found.sources.items():
        assert any(re.search(rf"\b{short}\b", source) for source in named), short
        assert title in text
    shorts = {source for source in named if re.fullmatch(r"[A-Z]+", source)}
    assert shorts <= found.sources.keys()


@pytest.mark.parametrize("name", device_names())
def test_the_catalogue_leaves_nothing_to_be_asked_for(name):
    """What passes, estimates and back ends read of any device is there, if only as unlimited."""
    found = device(name)
    assert found.link.words_per_cycle > 0
    for number in ("op_cycles", "vector_cycles", "scalar_cycles", "step_cycles"):
        assert found.real(number) >= 0
    assert found.room_bytes is None or found.room_bytes > 0
    for what in ("colors", "input_queues", "output_queues"):
        assert found.free(what) is None or found.free(what) > 0
    assert (found.clusters is None) == (found.kind != "cluster")
    for dtype in found.dtypes:
        assert min(found.macs(dtype), found.lanes(dtype), found.macs(dtype, "other")) > 0


def test_wafer_resources_after_memcpy():
    routing = device("wse2").routing
    assert routing.colors.free == tuple(range(21))
    assert routing.input_queues.free == (2, 3, 4, 5, 6, 7)
    assert routing.output_queues.free == (2, 3, 4, 5)
    assert device("wse3").routing.output_queues.count == 6
    assert routing.microthreads.count == 7
    assert device("wse2").data_bytes == 49_152 - 11_264


def test_ideal_has_no_limits():
    found = device("ideal")
    assert found.routing is None and found.data_bytes is None and not found.enforced
    assert re.search(r"memory_bytes +unlimited +bytes +assumed", describe(found))


def test_other_numbers():
    small = device("ideal").with_numbers(memory_bytes=1000, reserved_bytes=0)
    assert small.data_bytes == 1000 and small.number("memory_bytes").kind == "assumed"
    assert small.with_numbers(memory_bytes="unlimited").data_bytes is None
    assert small.with_numbers(memory_bytes=None).data_bytes is None
    with pytest.raises(MeshcError, match="no number 'memory'"):
        small.with_numbers(memory=1000)


def test_rates_by_dtype():
    wse2 = device("wse2")
    assert (wse2.macs("f16"), wse2.macs("f16", "f32"), wse2.macs("f32", "f32")) == (4, 2, 1)
    assert wse2.lanes("f16") == 4
    assert wse2.seconds(1.1e9) == 1


def test_a_users_device(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    found = device(str(path))
    assert (found.cores, found.real("route_cycles"), found.enforced) == (16, 20.5, True)
    assert found.number("hop_cycles") == Number(1, "assumed")
    assert found.number("hop_cycles").source == UNSOURCED
    assert "UNSOURCED" not in describe(found) and UNSOURCED in describe(found)


def test_a_number_that_is_missing_is_an_error_where_it_is_needed(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    found = device(str(path))
    for ask, name in (
        (lambda: found.room_bytes, "memory_bytes"),
        (lambda: found.routing, "colors"),
        (lambda: found.link.relay_cycles, "relay_cycles"),
        (lambda: found.step_cycles, "step_cycles"),
        (lambda: found.macs("f16"), "f16_macs_per_cycle"),
        (lambda: found.macs("f16", "f32"), "mixed_macs_per_cycle"),
    ):
        with pytest.raises(MeshcError) as caught:
            ask()
        (error,) = caught.value.diagnostics
        assert error.code == "device-number" and f"does not give '{name}'" in error.message
        assert f"write {name} = {{value = .." in error.help and KEYS[name].unit in error.help


def test_a_watched_device_knows_what_was_asked_for():
    found = device("wse2").watched()
    assert found == device("wse2").watched() and found.inputs() == {}
    assert found.link.route_cycles == 24.5 and found.link.hop_cycles == 1 and found.cores_x == 750
    assert found.inputs() == {
        "datasheet": ("cores_x", "hop_cycles"),
        "calibrated": ("route_cycles",),
    }


def test_unlimited_is_said_in_words(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD + 'memory_bytes = "unlimited"\ncolors = "unlimited"\n')
    found = device(str(path))
    assert (found.room_bytes, found.routing, found.free("colors")) == (None, None, None)
    assert found.first("colors") == 0
    with pytest.raises(MeshcError, match="says 'unlimited' for 'memory_bytes'"):
        found.whole("memory_bytes")


STATED = '{value = 20.5, unit = "cycles", kind = "published", source = "P: Table 1"}'


def test_a_stated_number(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace("20.5", STATED) + '[sources]\nP = "a paper"\n')
    found = device(str(path))
    assert found.number("route_cycles") == Number(20.5, "published")
    assert found.number("route_cycles").source == "P: Table 1"
    assert found.sources == {"P": "a paper"}
    assert describe(found).endswith("  P  a paper")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ((', unit = "cycles"', ""), "'route_cycles' has no unit"),
        ((', source = "P: Table 1"', ""), "'route_cycles' has no source"),
        (("value = 20.5, ", ""), "'route_cycles' has no value"),
        (('"cycles"', '"ns"'), "'route_cycles' is in cycles, not in ns"),
        (('"published"', '"guessed"'), "must be one of datasheet, published, calibrated, assumed"),
        (('"P: Table 1"', '""'), "the source of 'route_cycles' must have 1 to 200 characters"),
        (("{value", "{vlaue = 1, value"), "'route_cycles' has no place for 'vlaue'"),
        (("20.5", '"none"'), "'route_cycles' must be a number"),
        (("20.5", "-1"), "'route_cycles' must be between"),
    ],
)
def test_wrong_statements(tmp_path, change, words):
    found = errors(tmp_path, GOOD.replace("20.5", STATED.replace(*change)))
    assert {d.code for d in found} == {"bad-device"}
    assert any(words in d.message for d in found), [d.message for d in found]
    assert found[0].span.line == 10


@pytest.mark.parametrize("text", ["sources = 1\n", "[sources]\nP = 1\n", '[sources]\nP = ""\n'])
def test_wrong_sources(tmp_path, text):
    (found,) = errors(tmp_path, GOOD + text)
    assert "'sources' must be a table of texts" in found.message


def test_every_fault_is_reported_with_its_line(tmp_path):
    text = GOOD.replace("cores_x = 4", "cores_x = -4").replace('"four by four"', "5")
    text = text.replace("hop_cycles", "hop_cycle").replace("route_cycles = 20.5\n", "colors = 4\n")
    text += "reserved_colors = 9\nreserved_bytes = true\nclusters = [1]\n"
    found = errors(tmp_path, text)
    lines = {d.message.split("'")[1]: d.span.line for d in found if "missing" not in d.message}
    assert lines == {
        "hop_cycle": 9,
        "clusters": 17,
        "description": 4,
        "cores_x": 5,
        "reserved_colors": 15,
        "reserved_bytes": 16,
    }
    missing = [d.message for d in found if "missing" in d.message]
    assert sum("routing" in d.help for d in found if d.help) == len(missing) - 2
    assert any("did you mean 'hop_cycles'" in (d.help or "") for d in found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("= 1_000_000\n", "= 1e6\n"), "whole number"),
        (("20.5", "nan"), "a number"),
        (('"mesh"\ndesc', '"torus"\ndesc'), "one of mesh, cluster, node"),
        (('"f32"', '"f16"'), "f16_macs_per_cycle"),
        (("word_bytes = 4", "word_bytes = 4\nmemory_bytes = 8\nreserved_bytes = 8"), "nothing"),
        (("word_bytes = 4", 'word_bytes = 4\ncluster_sizes = "8-1"'), "ids as text"),
        (('"mine"', '""'), "1 to 200"),
        (("cores_x = 4", "cores_x = 99999999999999999999999999"), "between 1 and"),
        (
            ("word_bytes = 4", "word_bytes = 4\noutput_queues = 6\nreserved_output_queues = 6"),
            "none",
        ),
        (('"mesh"\ndesc', '"cluster"\ndesc'), "positive 'global_bytes_per_second'"),
    ],
)
def test_wrong_values(tmp_path, change, words):
    found = errors(tmp_path, GOOD.replace(*change))
    assert {d.code for d in found} == {"bad-device"}
    assert any(words in d.message for d in found)


@pytest.mark.parametrize(
    "text",
    [
        b"\xff\xfe",
        "name = ",
        "name = 1\nname = 2",
        "x" * 70_000,
        "a = " + "[" * 30_000,
        "",
        "[cores]\nx = 1",
        "\x00",
        "cores_x = " + "9" * 5000,
        "".join(f"k{i} = 1\n" for i in range(6000)),
    ],
)
def test_hostile_files_end_quickly(tmp_path, text):
    started = time.process_time()
    found = errors(tmp_path, text)
    assert {d.code for d in found} <= {"bad-device", "unreadable-device"}
    assert len(found) < 60 and time.process_time() - started < 5


def test_a_toml_error_has_its_place(tmp_path):
    (found,) = errors(tmp_path, 'name = "x"\nkind = ?\n')
    assert found.code == "unreadable-device" and found.span.line == 2


@pytest.mark.parametrize("name", ["nowhere.toml", "/dev/zero.toml", "wse9", "../wse2", "a\0.toml"])
def test_missing_devices(name):
    with pytest.raises(MeshcError) as caught:
        device(name)
    assert caught.value.diagnostics[0].code in ("unknown-device", "unreadable-device")


def test_pipes_and_folders_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    for path in (tmp_path, tmp_path / "pipe.toml"):
        with pytest.raises(MeshcError, match="unreadable-device"):
            load_device(path)


def test_codes_are_explained():
    assert {
        "unknown-device",
        "unreadable-device",
        "bad-device",
        "device-number",
    } <= known_codes().keys()


def test_the_documented_device_file(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "mine.toml"
    path.write_text(example)
    found = device(str(path))
    assert found.number("route_cycles").kind == "calibrated"
    assert found.link.relay_cycles is None and found.room_bytes is None
    assert found.step_cycles == 207 and found.free("input_queues") is None


def test_whole_rings_of_a_torus_close():
    torus = device("blackhole")
    assert torus.closes("x", 14) and torus.closes("y", 10)
    assert not torus.closes("x", 10) and not torus.closes("y", 14) and torus.closes("xd", 14)
    assert [torus.hops("x", 14, apart) for apart in (0, 1, 7, 8, 13)] == [0, 1, 7, 6, 1]
    assert [torus.hops("x", 10, apart) for apart in (1, 9)] == [1, 9]
    wafer = device("wse2")
    assert wafer.hops("x", wafer.cores_x, 749) == 749 and not wafer.closes("x", wafer.cores_x)


@pytest.mark.parametrize(
    ("name", "flops", "dtype", "memory"),
    [("blackhole", 372e12, "f16", 210 * 2**20), ("dojo", 25 * 362e12, "bf16", 25 * 354 * 1.25e6)],
)
def test_rates_are_those_that_vendors_state(name, flops, dtype, memory):
    found = device(name)
    rate = 2 * found.macs(dtype) * found.cores * found.clock_hz
    assert rate == pytest.approx(flops, rel=1.5e-2)
    assert found.cores * found.memory_bytes == pytest.approx(memory, rel=0.05)
