"""Decode steps on the machine of a GPU.

On the fake driver launches run in the executor, so that results show what was given to kernels:
they are those of the machine on the CPU, bit for bit. Tests marked ``gpu`` run on a GPU.
"""

import json

import numpy as np
import pytest
from fake_driver import FakeDriver, built_driver, gpu, know_products
from reduced import each

from meshc.backends.cuda import CpuMachine, LanguageModel, from_json
from meshc.backends.cuda.driver import gpu_machine
from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.driver.gpu_machine import GpuMachine
from meshc.backends.cuda.executor import CXX, QUICK, Library
from meshc.backends.cuda.toolchain.cubin import KernelResources
from meshc.backends.cuda.toolchain.toolkit import Cubin, compile_cubin
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics, MeshcError

CONFIG = {
    "model_type": "llama", "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 200,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 256,
    "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "float16",
}  # fmt: skip
TOKENS = (17, 3, 199, 0, 42)

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    """A compiled decode step, with kernels that read prompts: its program, texts and weights."""
    return compiled(tmp_path_factory.mktemp("model"), chunk=16)


def compiled(folder, **options):
    (folder / "config.json").write_text(json.dumps(CONFIG))
    report = Diagnostics()
    request = CompileRequest(**{"target": "cuda", "dtype": "f16", "seq": 64} | options)
    result = compile_loaded(load_any(str(folder), report), request, (), report)
    program, rng = from_json(result.files["manifest.json"]), np.random.default_rng(1)
    shapes = {
        source: shape
        for weight in program.weights.values()
        for source, shape in zip(weight.sources, weight.source_shapes, strict=True)
    }
    weights = {source: rng.standard_normal(shape) * 0.1 for source, shape in shapes.items()}
    return program, result.files, weights


def logits(step, machine):
    """Logits of each of the tokens."""
    program, _, weights = step
    model = LanguageModel(program, machine, weights)
    return np.stack([model.step([token], [n])[0] for n, token in enumerate(TOKENS)])


@pytest.fixture(scope="module")
def expected(step):
    return logits(step, CpuMachine(step[0].kernels, step[1], toolchain=QUICK))


@pytest.fixture
def fake(step):
    """The fake driver, whose kernels run in the executor."""
    return driver_of(step)


def driver_of(step):
    found, (program, texts, _) = FakeDriver(built_driver()), step
    know_products(found)
    for file in {kernel.file for kernel in program.kernels.values()}:
        library = Library(texts[file], toolchain=QUICK)._library
        found.know(compile_cubin(texts[file]), lambda name, at=library: getattr(at, f"run_{name}"))
    return found


@pytest.mark.cuda_compiler
def test_a_step_is_captured_once_and_computes_what_the_cpu_does(step, expected, fake):
    program, texts, _ = step
    with Device(library=fake.path) as device:
        found = logits(step, GpuMachine(device, program.device, program.kernels, texts))
    assert (found == expected).all()
    assert len(fake.calls("cuStreamBeginCapture_v2")) == 1
    assert len(fake.calls("cuGraphLaunch")) == len(TOKENS)
    launches = fake.calls("cuLaunchKernelEx")
    assert len(launches) == len(program.launches())
    # A grid whose blocks wait for each other starts behind all of the one in front.
    assert not any("programmatic" in line for line in launches)
    assert fake.live == 0


@pytest.mark.cuda_compiler
@pytest.mark.parametrize("length", each([3, 19], 2))
def test_a_prompt_in_chunks_computes_what_the_cpu_does(length, step, fake):
    """One chunk, or two of which only the second gives logits, then decode steps: two graphs or
    three."""
    program, texts, weights = step
    prompt, answers = [n * 7 % 200 for n in range(length)], []
    with Device(library=fake.path) as device:
        for machine in (
            CpuMachine(program.kernels, texts, toolchain=QUICK),
            GpuMachine(device, program.device, program.kernels, texts),
        ):
            rows, model = [], LanguageModel(program, machine, weights)
            list(model.generate(prompt, 3, lambda _, row, to=rows: to.append(row)))
            answers.append(np.array(rows))
    assert (answers[0] == answers[1]).all()
    lists = [program.prefills[0].launches(True)]
    if length > 16:
        lists.insert(0, program.prefills[0].launches(False))
    assert len(fake.calls("cuStreamBeginCapture_v2")) == len(lists) + 1
    assert len(fake.calls("cuGraphLaunch")) == len(lists) + 2
    assert fake.live == 0


class Lent:
    """An array of another library in memory of the device, as arrays of GPUs describe themselves,
    zeros at first."""

    def __init__(self, device, buffer):
        self.memory = device.allocate(buffer.bytes)
        self.memory.fill()
        self.__cuda_array_interface__ = {"data": (int(self.memory.address()), False)}


