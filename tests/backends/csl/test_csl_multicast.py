"""Multicasts to some of the cores of a line, by equal steps from the sender's."""

import numpy as np
import pytest
from csl_runs import emit, run_files, tile_text
from csl_texts import exchange, tile_program

COLUMNS = 7
REACHED = {
    "one": ("_x = 4 and x = 0", "x = 0", "x = 4", 0, [4]),
    "every second": (
        "_x >= 2 and _x mod 2 = 0 and x = 0",
        "x = 0",
        "x >= 2 and x mod 2 = 0",
        0,
        [2, 4, 6],
    ),
}


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("kind", REACHED)
def test_cores_that_are_named_get_what_was_sent(kind, arch, tmp_path, monkeypatch):
    reach, sends, gets, source, wanted = REACHED[kind]
    header = f'  channel @cast_x "{{ [y, x] -> [y, _x] : {reach} }}" {{multicast = true}}\n'
    text = tile_program(exchange("cast_x", sends=sends, gets=gets), header, columns=COLUMNS)
    dice = np.random.default_rng(3)
    given = {n: dice.standard_normal((1, COLUMNS, 4)).astype(np.float32) for n in "abc"}
    found, _ = run_files(emit({"main": tile_text(text, arch)}), given, tmp_path, monkeypatch)
    expected = given["b"].copy()
    expected[:, wanted] = given["a"][:, [source]]
    np.testing.assert_array_equal(found["b_after"], expected)
