"""The benchmark of CUDA kernels without a GPU: launches run in the executor on a fake driver.

Times mean nothing here, and none is looked at.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import ceiling
import checks
import decode
import isolated
import kernels
import numpy as np
import parts
import plain_layers
import prepared
import programs
import pytest
import pytorch
import rates
import references
import steps
import tables
import tiny
from fake_driver import FakeDriver, built_driver
from records import Records

from meshc.backends.cuda.executor import CXX
from meshc.backends.cuda.toolchain.toolkit import compile_cubin

CONFIG = {
    "model_type": "llama", "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 200,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 256,
    "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "float16",
}  # fmt: skip
GPU = Path(decode.__file__).parent

needs_executor = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


def needs_both(test):
    return pytest.mark.cuda_compiler(needs_executor(test))


@pytest.fixture
def model(tmp_path):
    """The folder of a tiny model's configuration."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path)


@pytest.fixture
def fake(fake, in_executor, monkeypatch):
    """The fake driver; whatever is loaded runs in the executor, and units in this process."""
    in_executor(checks, programs, plain_layers, parts)
    monkeypatch.setattr(ceiling, "ROUNDS", 1)
    monkeypatch.setattr(ceiling, "MEETING_SIZES", (2, 16))
    monkeypatch.setattr(parts, "AGREEING_RUNS", 2)
    monkeypatch.setattr(isolated, "run", in_this_process)
    return fake


def in_this_process(given, limit):
    start = time.monotonic()
    return isolated.Ended(decode.main(list(given)), time.monotonic() - start)


def arguments(model, fake, *more):
    return [
        "--model", model, "--contexts", "40,9", "--repeats", "1", "--read-mib", "1",
        "--driver", fake.path, "--out", str(Path(model) / "out"), *more,
    ]  # fmt: skip


def results(model, kind):
    return [r for r in Records(Path(model) / "out").read() if r["kind"] == kind]


