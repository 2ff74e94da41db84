"""The modules of the benchmarks, and helpers of the tests of back ends, by their names."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "benchmarks/gpu", "tests/backends/cuda", "tests/backends/csl")
sys.path[:0] = [str(ROOT / folder) for folder in FOLDERS]


@pytest.fixture
def fake():
    """The fake driver, as new."""
    from fake_driver import FakeDriver, built_driver

    found = FakeDriver(built_driver())
    found.set("memory", 1 << 29)
    return found


@pytest.fixture
def in_executor(fake, monkeypatch):
    """``in_executor(module, ..)``: what ``kernels.load`` loads for these runs in the executor."""
    import kernels

    from meshc.backends.cuda.executor import QUICK, Library
    from meshc.backends.cuda.toolchain.toolkit import compile_cubin

    load, known = kernels.load, set()

    def loaded(device, text, cubins=None):
        cubin = (cubins.find(text) if cubins else None) or compile_cubin(text)
        if text not in known:
            known.add(text)
            library = Library(text, toolchain=QUICK)._library
            fake.know(cubin, lambda name: getattr(library, f"run_{name}"))
        return load(device, text, cubins)

    def replaced(*modules):
        for module in modules:
            monkeypatch.setattr(module, "load", loaded)

    return replaced