@pytest.mark.cuda_compiler
def test_caches_can_be_memory_of_another_library(step, expected, fake):
    """Two sets that take turns: each has its own tokens, and what a step was captured with is not
    what it is launched with. Neither is freed."""
    program, texts, weights = step
    states = {name: each for name, each in program.buffers.items() if each.role == "state"}
    with Device(library=fake.path) as device:
        machine = GpuMachine(device, program.device, program.kernels, texts)
        model = LanguageModel(program, machine, weights)
        sets = [{name: Lent(device, each) for name, each in states.items()} for _ in range(2)]
        found = [[], []]
        for number in (0, 0, 1, 0, 1):
            for name, memory in sets[number].items():
                machine.lend(name, memory)
            position = len(found[number])
            found[number].append(model.step([TOKENS[position]], [position])[0])
        with pytest.raises(TypeError):
            machine.lend(next(iter(states)), np.zeros(3))
        assert len(fake.calls("cuStreamBeginCapture_v2")) == 4
        assert len(fake.calls("cuMemFree_v2")) == len(states)
    for rows in found:
        assert (np.array(rows) == expected[: len(rows)]).all()
    assert fake.live == 0


@pytest.mark.slow
@pytest.mark.cuda_compiler
def test_a_step_has_the_blocks_that_a_gpu_holds_at_once(tmp_path):
    """A part of a GPU, or one of fewer multiprocessors: all blocks start together, or none."""
    step = compiled(tmp_path)
    program, texts, _ = step
    most = program.kernels["step"].blocks
    wanted = logits(step, CpuMachine(program.kernels, texts, toolchain=QUICK))
    for cores, blocks in ((132, most), (3, min(6, most)), (1, 2)):
        fake = driver_of(step)
        fake.set("multiprocessors", cores)
        with Device(library=fake.path) as device:
            found = logits(step, GpuMachine(device, program.device, program.kernels, texts))
        assert (found == wanted).all()
        (line,) = fake.calls("cuLaunchKernelEx")
        assert f" grid={blocks} " in line and " cooperative" in line
        assert "programmatic" not in line


@pytest.mark.cuda_compiler
def test_a_grid_that_meets_and_finds_no_room_is_refused(tmp_path):
    step = compiled(tmp_path)
    program, texts, _ = step
    fake = driver_of(step)
    fake.set("blocks", 0)
    with (
        Device(library=fake.path) as device,
        pytest.raises(MeshcError, match=r"\[cuda-cluster\].*holds 0 of them at once"),
    ):
        GpuMachine(device, program.device, program.kernels, texts)


@pytest.mark.slow
@pytest.mark.cuda_compiler
def test_a_prompt_read_at_once_computes_what_the_cpu_does(tmp_path):
    """A prompt in one chunk, then decode steps: two graphs, which prompts of other lengths have."""
    step = compiled(tmp_path, chunk=64)
    (program, texts, weights), fake = step, driver_of(step)
    prompt, answers = [n * 7 % 200 for n in range(19)], []
    with Device(library=fake.path) as device:
        for machine in (
            GpuMachine(device, program.device, program.kernels, texts),
            CpuMachine(program.kernels, texts, toolchain=QUICK),
        ):
            model, rows = LanguageModel(program, machine, weights), []
            list(model.generate(prompt, 3, lambda _, row, to=rows: to.append(row)))
            rows += [model.prefill(prompt[:7]), model.prefill(prompt * 3)]
            answers.append(np.array(rows))
    assert (answers[0] == answers[1]).all()
    assert len(fake.calls("cuStreamBeginCapture_v2")) == 2
    assert len(fake.calls("cuGraphLaunch")) == 5
    assert fake.live == 0


@pytest.mark.cuda_compiler
def test_checked_steps_wait_for_every_kernel(step, expected, fake):
    program, texts, _ = step
    with Device(library=fake.path) as device:
        found = logits(
            step, GpuMachine(device, program.device, program.kernels, texts, checked=True)
        )
        assert (found == expected).all()
        waits = len(fake.calls("cuStreamSynchronize"))
    launches = fake.calls("cuLaunchKernelEx")
    assert len(launches) == len(TOKENS) * len(program.launches())
    assert waits == len(launches) + len(TOKENS)  # logits are read
    assert not any("programmatic" in line for line in launches)
    assert not fake.calls("cuStreamBeginCapture_v2")


@pytest.mark.cuda_compiler
def test_another_step_or_memory_is_captured_anew(step, fake):
    program, texts, weights = step
    with Device(library=fake.path) as device:
        machine = GpuMachine(device, program.device, program.kernels, texts)
        model = LanguageModel(program, machine, weights)
        model.step([1], [0])
        machine.run(program.prefills[0].launches(True)[:1])
        machine.store("tokens", np.array([5], np.int32))
        assert machine.read("tokens").tolist() == [5]
        machine.run(program.prefills[0].launches(True)[:1])
        assert len(fake.calls("cuGraphExecDestroy")) == 2
    assert len(fake.calls("cuStreamBeginCapture_v2")) == 3
    assert fake.live == 0