@pytest.mark.slow
@needs_both
def test_all_of_it_runs(model, fake, capsys):
    assert decode.main(arguments(model, fake, "--parts", "checks,ceiling,decode,torch")) == 0
    assert fake.live == 0
    found = results(model, "check")
    products = [f"product of {tokens} tokens, f16" for tokens in (256, 248)]
    titles = ["embed, f16", *products, "logits, f16", "logits, normed, f16"]
    assert list(dict.fromkeys(r["title"] for r in found)) == titles
    # The device is the executor here, so these are its errors, and none beside itself.
    assert all(0 <= r["beside_float64"] < 1e-5 for r in found)
    assert {r["beside_cpu"] for r in found} == {None, 0.0}  # before and after the executor
    depths = {r["in_flight"] // 1024 for r in results(model, "read")}
    assert depths == {32, 64, 96, 128, 160, 192}
    assert [r["size"] for r in results(model, "clusters")] == list(range(1, 17))
    for spread in results(model, "spread"):
        assert spread["cores"] == spread["blocks"] and spread["most"] == 1
        assert np.array(spread["clusters"]).ravel().tolist() == list(range(spread["blocks"]))
    assert [r["name"] for r in results(model, "kernel")] == ["step"]
    assert all(r["at_once"] > 0 for r in results(model, "kernel"))
    same = results(model, "same")
    assert [(r["cached"], r["runs"], r["equal"], r["largest"]) for r in same] == [
        (9, 2, 2, 0.0), (40, 2, 2, 0.0),
    ]  # fmt: skip
    assert all(0.1 < r["largest_logit"] < 100 for r in same)  # weights of the right scale
    rows = {(r["of"], r["cached"], r["name"]) for r in results(model, "timed")}
    assert {("step", 40, "meshc"), ("step", 9, "meshc")} <= rows
    notes = " ".join(r["words"] for r in results(model, "note"))
    assert "PyTorch was not timed" in notes
    text = (Path(model) / "out" / "tables.md").read_text()
    assert text.strip() == capsys.readouterr().out.strip()
    for words in ("| step | 40 | meshc |", "Read ceiling", "grid barrier", "multiprocessors with"):
        assert words in text


@needs_both
@pytest.mark.slow
def test_a_wrong_kernel_ends_the_run(model, fake, monkeypatch, capsys):
    right = checks.head.text

    def wrong(plan, name):
        text = right(plan, name)
        if name != "head_1":
            return text
        assert "put(part, sum)" in text
        return text.replace("put(part, sum)", "put(part, mc::RowSums<T, BATCH>())")

    monkeypatch.setattr(checks.head, "text", wrong)
    assert decode.main(arguments(model, fake, "--parts", "checks,ceiling")) == 1
    out = capsys.readouterr().out
    assert "**NO**" in out and "GB/s" not in out
    assert fake.live == 0
    codes = [r["code"] for r in results(model, "ended")]
    assert codes == [0, 0, 0, 0, 0, 1]  # all checks, and nothing behind them
    assert len(codes) == 1 + len({r["title"] for r in results(model, "check")})


def test_without_a_gpu_it_says_so(model, monkeypatch, capsys):
    fake = FakeDriver(built_driver())
    fake.set("devices", 0)
    monkeypatch.setattr(isolated, "run", in_this_process)
    assert decode.main(arguments(model, fake)) == 1
    assert "error[cuda-device]: the driver finds no GPU" in capsys.readouterr().err
    assert [r["unit"] for r in results(model, "ended")] == ["machine"]
    assert decode.main([*arguments(model, fake), "--driver", "/nonexistent/libcuda.so.1"]) == 1
    assert "error[cuda-driver]" in capsys.readouterr().err


@pytest.mark.slow
@needs_both
def test_a_step_that_differs_is_found(model, fake, monkeypatch):
    """Kernels that overlap wrongly give other logits than one by one."""
    capture = programs.Step.capture

    def broken(step, launches):
        graph = capture(step, launches)
        step._memory["tokens"][0].write(np.full(step.program.batch, 7, np.int32))
        return graph

    monkeypatch.setattr(programs.Step, "capture", broken)
    assert decode.main(arguments(model, fake, "--parts", "decode", "--contexts", "9")) == 1
    (same,) = results(model, "same")
    assert not same["passed"] and same["equal"] == 0 and same["largest"] > same["bound"]
    assert not results(model, "timed")


@needs_both
def test_a_prepared_program_needs_neither_compiler_nor_frontend(model, tmp_path, monkeypatch):
    folder = tmp_path / "program"
    # Machine code of one kernel stands for that of all: only where it is kept is looked at.
    one = compile_cubin('extern "C" __global__ void one() {}')
    monkeypatch.setattr(kernels, "compile_cubin", lambda text: one)
    more = ["--model", model, "--contexts", "40,9"]
    assert prepared.main([*more, "-o", str(folder)]) == 0
    count = len(list((folder / "cubins").glob("*.cubin")))
    assert count == 9
    blocked = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("islpy", "lark", "networkx", "tqdm"):
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
sys.path.insert(0, sys.argv[1])
import decode, prepared, kernels
from pathlib import Path
found = prepared.opened(Path(sys.argv[2]))
texts = [*found.texts.values(), *(case.text for case in found.cases()), kernels.probes()]
assert all(found.cubins.find(text) is not None for text in texts)
assert found.cubins.find(texts[0] + " ") is None
print(len(set(texts)))
"""
    done = subprocess.run(
        [sys.executable, "-c", blocked, str(GPU), str(folder)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == count
    with pytest.raises(SystemExit):
        prepared.main(["--model", model])  # nowhere to write it
    assert prepared.main([*more, "-o", str(folder)]) == 0  # again, over its own output
    assert len(list((folder / "cubins").glob("*.cubin"))) == count


@pytest.mark.slow
@needs_both
def test_a_run_goes_on_where_its_time_was_over(model, fake, tmp_path, capsys):
    folder = str(tmp_path / "program")
    prepared.compile_into(Path(folder), model, "f16", 1, 41, 16)
    given = arguments(model, fake, "--program", folder, "--parts", "decode", "--contexts", "9,50")
    clock = iter([0.0, 0.0, 500.0, *[600.0] * 99])
    real, decode.time.monotonic = decode.time.monotonic, lambda: next(clock)
    try:
        assert decode.main(given) == 1
    finally:
        decode.time.monotonic = real
    assert "run it again with --resume" in capsys.readouterr().err
    ended = [r["unit"] for r in results(model, "ended")]
    assert ended == ["machine"]
    assert decode.main([*given, "--resume"]) == 0
    # 50 tokens are more than the program keeps.
    assert [r["unit"] for r in results(model, "ended")] == [
        "machine", "same:9", "step:9",
    ]  # fmt: skip
    assert not (Path(model) / "out" / "program").exists()
    # Units of other contexts are others, whatever their names.
    more = [*given, "--resume", "--budget", "100", "--parts", "ceiling", "--contexts", "8"]
    assert decode.main(more) == 1
    assert [r["unit"] for r in results(model, "ended")][3:] == ["machine"]


@pytest.mark.parametrize(
    "wrong",
    [
        ("--contexts", "-1"),
        ("--repeats", "0"),
        ("--parts", "all"),
        ("--limit", "0"),
    ],
)
def test_bad_options(wrong, tmp_path, capsys):
    with pytest.raises(SystemExit):
        decode.main(["--out", str(tmp_path), *wrong])
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize("page", ["gpu-first-run.md", "cuda.md"])
def test_commands_of_the_pages_are_understood(page):
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    found = re.findall(r"^python benchmarks/gpu/(\w+)\.py(.*?)(?: +# .*)?$", text, re.MULTILINE)
    assert len(found) >= 4
    for script, words in found:
        given = shlex.split(words)
        if script == "decode" and "--help" not in given:
            options = decode._options(given)
            assert options.limit <= options.budget < 600
            if options.unit:
                assert options.unit.partition(":")[0] in {*parts._PLAIN, *parts._NUMBERED}
        elif script == "prepared":
            assert prepared.parser().parse_args(given).out
        elif script in ("steps", "tiny"):
            {"steps": steps, "tiny": tiny}[script].parser().parse_args(given)
        elif script == "rates":
            assert rates.parser().parse_args(given).parts == tuple(rates.PARTS)
    units = set(re.findall(r"`([a-z-]+)(?::N)?`", text)) & {*parts._PLAIN, *parts._NUMBERED}
    assert page == "cuda.md" or units == {*parts._PLAIN, *parts._NUMBERED}


# --- processes and records


def test_a_unit_that_hangs_is_ended_with_what_it_started(tmp_path, monkeypatch):
    script = tmp_path / "hangs.py"
    script.write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "open(sys.argv[1], 'w').write(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(isolated, "COMMAND", (sys.executable, str(script)))
    note = tmp_path / "pid"
    ended = isolated.run([str(note)], 2.0)
    assert ended.code is None and 2 <= ended.seconds < 30
    state = Path(f"/proc/{note.read_text()}/stat")
    for _ in range(100):
        if not state.exists() or state.read_text().split()[2] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("what it started still runs")


@pytest.mark.parametrize("code", [0, 3])
def test_the_code_of_a_unit_is_told(monkeypatch, code):
    monkeypatch.setattr(isolated, "COMMAND", (sys.executable, "-c", f"raise SystemExit({code})"))
    assert isolated.run([], 60.0).code == code


def test_units_run_in_processes_of_their_own(model, capfd):
    """Without a driver, as it is started on a machine with a GPU."""
    given = ["--model", model, "--contexts", "9", "--out", str(Path(model) / "out")]
    assert decode.main([*given, "--driver", "/nonexistent/libcuda.so.1"]) == 1
    assert "error[cuda-driver]" in capfd.readouterr().err
    assert [(r["unit"], r["code"]) for r in results(model, "ended")] == [("machine", 1)]


def test_a_line_that_was_left_half_takes_no_other_with_it(tmp_path):
    records = Records(tmp_path)
    assert records.read() == []
    records.add("first", value=1)
    with open(records.path, "a") as stream:
        stream.write('{"kind": "half", "val')
    records.add("second", value=float("inf"))
    assert [r["kind"] for r in records.read()] == ["first", "second"]


def test_the_last_of_a_unit_counts_in_tables():
    common = {"kind": "check", "title": "embed", "beside_cpu": None, "bound": 1e-4}
    wrong = {**common, "beside_float64": 0.5, "passed": False}
    right = {**common, "beside_float64": 1e-6, "passed": True}
    ended = {"kind": "ended", "unit": "check:0", "seconds": 120.0, "asked": {}}
    text = tables.as_markdown([wrong, {**ended, "code": None}])
    assert "**NO**" in text and "`check:0` did not end in 120 s" in text
    text = tables.as_markdown([wrong, {**ended, "code": 1}, right, {**ended, "code": 0}])
    assert "| yes |" in text and "NO" not in text and "check:0" not in text


# --- what is checked, bytes, references, PyTorch


@pytest.mark.parametrize("cached", [1024, 16384])
def test_counted_bytes_of_llama(cached, tmp_path):
    program = prepared.compile_into(tmp_path, "llama-2-7b", "f16", 1, 16385, 16).program
    found = programs.sizes(program)
    assert (found.heads, found.kv_heads, found.head, found.layers) == (32, 32, 128, 32)
    assert (found.hidden, found.features, found.vocabulary) == (4096, 11008, 32000)
    weights, caches = 6_738_415_616, 32 * 2 * cached * 4096
    row = 4096  # of the table of embeddings
    assert programs.step_bytes(program, cached) == 2 * (weights - 31999 * row + caches)


def test_weights_have_the_scale_of_their_sums(tmp_path):
    """Matrices lie in fragments, whose last extents are those of a tensor core."""
    program = prepared.compile_into(tmp_path, "llama-2-7b", "f16", 1, 65, 16).program
    widths = {}
    for weight in program.weights.values():
        spread = programs.spread_of(weight)
        if weight.fragments:
            widths[round(3 / spread**2)] = weight
        else:
            assert spread == 1.0  # gains
    assert widths.keys() == {4096, 11008}


def plain(sizes, cached, seed=0):
    """Arrays of an attention block in the plain layout."""
    rng = np.random.default_rng(seed)
    s, capacity = sizes, cached + 3
    pool, width = (s.batch, s.kv_heads, capacity, s.head), (s.heads + 2 * s.kv_heads) * s.head
    shapes = {
        "input": (s.batch, s.hidden), "norm": (s.hidden,), "qkv": (width, s.hidden),
        "out": (s.hidden, s.heads * s.head), "keys": pool, "values": pool,
    }  # fmt: skip
    found = {
        name: references.to_words(
            rng.standard_normal(shape) * (shape[-1] ** -0.5 if name in ("qkv", "out") else 1),
            s.dtype,
        )
        for name, shape in shapes.items()
    }
    angles = rng.uniform(0, 6, (capacity, s.head // 2))
    cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    return {**found, "cosines": cosines, "sines": sines}


@pytest.mark.oracle
@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_pytorch_computes_the_same_block(kv_heads, compiles):
    torch = pytest.importorskip("torch")
    sizes = programs.Sizes(2, 96, 4, kv_heads, 32, 64, 50, 1, "f16", 16)
    given = plain(sizes, 21)
    expected = references.plain_block(given, "f16", 21, plain_layers.EPSILON)
    layer = {}
    for name, array in given.items():
        tensor = torch.from_numpy(array.copy())
        layer[name] = tensor if array.dtype == np.float32 else tensor.view(torch.float16).float()
    block = pytorch.Attended(sizes, 21, torch)
    used = (
        torch.compile(block, fullgraph=True, dynamic=False, backend="eager") if compiles else block
    )
    with torch.inference_mode():
        found = used(layer["input"], layer).numpy()
    # Its keys and values are f32 here; those of the reference are rounded to f16.
    assert np.abs(found - expected).max() <= 1e-3


@pytest.mark.oracle
def test_pytorch_decodes_a_whole_step():
    torch = pytest.importorskip("torch")
    sizes = programs.Sizes(1, 96, 4, 2, 32, 64, 50, 1, "f16", 16)
    given = plain(sizes, 5)
    layer = {n: torch.from_numpy(a.copy()) for n, a in given.items()}
    layer = {
        n: t if t.dtype == torch.float32 else t.view(torch.float16).float()
        for n, t in layer.items()
    }
    noise = np.random.default_rng(1)
    extra = {"gate_up": (128, 96), "down": (96, 64), "matrix": (50, 96)}
    drawn = {n: noise.standard_normal(s).astype(np.float32) * 0.1 for n, s in extra.items()}
    layer |= {n: torch.from_numpy(a) for n, a in drawn.items()} | {"norm_of_ffn": layer["norm"]}
    head = {"norm": layer["norm"], "matrix": layer["matrix"]}
    one = pytorch.Layer(pytorch.Attended(sizes, 5, torch))
    with torch.inference_mode():
        found = pytorch.logits(torch, one(layer["input"], layer), head).numpy()
    x = references.plain_block(given, "f16", 5, plain_layers.EPSILON)
    gain = references.values(given["norm"], "f16")
    gate, up = np.split(
        references.normed(x, gain, plain_layers.EPSILON) @ drawn["gate_up"].T, 2, axis=1
    )
    x = x + gate / (1 + np.exp(-gate)) * up @ drawn["down"].T
    expected = references.normed(x, gain, plain_layers.EPSILON) @ drawn["matrix"].T
    assert np.abs(found - expected).max() <= 2e-3


def test_clocks_are_read_where_they_can_be(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tables.clocks() == {}
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '1980 MHz, 1980 MHz, 3201 MHz, 300 W, 700 W, 580.1'\n")
    program.chmod(0o755)
    assert tables.clocks()["clocks.sm"] == "1980 MHz"
    assert tables.clocks()["driver_version"] == "580.1"
