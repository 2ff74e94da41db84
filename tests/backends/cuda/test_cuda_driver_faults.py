"""What a driver refuses, calls that fail and kernels that do: words, and nothing left behind."""

import numpy as np
import pytest
from fake_driver import CUBIN, C, FakeDriver, told

from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.executor import Grid
from meshc.support.diagnostics import MeshcError


@pytest.mark.parametrize("index", [None, 2])
def test_the_device_that_runs_the_kernels_is_chosen(fake, index):
    fake.set("devices", 3)
    with Device(index, library=fake.path) as device:
        assert device.facts.name == "Fake GPU 2"
    assert fake.calls("cuDevicePrimaryCtxRetain") == ["cuDevicePrimaryCtxRetain 2"]


@pytest.mark.parametrize(
    ("settings", "index", "words"),
    [
        ({"devices": 0}, None, "the driver finds no GPU"),
        ({}, 1, "there is no device 1: the driver finds 1"),
        ({}, -1, "there is no device -1"),
        ({"major": 8}, None, "compute capability 9.0"),
        ({"devices": 2}, 0, "compute capability 9.0"),
    ],
)
def test_devices_that_cannot_run_the_kernels_are_refused(fake, settings, index, words):
    for name, value in settings.items():
        fake.set(name, value)
    with pytest.raises(MeshcError) as caught:
        Device(index, library=fake.path)
    assert told(caught).code == "cuda-device"
    assert words in told(caught).message
    assert fake.live == 0


def test_the_devices_found_are_named(fake):
    fake.set("devices", 2)
    fake.set("major", 8)
    with pytest.raises(MeshcError) as caught:
        Device(library=fake.path)
    assert told(caught).notes == (
        "found 0: Fake GPU 0 (compute capability 8.0); 1: Fake GPU 1 (compute capability 8.0)",
    )


def test_a_missing_driver_is_said_in_words():
    with pytest.raises(MeshcError) as caught:
        Device(library="/nonexistent/libcuda.so.1")
    assert told(caught).code == "cuda-driver"
    assert "is not installed" in told(caught).message
    assert "cuda-cpu" in told(caught).help


def test_a_driver_that_lacks_functions_is_too_old(tmp_path):
    if C.path() is None:
        pytest.skip("there is no C compiler")
    library = C.build({"old.c": "int cuInit(unsigned f) { return 0; }\n"}, {}, "fake-old-driver")
    with pytest.raises(MeshcError, match=r"\[cuda-driver\]: the driver is too old") as caught:
        Device(library=str(library))
    assert "12.3 or newer" in told(caught).help


def test_a_driver_of_an_old_version_is_too_old(fake):
    fake.set("version", 12020)
    with pytest.raises(MeshcError, match=r"\[cuda-driver\]: the driver is for CUDA 12\.2"):
        Device(library=fake.path)


@pytest.mark.parametrize(
    ("function", "result", "code"),
    [
        ("cuInit", 34, "cuda-driver"),
        ("cuInit", 100, "cuda-device"),
        ("cuInit", 803, "cuda-driver"),
        ("cuInit", 999, "cuda-call"),
        ("cuInit", 12345, "cuda-call"),
        ("cuDevicePrimaryCtxRetain", 2, "cuda-memory"),
        ("cuDevicePrimaryCtxRetain", 46, "cuda-device"),
        ("cuModuleLoadData", 200, "cuda-driver"),
        ("cuModuleLoadData", 209, "cuda-driver"),
        ("cuModuleLoadData", 218, "cuda-driver"),
        ("cuModuleLoadData", 222, "cuda-driver"),
        ("cuModuleLoadData", 2, "cuda-memory"),
        ("cuMemAlloc_v2", 2, "cuda-memory"),
        ("cuLaunchKernelEx", 701, "cuda-launch"),
        ("cuLaunchKernelEx", 720, "cuda-cluster"),
        ("cuLaunchKernelEx", 912, "cuda-cluster"),
        ("cuOccupancyMaxActiveClusters", 912, "cuda-cluster"),
        ("cuLaunchKernelEx", 1, "cuda-call"),
        ("cuGraphInstantiateWithFlags", 2, "cuda-memory"),
        ("cuStreamSynchronize", 700, "cuda-fault"),
    ],
)
def test_results_of_the_driver_become_diagnostics(fake, function, result, code):
    fake.fail(function, result)
    with pytest.raises(MeshcError) as caught:
        decode_step(fake)
    assert told(caught).code == code
    assert fake.live == 0


def decode_step(fake):
    """A session as the machine of a decode step has it."""
    with Device(library=fake.path) as device:
        kernels = device.load(CUBIN)
        x = device.upload(np.arange(16, dtype=np.float32))
        with device.stream.capture() as graph:
            kernels["four"].launch(Grid(8, 32, 4, 100000), [x], device.stream)
            kernels["block"].launch(
                Grid(8, 32, 1, 0), [x, np.int32(1)], device.stream, programmatic=True
            )
        first = device.stream.record()
        graph.launch()
        last = device.stream.record()
        last.milliseconds_since(first)
        return x.read(np.float32, 16)


