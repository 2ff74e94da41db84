"""Emitted directories as a user runs them: their commands untouched, in processes of their own."""

import os
import re
import subprocess
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from csl_runs import PRODUCT, bound, emit, tile_text

from meshc.cli import main

ROOT = Path(__file__).parents[3]
HERE = {**os.environ, "PYTHONPATH": str(ROOT)}


def meshc(*words, cwd):
    """What the command prints."""
    printed = StringIO()
    with chdir(cwd), redirect_stdout(printed):
        assert main([*words]) == 0
    return printed.getvalue()


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """The environment in which cslc and cs_python are the stand-ins."""
    place = meshc("sim", "bin", cwd=tmp_path_factory.mktemp("bin")).strip()
    return {**HERE, "PATH": f"{place}{os.pathsep}{os.environ['PATH']}"}


def commands(folder, script, environment, *options):
    done = subprocess.run(
        ["bash", script, *options], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_one_source_runs_on_both(tmp_path, stand_ins):
    dtype, accumulate = "f16", "f32"
    (tmp_path / "p.mesh").write_text(PRODUCT.format(m=11, k=13, n=9, accumulate=accumulate))
    words = ["--target", "csl", "--device", "wse3", "--mesh", "3x2", "--dtype", dtype]
    printed = meshc("compile", "p.mesh", *words, "--portable", "-o", "out", cwd=tmp_path)
    assert re.search(r"\d+ bytes of data per PE and about \d+ of code, \d+ left", printed)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((11, 13)).astype(np.float16)
    w = rng.standard_normal((13, 9)).astype(np.float16)
    folder = tmp_path / "out"
    (folder / "data").mkdir()
    np.save(folder / "data" / "x.npy", x)
    np.save(folder / "data" / "w.npy", w)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    for arch in ("wse2", "wse3"):
        result = folder / "data" / "result.npy"
        result.unlink(missing_ok=True)
        printed = commands(folder, f"commands_{arch}.sh", stand_ins)
        assert re.match(r"\d+ cycles on the slowest PE, \d+ on the fastest", printed)
        assert np.all(np.abs(np.load(result) - exact) <= bound(x, w, dtype, accumulate))


def test_inputs_that_are_missing_or_wrong(tmp_path, stand_ins):
    (tmp_path / "p.mesh").write_text(PRODUCT.format(m=4, k=4, n=4, accumulate="f32"))
    words = ["--target", "csl", "--device", "wse2", "--mesh", "1x1", "--dtype", "f32"]
    meshc("compile", "p.mesh", *words, "-o", "out", cwd=tmp_path)
    folder = tmp_path / "out"
    (folder / "data").mkdir()

    def said():
        words = ["bash", "commands_wse2.sh"]
        done = subprocess.run(words, cwd=folder, env=stand_ins, capture_output=True, text=True)
        assert done.returncode == 1
        return done.stdout + done.stderr

    np.save(folder / "data" / "w.npy", np.zeros((4, 4), np.float32))
    assert "there is no data/x.npy" in said()
    np.save(folder / "data" / "x.npy", np.zeros((4, 5), np.float32))
    assert "x.npy has the shape (4, 5), not (4, 4)" in said()


COUNTER = """\
module @count level(tile) {{
  dims Y = 1, X = 2, N = 4
  mesh y = 1, x = 2
  buffer %a : f32[4] {{role = in}}
  buffer %sum : f32[4] {{role = state}}
  buffer %out : f32[4] {{role = out}}
  port @a in f32[Y, X, N] : %a {{lanes = [i], element = [y, x, i]}}
  port @out out f32[Y, X, N] : %out {{lanes = [i], element = [y, x, i]}}
  program @main {{
    tile.{kernel} %sum, %sum, %a
    tile.copy %out, %sum
  }}
}}
"""


def test_phases_keep_their_state(tmp_path, stand_ins):
    """Two programs, each in its folder; what the first keeps is where the second begins."""
    modules = {
        "prefill": tile_text(COUNTER.format(kernel="add"), "wse3"),
        "decode": tile_text(COUNTER.format(kernel="mul"), "wse3"),
    }
    for name, text in emit(modules).items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    a = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    for phase in modules:
        (tmp_path / phase / "data").mkdir()
        np.save(tmp_path / phase / "data" / "a.npy", a)
    expected = np.zeros_like(a)
    for phase in ("prefill", "decode"):
        expected = expected + a if phase == "prefill" else expected * a
        commands(tmp_path / phase, "commands_wse3.sh", stand_ins)
        found = np.load(tmp_path / phase / "data" / "out.npy")
        np.testing.assert_array_equal(found, expected)


def test_data_and_state_elsewhere(tmp_path, stand_ins):
    for name, text in emit({"main": tile_text(COUNTER.format(kernel="add"), "wse2")}).items():
        (tmp_path / name).write_text(text)
    (tmp_path / "given").mkdir()
    a = np.ones((1, 2, 4), np.float32)
    np.save(tmp_path / "given" / "a.npy", a)
    options = ["--data", "given", "--state", "kept/here"]
    commands(tmp_path, "commands_wse2.sh", stand_ins, *options)
    commands(tmp_path, "commands_wse2.sh", stand_ins, *options)
    np.testing.assert_array_equal(np.load(tmp_path / "given" / "out.npy"), 2 * a)
    assert [p.name for p in (tmp_path / "kept" / "here").iterdir()] == ["sum.npy"]
