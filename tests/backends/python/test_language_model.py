"""A whole small language model: prefill, decode and host against the graph's meaning."""

import subprocess
import sys

import numpy as np
import pytest
from emitted_texts import (
    CAPACITY,
    EXTENTS,
    graph_of,
    model_files,
    model_weights,
    module_of,
    program_of,
    ring_gemm,
    write,
)

from meshc.backends.python import HostFacts, emit, load_program
from meshc.interp.graph import run_graph

PROMPT = [3, 1, 4, 1, 5]
GRIDS = ["1x1", "2x2", "4x1", "1x3", "3x2", "5x3", "4x6"]


def expected(weights, prompt, count):
    """Greedy tokens and logits of the graph, one token at a time."""
    module = graph_of(1)
    shape = [EXTENTS["N"], CAPACITY, EXTENTS["G"], EXTENTS["D"]]
    keys, values = np.zeros(shape), np.zeros(shape)
    given = {name: array for name, array in weights.items() if name != "table"}
    tokens, logits = list(prompt), []
    for pos in range(len(prompt) + count - 1):
        inputs = {"x0": weights["table"][[tokens[pos]]], "ks": keys, "vs": values, **given}
        row, keys, values = run_graph(module, inputs, {"pos": pos})
        if pos >= len(prompt) - 1:
            logits.append(row[0])
            tokens.append(int(row[0].argmax()))
    return tokens[len(prompt) :], np.array(logits)


@pytest.fixture(scope="module")
def weights():
    return model_weights(np.random.default_rng(21))


@pytest.fixture(scope="module")
def answer(weights):
    return expected(weights, PROMPT, 6)


def generated(model, prompt, count, **how):
    logits = []
    tokens = model.generate(prompt, count, lambda token, row: logits.append(row.copy()), **how)
    return tokens, np.array(logits)


