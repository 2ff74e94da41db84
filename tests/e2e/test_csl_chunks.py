"""Prompts in chunks in emitted CSL: one program for chunks of every length behind any number of
cached tokens, and the steps of decoding behind it."""

import itertools

import numpy as np
import pytest
from csl_prompts import Conversation, Prompts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reduced import each
from test_csl_prefill import TINY, TOO_SMALL, models, tokens_of, written

from meshc.backends.csl import check
from meshc.cli import main
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics, MeshcError


def cuts(length, most, step):
    """Where a prompt is cut into the longest chunks that begin at multiples of ``step``."""
    return [*range(0, length, most // step * step), length]


def rows_of(options):
    """Rows of the mesh of ``options``, at multiples of which chunks begin."""
    return int(options["mesh"].split("x")[1])


@pytest.mark.parametrize(
    ("mesh", "arch", "dtype", "chunk"),
    [
        pytest.param("2x2", "wse3", "f32", 2, marks=pytest.mark.slow),  # as the command reads
        ("3x2", "wse2", "f16", 5),
        pytest.param("2x1", "wse3", "f16", 1, marks=pytest.mark.slow),
        pytest.param("1x3", "wse2", "f32", 4, marks=pytest.mark.slow),
        pytest.param("2x2", "wse3", "f32", 100, marks=pytest.mark.slow),
    ],
)
def test_one_program_reads_chunks_behind_what_is_cached(mesh, arch, dtype, chunk, tmp_path):
    path = written(tmp_path, dtype=dtype)
    prompts = Prompts(path, tmp_path, device=arch, mesh=mesh, seq=7, chunk=chunk)
    assert (prompts.capacity, prompts.room) == (min(chunk, 7), 7)
    for length in (7, 1, 6, 3):  # shorter prompts behind longer ones, and the other way
        edges = cuts(length, prompts.capacity, rows_of({"mesh": mesh}))
        for start, end in itertools.pairwise(edges):
            found = prompts.compare(end - start, start)
            assert found.agrees, (length, start, found)


def test_chunks_out_of_range_are_refused_before_anything_is_written(tmp_path):
    path = written(tmp_path, E=4, H=1, G=1, D=2, F=2, layers=1)
    prompts = Prompts(path, tmp_path, device="wse3", mesh="1x2", seq=7, chunk=4)
    prompts.compare(4)
    before = prompts.program.kept()
    for length, position, words in (
        (5, 0, "--len is 5, not 1 to 4"),
        (2, 7, "--pos is 7, not 0 to 6"),
        (2, 3, "--pos is 3, no multiple of 2"),
        (4, 4, "4 and 4 tokens do not fit a cache of 7"),
        (2, 6, "6 and 2 tokens do not fit a cache of 7"),
    ):
        with pytest.raises(SystemExit, match=words):
            prompts.program.run({}.__getitem__, {"len": length, "pos": position})
    after = prompts.program.kept()
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name])


