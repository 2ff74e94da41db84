"""A program that serves on the machine of a GPU, by another thread than the one that opened it."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from test_cuda_gpu_machine import compiled, driver_of

from meshc.backends.cuda import CpuMachine, PagedModel
from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.driver.gpu_machine import GpuMachine
from meshc.backends.cuda.executor import CXX, QUICK
from meshc.serving.sampling import Sampler, Sampling
from meshc.support.diagnostics import MeshcError

pytestmark = [
    pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler"),
    pytest.mark.cuda_compiler,
]
PROMPT = [n * 7 % 200 for n in range(19)]


def served(engine):
    """Logits of two requests, one of which is read by single layers, behind tables that change; and
    a token that the program draws by the same as the host."""
    engine.lay(0, [2, 0])
    engine.lay(1, [1])
    rows = engine.embedded(PROMPT, 0)
    for layer in range(2):
        rows = engine.read(0, rows, 0, range(layer, layer + 1))
    engine.read(1, engine.embedded([5, 6], 0), 0, range(2))
    found = [engine.step({0: (3, 19)}), engine.step({1: (8, 2), 0: (4, 20)})]
    sampler = Sampler(Sampling(2.0, 50), 7)
    assert engine.choose({0: (4, 20)}, {0: sampler.draw}) == {0: sampler(found[1][0])}
    engine.lay(1, [3])
    found.append(engine.step({1: (9, 0)}))
    return np.array([row for logits in found for _, row in sorted(logits.items())])


@pytest.mark.slow
def test_another_thread_serves_what_the_cpu_does(tmp_path):
    step = compiled(tmp_path, serving="layers!", batch=2, cache_tokens=64)
    program, texts, weights = step
    assert program.pages == 5
    cpu = CpuMachine(program.kernels, texts, toolchain=QUICK)
    wanted = served(PagedModel(program, cpu, weights))
    assert np.isfinite(wanted).all() and len(np.unique(wanted[:, 0])) == 4
    fake = driver_of(step)
    with Device(library=fake.path) as device, ThreadPoolExecutor(1) as thread:
        machine = GpuMachine(device, program.device, program.kernels, texts)
        engine = PagedModel(program, machine, weights)
        with pytest.raises(MeshcError):
            thread.submit(machine.read, "logits").result()
        assert (thread.submit(served, engine).result() == wanted).all()
    assert len(fake.calls("cuStreamBeginCapture_v2")) == 3  # whichever layers are passed
    assert fake.live == 0
