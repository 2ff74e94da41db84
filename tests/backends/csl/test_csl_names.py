"""Names: whatever a program calls its things, the emitted text compiles and means the same."""

import re
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from csl_runs import emit, own_names, run_files, tile_text
from csl_texts import cast, chain, exchange, tile_program
from hypothesis import given, settings
from hypothesis import strategies as st

from meshc.backends.csl.spelling.expressions import HELPERS
from meshc.backends.csl.spelling.names import RESERVED, Names
from meshc.backends.csl.tree.printed import printed

BODY = (
    "    tile.for {var = t, count = 2} {\n"
    '      tile.rotate %d {by = "t + pos"}\n'
    "      tile.gemm %d, %a as [4, 1], %b[0 +: 2] as [1, 2] "
    "{accumulate = true, transposed = false}\n"
    f"{exchange('cast_x', 1, 'x = 0', 'x >= 1', '[t]')}"
    "    }\n" + exchange("chain_x_1", 2) + "    tile.add %c, %b, %d[:, 1]\n"
)
TEXT = tile_program(BODY, "  buffer %d : f32[4, 2]\n" + cast() + chain())
TENSORS = {n: np.arange(12, dtype=np.float32).reshape(1, 3, 4) + k for k, n in enumerate("abc")}


def module():
    """``%d`` begins with zeros."""
    text = TEXT.replace("program @main {\n", "program @main {\n    tile.fill %d {value = 0.0}\n")
    return tile_text(text, "wse3")


def run(found):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        files = emit({"main": found})
        return run_files(files, TENSORS, Path(folder), monkeypatch)[0]


@cache
def expected():
    """What the program gives with its own names."""
    return run(module())


def words():
    """Everything in the emitted text that could be a name."""
    files = emit({"main": module()})
    return sorted({w for text in files.values() for w in re.findall(r"[A-Za-z_]\w*", text)})


hostile = st.one_of(
    st.deferred(lambda: st.sampled_from(words())),
    st.sampled_from(sorted(RESERVED)),
    st.text(max_size=8),
    st.sampled_from(['"', "*/", "// x\n}", "\n", "\\", "{{ 1 }}", "a" * 500, "é", "%", "'''"]),
)


def renamed(buffers, channels, variable, model):
    """The module with other names for things that keep their meaning."""
    found = module()
    for buffer, name in zip(found.buffers, buffers, strict=True):
        buffer.value.name = name
    for channel, name in zip(found.channels, channels, strict=True):
        for op in found.walk():
            op.operands = [
                type(o)(name) if str(o) == f"@{channel.name}" else o for o in op.operands
            ]
        channel.name = name
    found.name = model
    return found


def check(buffers, channels, model):
    """Nothing that is computed changes with the names."""
    found = run(renamed(buffers, channels, "t", model))
    for name, array in expected().items():
        np.testing.assert_array_equal(found[name], array)


ANY = {
    "buffers": st.lists(hostile, min_size=4, max_size=4, unique=True),
    "channels": st.lists(hostile, min_size=2, max_size=2, unique=True),
    "model": hostile,
}


@settings(max_examples=8, deadline=None, derandomize=True)
@given(**ANY)
def test_hostile_names(buffers, channels, model):
    check(buffers, channels, model)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(**ANY)
def test_many_hostile_names(buffers, channels, model):
    check(buffers, channels, model)


@pytest.mark.parametrize(
    "name", ["i", "row", "pc", "run", "my_x", "time", "resume_id", "given_pos"]
)
def test_names_of_loops_and_scalars(name):
    text = TEXT.replace("var = t,", f"var = {name},").replace('"t + pos"', f'"{name} + pos"')
    text = text.replace("[t]", f"[{name}]")
    text = text.replace("program @main {\n", "program @main {\n    tile.fill %d {value = 0.0}\n")
    found = run(tile_text(text, "wse3"))
    for port, array in expected().items():
        np.testing.assert_array_equal(found[port], array)


@given(st.lists(st.text(), unique=True, max_size=20))
def test_identifiers_are_distinct_and_legal(texts):
    names = Names()
    found = [names.of("buffer", text) for text in texts]
    assert found == [names.of("buffer", text) for text in texts]
    assert len(set(found)) == len(found)
    for name in found:
        assert re.fullmatch(r"[A-Za-z_]\w{0,99}", name, re.ASCII)
        assert name not in RESERVED


@pytest.mark.parametrize("phase", ["layout", "a/b", "../x", "é", "run"])
def test_names_of_phases(phase):
    files = emit({phase: module()})
    assert len(files) == 5
    assert all(re.fullmatch(r"\w+\.\w+", name, re.ASCII) for name in files)
    (code,) = set(files) - {"layout.csl", "run.py", "report.json", "commands_wse3.sh"}
    assert f'"{code}"' in files["layout.csl"]


def test_integer_divisions_declare_no_name_that_a_buffer_may_have():
    texts = "".join(printed([function]) for function in HELPERS.values())
    assert own_names(texts) and own_names(texts) <= RESERVED