@pytest.mark.parametrize("grid", GRIDS)
def test_tokens_and_logits_on_any_mesh(grid, weights, answer, tmp_path):
    main = load_program(write(tmp_path, model_files(grid)))
    model = main.load(weights)
    for _ in range(2):  # a second prompt finds nothing of the first
        tokens, logits = generated(model, PROMPT, 6)
        assert tokens == answer[0]
        np.testing.assert_allclose(logits, answer[1], rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(model.last_logits, logits[-1])
    cores = model.decode.fabric.mesh.count
    mixed = main.load(weights, order=np.random.default_rng(5).permutation(cores))
    np.testing.assert_array_equal(generated(mixed, PROMPT, 6)[1], logits)


@pytest.mark.parametrize(
    "how", [{"algo": "ring"}, {"algo": "pipeline"}, {"policy": "concat"}, {"policy": "cyclic"}]
)
def test_other_collectives_and_cache_policies(how, weights, answer, tmp_path):
    files = model_files("3x4", **how)
    model = load_program(write(tmp_path, files)).load(weights)
    tokens, logits = generated(model, PROMPT, 6)
    assert tokens == answer[0]
    np.testing.assert_allclose(logits, answer[1], rtol=1e-3, atol=1e-4)


def test_decode_alone_reads_the_prompt_token_by_token(weights, answer, tmp_path):
    files = model_files("3x2", phases=("decode",))
    assert "prefill=None" in files["main.py"] and "prefill.py" not in files
    model = load_program(write(tmp_path, files)).load(weights)
    assert model.generate(PROMPT, 6) == answer[0]


def test_prompts_of_every_length(weights, tmp_path):
    model = load_program(write(tmp_path, model_files("2x3"))).load(weights)
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    for length in range(1, 9):
        found, logits = generated(model, tokens[:length], 2)
        wanted = expected(weights, tokens[:length], 2)
        assert found == wanted[0]
        np.testing.assert_allclose(logits, wanted[1], rtol=1e-3, atol=1e-4)


def test_stop_tokens_end_the_answer(weights, answer, tmp_path):
    model = load_program(write(tmp_path, model_files("2x2"))).load(weights)
    last = answer[0][2]
    first = answer[0].index(last)
    assert model.generate(PROMPT, 6, stop=(last,)) == answer[0][: first + 1]
    assert model.generate(PROMPT, 6, stop={-1}) == answer[0]


def test_requests_that_cannot_be_served(weights, tmp_path):
    main = load_program(write(tmp_path, model_files("2x2")))
    model = main.load(weights)
    for prompt, count, message in (
        ([], 1, "no tokens"),
        ([13], 1, "token 13 is not in the vocabulary 0 .. 12"),
        ([-1], 1, "token -1"),
        ([1] * 8, 5, "do not fit a cache of 11 tokens"),
    ):
        with pytest.raises(main.HostError, match=message):
            model.generate(prompt, count)
    assert len(model.generate([1] * 8, 4)) == 4
    with pytest.raises(main.HostError, match="no tensor 'table'"):
        main.load({name: array for name, array in weights.items() if name != "table"})
    with pytest.raises(main.PortError, match="no tensor 'wos'"):
        main.load({name: array for name, array in weights.items() if name != "wos"})


def save(folder, weights):
    (folder / "weights").mkdir()
    for name, array in weights.items():
        np.save(folder / "weights" / f"{name}.npy", array)


def call(folder, *arguments):
    """Run main.py as a person does, from anywhere, with no meshc on the path."""
    return subprocess.run(
        [sys.executable, "-E", "-W", "error", str(folder / "main.py"), *arguments],
        capture_output=True,
        text=True,
        cwd=folder.parent,
    )


def test_the_command_line(weights, answer, tmp_path):
    folder = write(tmp_path / "program", model_files("2x3"))
    save(folder, weights)
    prompt = ",".join(map(str, PROMPT))
    logits = tmp_path / "logits.npy"
    done = call(folder, "--prompt-ids", prompt, "--max-tokens", "6", "--logits", str(logits))
    assert done.stdout == ",".join(map(str, answer[0])) + "\n", done.stderr
    np.testing.assert_allclose(np.load(logits), answer[1], rtol=1e-3, atol=1e-4)
    stopped = call(folder, "--prompt-ids", prompt, "--max-tokens", "6", "--stop-at-eos")
    tokens = [int(token) for token in stopped.stdout.split(",")]
    assert tokens == answer[0][: len(tokens)] and (len(tokens) == 6 or tokens[-1] == 2)


def test_mistakes_on_the_command_line_show_no_traceback(weights, tmp_path):
    folder = write(tmp_path / "program", model_files("1x1"))
    save(folder, weights)
    for arguments, status, message in (
        (["--prompt-ids", "99"], 1, "error: token 99 is not in the vocabulary"),
        (["--prompt-ids", "1", "--max-tokens", "99"], 1, "do not fit a cache"),
        (["--prompt-ids", "a,b"], 2, "'a,b' is no list of ids"),
    ):
        done = call(folder, *arguments)
        assert done.returncode == status and message in done.stderr
        assert "Traceback" not in done.stderr
    (folder / "weights" / "wos.npy").write_bytes(b"\x93NUMPY garbage")
    done = call(folder, "--prompt-ids", "1")
    assert done.returncode == 1 and done.stderr.startswith("error: ")
    (folder / "weights" / "wos.npy").unlink()
    done = call(folder, "--prompt-ids", "1")
    assert done.stderr == "error: there is no tensor 'wos'\n"


def test_a_program_of_tensors_on_the_command_line(tmp_path):
    module = ring_gemm(2, 3, 4, 5, 6)
    folder = write(tmp_path / "program", emit({"main": module}, HostFacts("gemm")))
    a, b = np.random.default_rng(0).standard_normal((2, 6, 6))
    a, b = a[:4, :5], b[:5]
    save(folder, {"B": b})
    np.save(tmp_path / "a.npy", a)
    out = tmp_path / "c.npy"
    given = ["--input", f"A={tmp_path / 'a.npy'}"]
    done = call(folder, *given, "--output", str(out))
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(out), a @ b, rtol=1e-4, atol=1e-5)
    out.unlink()
    assert call(folder, *given, "--output", f"C={out}").returncode == 0
    assert np.load(out).shape == (4, 6)
    for arguments, message in (
        ([*given, "--output", f"D={out}"], "error: there is no output 'D'"),
        (["--output", str(out)], "error: the inputs of this program are: A"),
        (["--input", "A=missing.npy", "--output", str(out)], "error: "),
        (["--input", f"A={tmp_path / 'c.npy'}", "--output", str(out)], "has shape (4, 6), not"),
        (["--input", f"A={__file__}", "--output", str(out)], f"'{__file__}' holds no array"),
        (["--input", "a.npy", "--output", str(out)], "'a.npy' is no NAME=FILE.npy"),
    ):
        done = call(folder, *arguments)
        assert done.returncode == (2 if "usage" in done.stderr else 1) and message in done.stderr
        assert "Traceback" not in done.stderr


def test_programs_in_one_process_do_not_mix(tmp_path):
    first, second = ring_gemm(2, 2, 4, 4, 4), ring_gemm(1, 3, 6, 6, 6)
    a = np.random.default_rng(1).standard_normal((6, 6))
    one = program_of(tmp_path / "one", first, {"B": np.eye(4)})
    two = program_of(tmp_path / "two", second, {"B": np.eye(6)})
    np.testing.assert_allclose(one.run({"A": a[:4, :4]})["C"], a[:4, :4], rtol=1e-6)
    np.testing.assert_allclose(two.run({"A": a})["C"], a, rtol=1e-6)
    assert not {"main", "main_phase", "mesh_runtime"} & sys.modules.keys()


def test_run_time_scalars_are_checked(tmp_path):
    module = module_of("""module @t level(tile) {
      dims I = 2
      scalars n = 0..3
      mesh y = 1, x = 1
      buffer %v : f32[2] {role = out}
      port @v out f32[I] : %v {lanes = [i], element = [i]}
      program @main { tile.fill %v {value = 1.0} }
    }""")
    program = program_of(tmp_path, module)
    np.testing.assert_array_equal(program.run({})["v"], [1.0, 1.0])
    with pytest.raises(ValueError, match=r"n = 4 is not in 0 \.\. 3"):
        program.run({}, n=4)
    with pytest.raises(ValueError, match="the scalar n is not given"):
        program.phase.run({})
