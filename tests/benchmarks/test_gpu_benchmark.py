"""The benchmark of CUDA kernels without a GPU: launches run in the executor on a fake driver.

Times mean nothing here, and none is looked at.
"""

import json
from pathlib import Path

import baselines
import ceiling
import checks
import decode
import kernels
import numpy as np
import programs
import pytest
import pytorch
import references
import tables
from fake_driver import FakeDriver, built_driver

from meshc.backends.cuda.executor import CXX, Grid, Library, Mode
from meshc.backends.cuda.toolkit import compile_cubin, disassemble, opcodes
from meshc.support.diagnostics import MeshcError
from meshc.support.native import Toolchain

CONFIG = {
    "model_type": "llama", "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "intermediate_size": 192, "num_hidden_layers": 3, "vocab_size": 200,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 256,
    "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "float16",
}  # fmt: skip
FLAGS = ("-std=c17", "-O2", "-shared", "-fPIC", "-w")
THEIRS = Toolchain("C", "CC", ("cc", "gcc", "clang"), FLAGS)


needs_executor = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


def needs_both(test):
    return pytest.mark.cuda_compiler(needs_executor(test))


@pytest.fixture
def model(tmp_path):
    """The folder of a tiny model's configuration."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path)


@pytest.fixture
def fake(monkeypatch):
    """The fake driver; whatever the benchmark compiles runs in the executor."""
    found, known = FakeDriver(built_driver()), set()
    found.set("memory", 1 << 29)

    def compiled(text):
        cubin = compile_cubin(text)
        if text not in known:
            known.add(text)
            library = Library(text)._library
            found.know(cubin, lambda name: getattr(library, f"run_{name}"))
        return cubin

    monkeypatch.setattr(kernels, "compile_cubin", compiled)
    monkeypatch.setattr(ceiling, "ROUNDS", 2)
    monkeypatch.setattr(checks, "CLUSTERS", (2, 16))  # each is compiled twice
    return found


@pytest.fixture
def theirs(tmp_path):
    """A library with the entries ``block`` and ``refuses``."""
    text = Path(__file__).with_name("their_block.c").read_text(encoding="utf-8")
    return str(THEIRS.build({"their_block.c": text}, {}, "their-block"))


def arguments(model, *more):
    return [
        "--model", model, "--contexts", "40,9", "--repeats", "2", "--read-mib", "1", "--no-torch",
        *more,
    ]  # fmt: skip


@needs_both
def test_all_of_it_runs(model, fake, theirs, capsys):
    more = ("--json", "--theirs", theirs, "--entry", "block")
    code = decode.main(arguments(model, *more), fake.path)
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    titles = [check["title"] for check in found["checks"]]
    for part in ("split_token, clusters of 16", "split_head, clusters of 2", "2 on a core", "bf16",
                 "batch 2, 0 and 9 cached", "ffn_inner", "ffn_outer", "head", "embed"):  # fmt: skip
        assert any(part in title for title in titles), part
    # The device is the executor here, so these are its errors, and none beside itself.
    assert all(0 <= check["beside_float64"] < 1e-5 for check in found["checks"])
    assert all(check["beside_cpu"] == 0 for check in found["checks"])
    depths = {read["in_flight"] // 1024 for read in found["reads"]}
    assert depths == {32, 64, 96, 128, 160, 192}
    assert [size for size, *_ in found["clusters"]] == list(range(1, 17))
    rows = [(c["of"], c["cached"], c["timed"]["name"]) for c in found["compared"]]
    name = f"{Path(theirs).stem}: block"
    for cached in (40, 9):
        assert {("block", cached, "meshc"), ("block", cached, name)} <= set(rows)
        assert ("step", cached, "meshc") in rows
    errors = [c["error"] for c in found["compared"] if c["timed"]["name"] == name]
    assert all(0 < error < 1e-3 for error in errors)  # outputs are rounded to f16
    assert not any("finite" in note for note in found["notes"])
    assert any("no measure of memory" in note for note in found["notes"])
    assert fake.live == 0


@needs_both
def test_tables_go_to_a_file(model, fake, tmp_path, capsys):
    path = tmp_path / "table.md"
    parts = ("--parts", "ceiling,decode", "--output", str(path), "--contexts", "8")
    assert decode.main(arguments(model, *parts), fake.path) == 0
    text = path.read_text()
    assert "| block | 8 | meshc |" in text and "Read ceiling" in text and "grid barrier" in text
    assert not capsys.readouterr().out


@needs_both
def test_a_wrong_kernel_ends_the_run(model, fake, monkeypatch, capsys):
    right = checks.rows.text

    def wrong(plan, name):
        none = "mc::RowSums<T, BATCH>()"
        return right(plan, name).replace("put(part, sum)", f"put(part, {none})")

    monkeypatch.setattr(checks.rows, "text", wrong)
    assert decode.main(arguments(model), fake.path) == 1
    out = capsys.readouterr().out
    assert "**NO**" in out and "GB/s" not in out
    assert fake.live == 0


def test_without_a_gpu_it_says_so(model, capsys):
    fake = FakeDriver(built_driver())
    fake.set("devices", 0)
    assert decode.main(arguments(model), fake.path) == 1
    assert capsys.readouterr().err.startswith("error[cuda-device]: the driver finds no GPU")
    assert decode.main(arguments(model), "/nonexistent/libcuda.so.1") == 1
    assert capsys.readouterr().err.startswith("error[cuda-driver]")


@needs_both
@pytest.mark.parametrize(
    ("entry", "words"), [("refuses", "returned 7 for layer 0"), ("nothing", "cannot be used")]
)
def test_another_library_that_refuses(model, fake, theirs, entry, words, capsys):
    more = ("--parts", "decode", "--theirs", theirs, "--entry", entry)
    assert decode.main(arguments(model, *more), fake.path) == 1
    assert words in capsys.readouterr().err
    assert fake.live == 0


@pytest.mark.parametrize(
    "wrong", [("--contexts", "-1"), ("--repeats", "0"), ("--parts", "all"), ("--entry", "f")]
)
def test_bad_options(wrong, capsys):
    with pytest.raises(SystemExit):
        decode.main(wrong)
    assert "error:" in capsys.readouterr().err


# --- the device's probes


@needs_both
def test_probes_fit_and_copy_in_bulk():
    cubin = compile_cubin(kernels.probes())
    for name, needs in cubin.kernels.items():
        assert needs.stack_bytes == needs.spill_bytes == needs.shared_bytes == 0, name
    try:
        found = opcodes(disassemble(cubin))
    except MeshcError:
        pytest.skip("there is no nvdisasm")
    for stages, kib in ceiling.RINGS:
        assert found[f"read_{stages}x{kib}"]["UBLKCP.S.G"]
    assert not any({"LDL", "STL"} & set(count) for count in found.values())


@pytest.fixture(scope="module")
def probes():
    return Library(kernels.probes())


@needs_executor
@pytest.mark.parametrize("runs", [0, 1])
@pytest.mark.parametrize(("stages", "kib"), ceiling.RINGS)
def test_every_tile_is_read_once(probes, stages, kib, runs):
    blocks, tiles = 5, 23
    words = np.random.default_rng(0).integers(0, 1 << 32, (tiles, kib * 256), np.uint32)
    sums = np.zeros(blocks, np.uint32)
    grid = Grid(blocks, 64, 1, ceiling.BARRIER_BYTES + stages * kib * 1024)
    given = [words, sums, np.int32(tiles), np.int32(runs)]
    counts = probes.run(f"read_{stages}x{kib}", grid, given, Mode("random", True))
    assert counts.copied_bytes == words.nbytes
    assert sums.sum(dtype=np.uint32) == words[:, 0].sum(dtype=np.uint32)


@needs_executor
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_noise_is_uniform_and_differs_by_seed(probes, dtype):
    found = np.zeros((2, 20_001), np.uint16)
    for seed, to in enumerate(found):
        given = [to, np.uint64(to.size), np.float32(0.5), np.uint32(seed)]
        probes.run(f"noise_{dtype}", Grid(3, 256, 1, 0), given)
    first, second = references.values(found, dtype)
    assert np.abs(first).max() <= 0.5 and abs(first.mean()) < 0.01
    assert abs(first.std() - 0.5 / 3**0.5) < 0.01
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.03


@needs_executor
@pytest.mark.parametrize("size", ceiling.MEETING_SIZES)
def test_meetings_happen_as_often_as_is_said(probes, size):
    met = np.zeros(size, np.uint32)
    probes.run("cluster_barrier", Grid(size, 288, size, 0), [met, np.int32(5)])
    assert (met == 5).all()
    probes.run("peer_load", Grid(size, 32, size, 128), [met, np.int32(6)])
    assert (met == 6).all()
    grid = Grid(size, 256, size, 16 + 3 * 4 * 132)
    for mode in (Mode(), Mode("starve_block", True), Mode("random")):
        probes.run(f"reduce_{size}", grid, [met, np.int32(7)], mode)
        assert (met == 7 * size).all()
    grid = Grid(size, 288, 1, 0, whole_grid=True)
    probes.run("grid_barrier", grid, [met, np.int32(3), np.zeros(1, np.uint32)])
    assert (met == 3).all()


# --- what is checked, bytes, references, PyTorch


@pytest.mark.parametrize("model", ["llama-2-7b", "llama-3-8b", "smollm2-135m"])
def test_the_block_of_a_step_is_among_those_checked(model):
    program, texts = programs.compiled(model, "f16", 1, 1025, 16)
    chosen = programs.choice(program, texts)
    shape = programs.sizes(program).attention()
    plan, cached = next(checks._plans(shape, chosen, (64, 1024)))
    assert cached == (1024,)
    assert plan.cluster == program.kernels["attention_block"].cluster
    assert checks.attention.text(plan, "attention_block") == texts["attention_block.cu"]


@pytest.mark.parametrize(
    ("cached", "megabytes"), [(1024, 151.0), (2048, 167.8), (4096, 201.3), (16384, 402.7)]
)
def test_counted_bytes_of_llama(cached, megabytes):
    program, _ = programs.compiled("llama-2-7b", "f16", 1, 16385, 16)
    found = programs.sizes(program)
    assert round(programs.block_bytes(found, cached) / 1e6, 1) == megabytes
    matrices = 32 * 3 * 4096 * 11008 + 4096 * 32000
    gains = 4096 * (2 * 32 + 1)
    rest = 2 * (matrices + gains + 4096)  # and a row of the embedding
    blocks = 32 * programs.block_bytes(found, cached)
    assert programs.step_bytes(program, cached) == blocks + rest


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
    expected = references.plain_block(given, "f16", 21, baselines.EPSILON)
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
    x = references.plain_block(given, "f16", 5, baselines.EPSILON)
    gain = references.values(given["norm"], "f16")
    gate, up = np.split(
        references.normed(x, gain, baselines.EPSILON) @ drawn["gate_up"].T, 2, axis=1
    )
    x = x + gate / (1 + np.exp(-gate)) * up @ drawn["down"].T
    expected = references.normed(x, gain, baselines.EPSILON) @ drawn["matrix"].T
    assert np.abs(found - expected).max() <= 2e-3


def test_clocks_are_read_where_they_can_be(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tables._clocks() == {}
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '1980 MHz, 1980 MHz, 3201 MHz, 300 W, 700 W, 580.1'\n")
    program.chmod(0o755)
    assert tables._clocks()["clocks.sm"] == "1980 MHz"
    assert tables._clocks()["driver_version"] == "580.1"
