"""Where the largest element stands first: CSL and Python beside NumPy and the interpreter."""

import numpy as np
import pytest
from csl_runs import emit, run_files, tile_text

from meshc.backends.python import HostFacts, load_program
from meshc.backends.python import emit as emit_python
from meshc.interp.tile import TileMachine
from meshc.support.output import write_directory

INFINITE = -np.inf


def program(rows, lanes, limit, dtype="f32", statement=True):
    """A tile module of two columns, which have ``lanes`` elements of each row one after the other;
    ``before`` is what each column says of its own."""
    call = "tile.first_at %before, %a, %top {rank = x, block = LANES, limit = LIMIT}"
    call = call.replace("LANES", str(lanes)).replace("LIMIT", str(limit))
    return f"""module @choice level(tile) holds(channels_matched) {{
  dims R = {rows}, C = {2 * lanes}, X = 2
  mesh y = 1, x = 2
  buffer %a : {dtype}[{rows}, {lanes}] {{role = in}}
  buffer %top : {dtype}[{rows}] {{role = in}}
  buffer %before : f32[{rows}] {{role = out}}
  port @a in {dtype}[R, C] : %a {{lanes = [i, j], element = [i, "{lanes}*x + j"]}}
  port @top in {dtype}[R] : %top {{lanes = [i], element = [i]}}
  port @before out f32[X, R] : %before {{lanes = [i], element = [x, i]}}
  program @main {{
    tile.fill %before {{value = 1.0}}
    {call if statement else ""}
  }}
}}
"""


def expected(a, top, limit):
    """The index of the first element of each half that is equal to ``top``, by search."""
    found = np.full((2, len(a)), INFINITE, np.float32)
    half = a.shape[1] // 2
    for column in range(2):
        for row, most in enumerate(top):
            own = range(column * half, min(limit, (column + 1) * half))
            places = [place for place in own if a[row, place] == most]
            found[column, row] = -min(places) if places else INFINITE
    return found


def rows_of(lanes, limit, rng):
    """Ties, one number everywhere, infinities, and numbers below zero; pads hold what is least."""
    a = np.stack([
        rng.integers(0, 3, 2 * lanes),
        np.full(2 * lanes, -2.5),
        np.full(2 * lanes, INFINITE),
        -1 - rng.permutation(2 * lanes),
        np.arange(2 * lanes),
    ]).astype(np.float32)  # fmt: skip
    a[:, limit:] = INFINITE
    return a, a.max(1)


@pytest.mark.parametrize(
    ("lanes", "limit", "dtype", "arch"),
    [(5, 9, "f32", "wse2"), (1, 1, "f16", "wse3"), (8, 5, "f16", "wse2"), (13, 26, "f32", "wse3")],
)
def test_the_first_of_the_largest(lanes, limit, dtype, arch, tmp_path, monkeypatch):
    a, top = rows_of(lanes, limit, np.random.default_rng(lanes))
    kind = {"f32": np.float32, "f16": np.float16}[dtype]
    given = {"a": a.astype(kind), "top": top.astype(kind)}
    module = tile_text(program(len(a), lanes, limit, dtype), arch)
    wanted = expected(a, top, limit)
    write_directory(tmp_path / "python", emit_python({"main": module}, HostFacts("choice")), {})
    lockstep = load_program(tmp_path / "python").load({})
    np.testing.assert_array_equal(lockstep.run(given)["before"], wanted)
    found, _ = run_files(emit({"main": module}), given, tmp_path, monkeypatch)
    np.testing.assert_array_equal(found["before"], wanted)
    machine = TileMachine(module)
    for name, tensor in given.items():
        machine.load(name, tensor)
    np.testing.assert_array_equal(machine.run({})["before"], wanted)


@pytest.mark.parametrize("name", ["many", "index"])
def test_a_buffer_may_be_called_like_a_variable_of_the_kernel(name, tmp_path, monkeypatch):
    a, top = rows_of(5, 9, np.random.default_rng(5))
    text = program(len(a), 5, 9).replace("%top", f"%{name}")
    found, _ = run_files(
        emit({"main": tile_text(text, "wse2")}), {"a": a, "top": top}, tmp_path, monkeypatch
    )
    np.testing.assert_array_equal(found["before"], expected(a, top, 9))