@pytest.mark.cuda_compiler
def test_a_fault_in_a_checked_step_names_the_kernel(step, fake):
    program, texts, weights = step
    first = program.launches()[0][0].kernel
    refused = pytest.raises(MeshcError, match=rf"\[cuda-fault\]: kernel '{first}' failed")
    with refused, Device(library=fake.path) as device:
        machine = GpuMachine(device, program.device, program.kernels, texts, checked=True)
        model = LanguageModel(program, machine, weights)
        fake.fault(700)
        model.step([1], [0])


@pytest.mark.cuda_compiler
def test_a_model_that_does_not_fit_is_refused(step, fake):
    program, texts, weights = step
    fake.set("memory", 1 << 18)
    refused = pytest.raises(MeshcError, match=r"\[cuda-memory\]")
    with refused, Device(library=fake.path) as device:
        LanguageModel(program, GpuMachine(device, program.device, program.kernels, texts), weights)
    assert fake.live == 0


@pytest.mark.cuda_compiler
def test_kernels_that_do_not_compile_are_refused(step, fake):
    program, texts, _ = step
    file = program.kernels["step"].file
    broken = texts | {file: texts[file].replace("__global__", "__global", 1)}
    refused = pytest.raises(MeshcError, match=r"\[cuda-toolkit\]: a kernel cannot be compiled")
    with refused, Device(library=fake.path) as device:
        GpuMachine(device, program.device, program.kernels, broken)
    assert fake.live == 0


def test_parts_of_layers_are_given_by_address(step, monkeypatch):
    """Without a compiler: what a launch names becomes an address."""
    program, texts, _ = step
    launches = program.prefills[0].launches(True)
    by_file = {}
    chunk = {n: k for n, k in program.kernels.items() if k.file.startswith("chunk")}
    for name, kernel in chunk.items():
        by_file.setdefault(kernel.file, {})[name] = kernel
    sizes = {
        launch.kernel: tuple(4 if isinstance(a, int) else 8 for a in launch.arguments)
        for launch, _ in launches
    }

    def cubin(text, *_):
        (file,) = (name for name in by_file if texts[name] is text)
        kernels = {
            name: KernelResources(32, 0, 0, 0, kernel.threads, None, sizes[name])
            for name, kernel in by_file[file].items()
        }
        return Cubin(b"\x7fELF", "sm_90a", "nvcc 13.0", kernels, ())

    monkeypatch.setattr(gpu_machine, "compile_cubin", cubin)
    fake = FakeDriver(built_driver())
    with Device(library=fake.path) as device:
        machine = GpuMachine(device, program.device, chunk, texts)
        for file in by_file:
            fake.know(cubin(texts[file]))
        for name in (*program.weights, *program.buffers):
            machine.store(name, np.zeros((2, 8), np.float32))
        machine.run(launches)
        starts = {name: int(machine._memory[name][0].address()) for name in machine._memory}
        for line, (launch, layer) in zip(fake.calls("cuLaunchKernelEx"), launches, strict=True):
            words = [w for w in line.split(" ")[6:] if w != "programmatic"]
            for word, argument in zip(words, launch.arguments, strict=True):
                value = int.from_bytes(
                    bytes.fromhex(word), "little", signed=isinstance(argument, int)
                )
                if isinstance(argument, int):
                    assert value == argument
                else:
                    name, _, part = argument.removesuffix("]").partition("[")
                    row = layer if argument.endswith("[]") else int(part or 0)
                    assert value == starts[name] + 32 * row


@pytest.mark.gpu
@pytest.mark.cuda_compiler
def test_steps_in_turn_on_a_gpu_agrees_with_the_cpu(tmp_path):
    step = compiled(tmp_path)
    program, texts, _ = step
    wanted = logits(step, CpuMachine(program.kernels, texts, toolchain=QUICK))
    with gpu() as device:
        machine = GpuMachine(device, program.device, program.kernels, texts)
        for _ in range(3):  # what the last launch left is what the next one needs
            found = logits(step, machine)
            assert np.abs(found - wanted).max() <= 1e-3 * np.abs(wanted).max()


@pytest.mark.gpu
@pytest.mark.cuda_compiler
@pytest.mark.parametrize("checked", [False, True])
def test_a_step_on_a_gpu_agrees_with_the_cpu(step, expected, checked):
    program, texts, _ = step
    with gpu() as device:
        found = logits(
            step, GpuMachine(device, program.device, program.kernels, texts, checked=checked)
        )
    # The approximate exponential and inverse root of the device differ from those of the CPU.
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()