def test_any_call_may_fail_and_nothing_is_left(fake):
    """Each call of a session fails once: always a diagnostic, and whatever could be freed is."""
    assert (decode_step(fake) == np.arange(16)).all()
    names = [line.split(" ")[0] for line in fake.log]
    endings = ("Destroy", "Release", "Free", "Unload", "Pop")
    assert len(names) > 40
    for n, name in enumerate(names):
        fresh = FakeDriver(fake.path)
        fresh.know(CUBIN)
        fresh.fail("", 999, after=n)
        if name == "cuGraphDestroy":  # the template of a graph that is there
            decode_step(fresh)
        else:
            with pytest.raises(MeshcError):
                decode_step(fresh)
        assert fresh.log[n] == f"{name} -> 999"
        assert fresh.live == any(ending in name for ending in endings), name


def test_a_fault_names_the_kernel(fake):
    fake.fault(700)
    with pytest.raises(MeshcError) as caught, Device(library=fake.path) as device:
        device.load(CUBIN)["free"].launch(Grid(1, 32, 1, 0), [], device.stream)
        device.stream.synchronize()
    assert told(caught).code == "cuda-fault"
    assert told(caught).message.startswith("kernel 'free' failed: CUDA_ERROR_700")
    assert told(caught).notes == ()
    assert "cuda-cpu" in told(caught).help


@pytest.mark.parametrize("notice", ["synchronize", "read", "allocate", "launch", "close"])
def test_a_fault_in_a_graph_names_its_kernels(fake, notice):
    with pytest.raises(MeshcError) as caught, Device(library=fake.path) as device:
        kernels = device.load(CUBIN)
        x = device.upload(np.zeros(1, np.float32))
        with device.stream.capture() as graph:
            kernels["free"].launch(Grid(1, 32, 1, 0), [], device.stream)
            kernels["four"].launch(Grid(4, 32, 4, 0), [x], device.stream)
        graph.launch()
        device.stream.synchronize()
        fake.fault(719)
        graph.launch()
        if notice == "synchronize":
            device.stream.synchronize()
        elif notice == "read":
            x.read(np.float32, 1)
        elif notice == "allocate":
            device.allocate(1)
        elif notice == "launch":
            graph.launch()
    assert told(caught).code == "cuda-fault"
    assert told(caught).notes == ("launched since the last wait: 'free', 'four'",)


def test_a_fault_is_told_once(fake):
    """Who has caught it is not told again, by calls that fail because of it, that it happened."""
    with Device(library=fake.path) as device:
        fake.fault(700)
        device.load(CUBIN)["free"].launch(Grid(1, 32, 1, 0), [], device.stream)
        with pytest.raises(MeshcError, match=r"\[cuda-fault\]"):
            device.stream.synchronize()
    endings = [line.split(" ")[0] for line in fake.log[-4:]]
    assert endings[0] == "cuModuleUnload"
    assert endings[-1] == "cuDevicePrimaryCtxRelease_v2"


def test_kernels_that_have_ended_are_not_blamed(fake):
    with pytest.raises(MeshcError) as caught, Device(library=fake.path) as device:
        kernels = device.load(CUBIN)
        kernels["static"].launch(Grid(1, 32, 1, 0), [], device.stream)
        device.stream.synchronize()
        fake.fault(716)
        kernels["free"].launch(Grid(1, 32, 1, 0), [], device.stream)
        device.stream.synchronize()
    assert told(caught).message.startswith("kernel 'free' failed")


def test_blocks_that_cannot_be_together_are_refused(fake):
    fake.set("clusters", 0)
    with Device(library=fake.path) as device:
        kernels = device.load(CUBIN)
        x = device.allocate(1)
        with pytest.raises(MeshcError, match="cannot hold the blocks of one cluster") as caught:
            kernels["four"].launch(Grid(8, 32, 4, 220000), [x], device.stream)
        assert told(caught).code == "cuda-cluster"
        assert "clusters of 4 and 220000 bytes" in told(caught).message
        fake.set("clusters", 2)
        kernels["four"].launch(Grid(12, 32, 4, 220000), [x], device.stream)
        with pytest.raises(MeshcError, match="holds 8 of them at once") as caught:
            kernels["four"].launch(Grid(12, 32, 4, 220000, True), [x], device.stream)
        assert told(caught).code == "cuda-cluster"
        with pytest.raises(MeshcError, match="holds 264 of them at once"):
            kernels["free"].launch(Grid(265, 32, 1, 0, True), [], device.stream)
