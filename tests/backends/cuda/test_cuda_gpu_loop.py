"""Several steps of decoding in one launch of a GPU: tokens are those of the machine on the CPU, and
the host has little to do. On the fake driver, whose launches run in the executor or nowhere."""

import time

import pytest
from fake_driver import FakeDriver, built_driver, gpu, know_products
from reduced import only
from test_cuda_gpu_machine import compiled, driver_of

from meshc.backends.cuda import CpuMachine, Draw, LanguageModel
from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.driver.gpu_machine import GpuMachine
from meshc.backends.cuda.executor import CXX, QUICK
from meshc.backends.cuda.toolchain.toolkit import compile_cubin
from meshc.serving.sampling import GREEDY, Sampler, Sampling

pytestmark = [
    pytest.mark.cuda_compiler,
    pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler"),
]

PROMPTS = [[17, 3, 199], [42]]
COUNT, MOST_MICROSECONDS = 6, 20


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    """A compiled decode step of two requests: its program, texts and weights."""
    return compiled(tmp_path_factory.mktemp("model"), batch=2, seq=256)


@pytest.fixture(scope="module")
def expected(step):
    program, texts, weights = step
    machine = CpuMachine(program.kernels, texts, toolchain=QUICK)
    return LanguageModel(program, machine, weights).generate_all(PROMPTS, COUNT, lambda *_: False)


@pytest.mark.parametrize("steps", only((1, 4, 16), 4))
def test_a_launch_of_several_steps_is_captured_once(steps, step, expected):
    """The first token is waited for alone; the others come in launches of as many as are left."""
    program, texts, weights = step
    fake = driver_of(step)
    with Device(library=fake.path) as device:
        machine = GpuMachine(device, program.device, program.kernels, texts)
        model = LanguageModel(program, machine, weights)
        before = len(fake.calls("cuGraphLaunch"))
        found = model.generate_chosen(PROMPTS, COUNT, lambda *_: False, (), steps)
        launched = len(fake.calls("cuGraphLaunch")) - before
    assert found == expected
    # The prompt of three tokens is read by one launch, that of one token by none.
    assert launched == 1 + 1 + -(-(COUNT - 1) // steps)
    assert len(fake.calls("cuStreamBeginCapture_v2")) <= 4
    assert not any("programmatic" in line for line in fake.calls("cuLaunchKernelEx"))
    assert fake.live == 0


def test_the_host_works_little_for_a_token(step):
    """Processor time of the host alone, as no kernel runs; requests get the token 0."""
    program, texts, weights = step
    fake = FakeDriver(built_driver())
    know_products(fake)
    for file in {kernel.file for kernel in program.kernels.values()}:
        fake.know(compile_cubin(texts[file]))
    with Device(library=fake.path) as device:
        machine = GpuMachine(device, program.device, program.kernels, texts)
        model = LanguageModel(program, machine, weights)
        model.generate_chosen(PROMPTS, 40, lambda *_: False, (), 16)
        began = time.process_time()
        found = model.generate_chosen(PROMPTS, 129, lambda *_: False, (), 16)
        spent = time.process_time() - began
    assert found == [[0] * 129] * 2
    assert spent / 129 * 1e6 <= MOST_MICROSECONDS


def host_and_program(model, sampling, steps):
    """The tokens that the host takes or draws by the logits of ``model``, and those that the
    program does in launches of so many steps."""
    ours, theirs = ([Sampler(sampling, 2**63 + 5, n) for n in range(2)] for _ in range(2))
    draw = Draw(
        sampling.numbers().tolist(), [one.key for one in theirs], lambda n, row: theirs[n](row)
    )
    return (
        model.generate_all(PROMPTS, COUNT, lambda *_: False, (), lambda n, row: ours[n](row)),
        model.generate_chosen(PROMPTS, COUNT, lambda *_: False, (), steps, draw),
    )


@pytest.mark.slow
def test_draws_on_the_path_of_a_driver_are_those_of_the_host(step):
    program, texts, weights = step
    with Device(library=driver_of(step).path) as device:
        machine = GpuMachine(device, program.device, program.kernels, texts)
        model = LanguageModel(program, machine, weights)
        wanted, found = host_and_program(model, Sampling(2.0, 50, 0.9, 0.01), 4)
    assert found == wanted


@pytest.mark.gpu
def test_a_gpu_chooses_and_draws_what_the_host_does(step, expected):
    program, texts, weights = step
    with gpu() as device:
        machine = GpuMachine(device, program.device, program.kernels, texts)
        model = LanguageModel(program, machine, weights)
        for steps in (1, 4, 16, 64):
            found = model.generate_chosen(PROMPTS, COUNT, lambda *_: False, (), steps)
            assert found == expected
        for steps, sampling in enumerate((GREEDY, Sampling(1.0), Sampling(2.0, 50, 0.9, 0.01)), 3):
            wanted, found = host_and_program(model, sampling, steps)
            assert found == wanted
