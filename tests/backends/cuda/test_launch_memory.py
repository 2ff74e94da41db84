"""The memory that launches of kernels take in turn."""

import mmap
import threading

import pytest

from meshc.backends.cuda.executor import launch_memory as module


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(module, "_kept", module._Kept())


def test_a_smaller_launch_takes_the_memory_of_a_larger_one():
    address, size = module.launch_memory(3 << 20)
    assert size >= 3 << 20
    assert module.launch_memory(1 << 16) == (address, size)
    assert module.launch_memory(5 << 20)[1] >= 5 << 20
    assert module.launch_memory(0)[1] >= 5 << 20


def test_threads_of_python_have_memory_of_their_own():
    own, other = module.launch_memory(1 << 16), []
    started = threading.Thread(target=lambda: other.append(module.launch_memory(1 << 16)))
    started.start()
    started.join()
    assert other[0][0] != own[0]


def test_too_much_memory_is_no_memory(monkeypatch):
    def none(*_, **__):
        raise OSError("Cannot allocate memory")

    module.launch_memory(1 << 16)
    monkeypatch.setattr(mmap, "mmap", none)
    assert module.launch_memory(1 << 20) == (0, 0)
