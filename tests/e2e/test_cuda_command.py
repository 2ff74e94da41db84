"""``meshc run --backend cuda`` as a process: what is missing is an error in words and exit 1."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from reduced import each

from meshc.backends.cuda.executor import CXX
from meshc.backends.cuda.packing import kept
from meshc.backends.cuda.toolchain.toolkit import compile_cubin
from meshc.cli import main
from meshc.driver import emitted
from meshc.support.diagnostics import MeshcError
from meshc.support.native import Toolchain

ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests" / "backends" / "cuda" / "driver"
C = Toolchain("C", "CC", ("cc", "gcc", "clang"), ("-std=c11", "-O1", "-fPIC", "-w"))
# Its kernels are those of the model in test_cuda_gpu_machine.py.
CONFIG = {
    "model_type": "llama", "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "intermediate_size": 192, "num_hidden_layers": 1, "vocab_size": 200,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 64,
    "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "float16",
}  # fmt: skip

pytestmark = pytest.mark.skipif(C.path() is None or CXX.path() is None, reason="no C compiler")


def checkpoint(folder):
    """Random weights of CONFIG, as a checkpoint of Hugging Face lies in a folder."""
    hidden, query, key, inner, words = 128, 256, 128, 192, 200
    layer = {
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (query, hidden), "self_attn.k_proj": (key, hidden),
        "self_attn.v_proj": (key, hidden), "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    shapes = {f"model.layers.0.{name}.weight": shape for name, shape in layer.items()}
    shapes |= {"model.embed_tokens.weight": (words, hidden), "model.norm.weight": (hidden,)}
    rng, header, data = np.random.default_rng(0), {}, b""
    for name, shape in shapes.items():
        values = (rng.standard_normal(shape) * 0.1).astype(np.float16).tobytes()
        header[name] = {
            "dtype": "F16",
            "shape": list(shape),
            "data_offsets": [len(data), len(data) + len(values)],
        }
        data += values
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


def meshc(*words, **variables):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", "meshc", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A compiled directory, its checkpoint, and a folder with the fake as the driver."""
    place = tmp_path_factory.mktemp("cuda")
    (place / "model").mkdir()
    model = checkpoint(place / "model")
    out, driver = str(place / "out"), place / "driver"
    done = meshc("compile", model, "--target", "cuda", "--dtype", "f16", "--seq", "32", "-o", out)
    assert done.returncode == 0, done.stderr
    # Some versions of NVRTC load the driver, and none is made for the fake.
    with suppress(MeshcError):  # where there is no compiler, what needs one is skipped
        for kernels in sorted((place / "out").rglob("*.cu")):
            compile_cubin(kernels.read_text(encoding="utf-8"))
    driver.mkdir()
    sources, headers = (
        {p.name: p.read_text(encoding="utf-8") for p in FAKE.glob(f"*.{kind}")} for kind in "ch"
    )
    library = C.build(sources, headers, "fake-driver")
    shutil.copy(library, driver / "libcuda.so.1")
    return out, model, str(driver)


def run(program, backend="cuda", driver=None, **variables):
    out, model, fake = program
    words = ("--prompt-ids", "5,9", "--max-tokens", "2", "--weights", model)
    if backend is not None:
        words += ("--backend", backend)
    return meshc(
        "run", out, *words, LD_LIBRARY_PATH=fake if driver is None else driver, **variables
    )


@pytest.mark.cuda_compiler
@pytest.mark.parametrize(
    ("variables", "error"),
    each(
        [
            ({"FAKE_DRIVER_SET": "devices=0"}, "error[cuda-device]: the driver finds no GPU"),
            ({"FAKE_DRIVER_SET": "major=8"}, "error[cuda-device]: no device runs these kernels"),
            (
                {"FAKE_DRIVER_SET": "version=11080"},
                "error[cuda-driver]: the driver is for CUDA 11.8",
            ),
            (
                {"FAKE_DRIVER_FAIL": "cuModuleLoadData=222"},
                "error[cuda-driver]: the driver, for CUDA",
            ),
            ({"FAKE_DRIVER_SET": "memory=65536"}, "error[cuda-memory]: "),
            ({"FAKE_DRIVER_SET": "clusters=0"}, "error[cuda-cluster]: kernel '"),
            ({"FAKE_DRIVER_FAIL": "cuStreamSynchronize=700"}, "error[cuda-fault]: a kernel failed"),
            (
                {"NVCC": "/nonexistent/nvcc", "MESHC_CUDA_COMPILER": ""},
                "error[cuda-toolkit]: $NVCC names no",
            ),
        ],
        4,
    ),
)
def test_what_is_wrong_is_said_and_the_exit_is_1(program, variables, error):
    done = run(program, **variables)
    assert done.returncode == 1
    assert done.stderr.startswith(error) or f"\n{error}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def no_driver(tmp_path):
    """A folder whose driver is no library."""
    (tmp_path / "libcuda.so.1").write_bytes(b"no library")
    return {"LD_LIBRARY_PATH": str(tmp_path)}