@pytest.mark.parametrize("chunk", each([5, 2, 9], 3))
def test_buffers_are_as_large_as_a_chunk(chunk, tmp_path):
    """Buffers of rows hold those of a chunk, caches all tokens."""
    options = {"target": "csl", "device": "wse3", "mesh": "2x2", "seq": 16, "phase": "prefill"}
    loaded = load_any(str(written(tmp_path)), Diagnostics())
    found = []
    for request in (CompileRequest(**options), CompileRequest(**options, chunk=chunk)):
        (module,) = compile_loaded(loaded, request).modules.values()
        found.append({b.value.name: b.type.shape for b in module.buffers})
    whole, parts = found
    assert whole["kv_cache"] == parts["kv_cache"]
    assert (whole["x"][0], parts["x"][0]) == (8, -(-chunk // 2))


def test_a_chunk_has_a_token_for_each_row_of_cores(tmp_path):
    loaded = load_any(str(written(tmp_path)), Diagnostics())
    options = {"target": "csl", "mesh": "2x4", "seq": 9, "phase": "prefill"}
    with pytest.raises(MeshcError, match="cannot begin at multiples of 4") as refused:
        compile_loaded(loaded, CompileRequest(**options, chunk=3))
    assert [d.code for d in refused.value.diagnostics] == ["bad-option"]
    with pytest.raises(MeshcError, match="programs for --target python do not take it"):
        compile_loaded(loaded, CompileRequest(**options | {"target": "python"}, chunk=4))


def test_caches_of_fewer_tokens_than_rows_of_cores_are_read_at_once(tmp_path):
    path = written(tmp_path, E=6, H=1, G=1, D=2, F=4, layers=1)
    talk = Conversation(path, tmp_path, mesh="1x3", device="wse3", seq=2, chunk=4)
    assert talk.compare(2, 1).agrees


def test_numbers_of_tokens_are_rounded_up_within_16_bits(tmp_path):
    """Caches of 32,767 tokens: their share of two rows of cores is half of one token more."""
    loaded = load_any(str(written(tmp_path)), Diagnostics())
    request = CompileRequest(target="csl", mesh="2x2", seq=9, phase="prefill", chunk=4)
    (module,) = compile_loaded(loaded, request).modules.values()
    for most, refused in ((32766, False), (32767, True)):
        module.dims["S"] = most
        module.scalars["pos"] = (0, most - 1)
        if not refused:
            check(module)
            continue
        with pytest.raises(MeshcError, match="grows to 32768") as error:
            check(module)
        assert [d.code for d in error.value.diagnostics] == ["csl-extent"]


@st.composite
def chunked(draw):
    """A model and how it is compiled, prompts that are read in chunks, and chunks of the first."""
    sizes, options = draw(models())
    rows = rows_of(options)
    options["chunk"] = draw(st.integers(rows, rows + 6))
    room = options["seq"]
    lengths = draw(st.lists(st.integers(1, room), min_size=1, max_size=2))
    step = min(options["chunk"], room) // rows * rows
    edges = {0, lengths[0]}
    while step and (left := lengths[0] - max(edges - {lengths[0]})) > step:
        edges.add(lengths[0] - left + rows * draw(st.integers(1, step // rows)))
    return sizes, options, lengths, sorted(edges)


def check_chunks(folder, drawn):
    """Rows, caches and logits behind them are those of the interpreter; or the model is too
    large."""
    sizes, options, lengths, edges = drawn
    path = written(folder, **sizes)
    try:
        prompts = Prompts(path, folder, **options)
        talk = Conversation(path, folder / "both", **options)
    except MeshcError as refusal:
        assert {d.code for d in refusal.diagnostics} <= TOO_SMALL, refusal
        return
    for start, end in itertools.pairwise(edges):
        found = prompts.compare(end - start, start)
        assert found.agrees, (start, end, found)
    for length in lengths:
        talk.refuses(length, talk.room - length + 2)
        found = talk.compare(length, talk.room - length + 1)
        assert found.agrees, (length, found)


@settings(max_examples=1, derandomize=True)
@given(chunked())
def test_any_model_in_chunks(tmp_path_factory, drawn):
    check_chunks(tmp_path_factory.mktemp("drawn"), drawn)


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[*HealthCheck])
@given(chunked())
def test_many_models_in_chunks(tmp_path_factory, drawn):
    check_chunks(tmp_path_factory.mktemp("drawn"), drawn)


@pytest.mark.slow
def test_a_vector_that_changes_the_axis_on_one_column_keeps_its_type(tmp_path):
    """Halves of what a norm gives go to two rows of cores, without a sum over columns."""
    path = written(tmp_path, E=11, D=6, F=8, layers=1, dtype="f16")
    talk = Conversation(path, tmp_path, mesh="1x2", device="wse2", seq=5, kv="concat", chunk=4)
    found = talk.compare(3, 3)
    assert found.agrees, found


@pytest.mark.parametrize("arch", ["wse3", pytest.param("wse2", marks=pytest.mark.slow)])
def test_a_model_in_bf16_reads_a_prompt_and_goes_on(arch, tmp_path):
    path = written(tmp_path, E=8, H=2, D=2, F=6, layers=1, dtype="bf16")
    talk = Conversation(path, tmp_path, mesh="2x1", device=arch, seq=5, chunk=2)
    found = talk.compare(4, 2)
    assert found.agrees and found.bound > 0, found


@pytest.mark.models
@pytest.mark.parametrize(
    ("model", "mesh", "arch", "dtype", "kv"),
    [
        pytest.param("llama-3h1", "3x3", "wse3", "f32", "shift", marks=pytest.mark.slow),
        pytest.param("qwen2-7h1", "4x2", "wse2", "f16", "cyclic", marks=pytest.mark.slow),
    ],
)
def test_tokens_behind_chunks_are_those_behind_a_prompt_in_one_piece(model, mesh, arch, dtype, kv):
    prompts = ((5, 17, 32, 3, 8, 30, 2, 2), (11, 4, 3), (9,))
    options = {"mesh": mesh, "seq": 12, "kv": kv}
    wafer = {"target": "csl", "device": arch, "dtype": dtype, "chunk": 3}
    answers, phases = tokens_of(model, prompts, 4, **options, **wafer)
    assert phases == ["prefill", "decode"]
    for prompt, answer in zip(prompts, answers, strict=True):
        ((wanted,), _) = tokens_of(model, (prompt,), 4, dtype="f32", **options)
        assert answer.tokens == wanted.tokens


@pytest.mark.slow
@pytest.mark.models
def test_the_command_reads_chunks(tmp_path, capfd):
    """A compiled directory reads a prompt, and refuses one that overflows the caches."""
    out, model = tmp_path / "out", str(TINY / "llama-3h1")
    words = ["compile", model, "--target", "csl", "--mesh", "2x2", "--dtype", "f32", "--seq", "9"]
    assert main([*words, "--chunk", "2", "--weights", model, "-o", str(out)]) == 0
    assert (out / "prefill" / "layout.csl").exists()
    capfd.readouterr()
    words = ["run", str(out), "--prompt-ids", "59,15,1,58,30,41,27"]
    assert main([*words, "--max-tokens", "3"]) == 0
    assert capfd.readouterr().out == "19,58,6\n"
    assert main([*words, "--max-tokens", "4"]) == 1
    assert "7 and 4 tokens do not fit a cache of 9" in capfd.readouterr().err
