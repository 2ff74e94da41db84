"""Channels with turns as switch tables, on the simulator with bounded queues."""

import numpy as np
import pytest
from csl_runs import PRODUCT, bound, compiled, emit, run_files, tile_text
from csl_turn_texts import all_gather
from reduced import crossed

from meshc.backends.csl.fabric.switch_tables import control_word
from meshc.support.diagnostics import MeshcError


def gathered(rows, columns, axis, each, rounds, words, arch, folder, monkeypatch, launches=1):
    """What comes out, what should, and the files."""
    module = tile_text(all_gather(rows, columns, axis, each, rounds, words), arch)
    files = emit({"main": module})
    launch = 'self.runner.launch("run", nonblock=False)'
    assert files["run.py"].count(launch) == 1
    again = f"for _ in range({launches}): {launch}"
    files["run.py"] = files["run.py"].replace(launch, again)
    own = np.random.default_rng(2).standard_normal((rows, columns, each)).astype(np.float32)
    found, _ = run_files(files, {"own": own}, folder, monkeypatch)
    lines = own.reshape(rows, -1) if axis == "x" else own.transpose(1, 0, 2).reshape(columns, -1)
    line = lines[:, None] if axis == "x" else lines[None]
    steps = each * (columns if axis == "x" else rows)
    wanted = np.broadcast_to(line[:, :, None], (rows, columns, rounds, steps))
    return found["all"], wanted, files


@pytest.mark.parametrize(
    ("given", "arch"),
    crossed(
        [
            (1, 2, "x", 1, 1),
            (2, 3, "x", 1, 40),
            (4, 3, "y", 1, 5),
            (3, 4, "x", 2, 7),
            (2, 1, "y", 3, 2),
            (1, 12, "x", 1, 3),
        ],
        ["wse2", "wse3"],
    ),
)
def test_all_cores_give_round_after_round(given, arch, tmp_path, monkeypatch):
    rows, columns, axis, each, words = given
    found, wanted, _ = gathered(rows, columns, axis, each, 2, words, arch, tmp_path, monkeypatch)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_a_second_launch_finds_the_switches_as_they_were(arch, tmp_path, monkeypatch):
    found, wanted, _ = gathered(2, 5, "x", 1, 1, 9, arch, tmp_path, monkeypatch, launches=3)
    np.testing.assert_array_equal(found, wanted)


def test_routers_of_a_line_share_one_color_for_each_way(tmp_path, monkeypatch):
    _, _, files = gathered(2, 4, "x", 1, 1, 3, "wse3", tmp_path, monkeypatch)
    layout = files["layout.csl"]
    assert layout.count("@get_color(") == 6  # two ends of two channels, and their lines' routers
    assert "row_turns_up(@get_color(0), y, 0, 4);" in layout
    assert ".pos1 = .{ .tx = EAST }," in layout
    assert "column_turns" not in layout


def test_colors_without_a_switch_are_refused():
    module = tile_text(all_gather(2, 4, "x", 1, 1), "wse3")
    for channel in module.channels:
        channel.send_color = channel.recv_color = str(int(channel.send_color) + 10)
    with pytest.raises(MeshcError, match="color 10, which has no switch on wse3"):
        emit({"main": module})


def test_control_words_are_those_of_public_programs():
    """All commands nothing and for no core but the first, which tears down: a word of the vendor's
    all-reduce, and what is left of it when a router has taken the first command off."""
    entry = 0x1F << 16
    assert control_word((3,)) == 0x9DF9249 & ~(0x3F << 16) | entry
    assert control_word(()) == 0x91F9249 & ~(0x3F << 16) | entry
    assert control_word((1, 0)) >> 22 & 0x3F == 5 | 4 << 3  # that of its factorisation


@pytest.mark.parametrize(("side", "panels"), [(60, 2), (80, 1)])
def test_summa_has_one_panel_where_memory_is_short(side, panels, tmp_path, monkeypatch):
    """Tiles of 40 x 40 f32: two panels of either operand would take 45 of 37 KB."""
    text = PRODUCT.format(m=side, k=side, n=side, accumulate="f32")
    asked = {"device": "wse3", "mesh": "2x2", "dtype": "f32", "algo": ("gemm=summa",)}
    (module,) = compiled(text, tmp_path, **asked).values()
    (found,) = (b.type.shape[0] for b in module.buffers if b.value.name == "left_panels")
    assert found == panels
    rng = np.random.default_rng(4)
    x, w = (rng.standard_normal((side, side)).astype(np.float32) for _ in range(2))
    files = emit({"main": module})
    outputs, _ = run_files(files, {"x": x, "w": w}, tmp_path, monkeypatch)
    (product,) = outputs.values()
    error = np.abs(product - x.astype(np.float64) @ w)
    assert np.all(error <= bound(x, w, "f32", "f32"))