def test_the_device_is_opened_before_anything_is_compiled_or_read(program, no_driver, tmp_path):
    out, model, fake = program
    words = ("--target", "cuda", "--prompt-ids", "5", "--weights", str(tmp_path / "none"))
    words += ("--backend", "cuda", "--time-passes")
    for place in (out, model):
        missing = meshc("run", place, *words, **no_driver)
        assert (missing.returncode, missing.stdout) == (1, "")
        assert "error[cuda-driver]: NVIDIA's driver is not installed" in missing.stderr
        assert "fuse-chunk" not in missing.stderr
    old = meshc("run", model, *words, LD_LIBRARY_PATH=fake, FAKE_DRIVER_SET="major=8")
    assert "error[cuda-device]: no device runs these kernels" in old.stderr
    assert "fuse-chunk" not in old.stderr


def test_without_a_gpu_the_usual_backend_is_the_cpu_and_said_to_be(program, no_driver):
    out, model, _ = program
    words = ("--prompt-ids", "5,9", "--max-tokens", "2", "--weights", model)
    usual = meshc("run", out, *words, **no_driver)
    assert usual.returncode == 0, usual.stderr
    assert usual.stderr.startswith("remark[backend]: kernels run on the CPU, which takes long: ")
    asked = meshc("run", out, *words, "--backend", "cuda-cpu", **no_driver)
    assert (asked.stdout, asked.stderr) == (usual.stdout, "")


def test_packed_weights_are_kept_beside_the_program(tmp_path, monkeypatch, capsys):
    """Or in the user's cache, if it was compiled for the run; with --no-cache nowhere."""
    monkeypatch.setattr(kept, "LEAST_BYTES", 1)
    home = tmp_path / "home"
    monkeypatch.setattr(emitted, "cache_folder", lambda: home)
    model, out = checkpoint(tmp_path), tmp_path / "out"
    cuda = ("--target", "cuda", "--seq", "32")
    assert main(["compile", model, *cuda, "-o", str(out)]) == 0
    asked = ("--prompt-ids", "5,9", "--max-tokens", "2", "--backend", "cuda-cpu")
    here = ("run", str(out), "--weights", model, *asked)
    for words, place in ((here, out), (("run", model, *cuda, *asked), home)):
        capsys.readouterr()
        said = [(main([*words, "--no-cache"]), capsys.readouterr())]
        assert not list(place.glob("packed/*/*"))
        for _ in range(2):
            said.append((main(list(words)), capsys.readouterr()))
            (file,) = place.glob("packed/*/*.packed")
        file.write_bytes(bytes(file.stat().st_size))
        said.append((main(list(words)), capsys.readouterr()))
        assert file.read_bytes().strip(b"\0")
        assert said == [said[0]] * 4 and said[0][0] == 0
    assert main(["compile", model, *cuda, "-o", str(out)]) == 0


@pytest.mark.cuda_compiler
def test_the_usual_backend_is_a_gpu_that_runs_the_kernels(program):
    done = run(program, backend=None)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("remark[backend]: kernels run on ")
    assert "(compute capability 9.0)" in done.stderr


@pytest.mark.slow
@pytest.mark.cuda_compiler
def test_a_session_on_the_fake_driver_ends_well(program):
    """Its kernels compute nothing; the tokens are those of logits that are all alike."""
    done = run(program)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="there is no GPU")
def test_tokens_on_a_gpu_are_those_on_the_cpu(program):
    words = os.environ.get("LD_LIBRARY_PATH", "")
    found = run(program, driver=words)
    if "error[cuda-driver]" in found.stderr or "error[cuda-device]" in found.stderr:
        pytest.skip(found.stderr.splitlines()[0])
    assert found.returncode == 0, found.stderr
    assert found.stdout == run(program, backend="cuda-cpu", driver=words).stdout


@pytest.mark.slow
def test_several_gpus_give_the_tokens_of_one(tmp_path):
    """A directory that serves all ranks, run on emulated GPUs, beside one GPU's program."""
    model, asked = checkpoint(tmp_path), ("--prompt-ids", "5,17", "--max-tokens", "3", "--json")
    cpu = ("--target", "cuda", "--backend", "cuda-cpu", "--seq", "16")
    alone = meshc("run", model, *cpu, *asked)
    out = str(tmp_path / "program")
    made = meshc("compile", model, "--target", "cuda", "--seq", "16", "--gpus", "2", "-o", out)
    assert made.returncode == 0, made.stderr
    assert "2 GPUs, which meet 3 times in a step (multimem)" in made.stdout + made.stderr
    together = meshc("run", out, "--weights", model, "--backend", "cuda-cpu", *asked)
    assert together.returncode == 0, together.stderr
    tokens = [json.loads(found.stdout)["tokens"] for found in (alone, together)]
    assert tokens[0] == tokens[1] and len(tokens[0]) == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--gpus", "17"), "--gpus is 17, not 1 to 16"),
        (("--gpus", "2", "--collectives", "mail"), "--collectives cannot be 'mail'"),
        (("--device", "h100x8"), "device h100x8 is a node of several"),
        (("--target", "python", "--gpus", "2"), "programs for --target python do not take it"),
    ],
)
def test_what_no_program_of_several_gpus_is(words, told, tmp_path, capsys):
    model = str(tmp_path / "config.json")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    target = () if "--target" in words else ("--target", "cuda")
    assert main(["compile", model, *target, *words, "-o", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "error[bad-argument]" in said and told in said
