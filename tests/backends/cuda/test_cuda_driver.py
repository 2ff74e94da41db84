"""Launching: the driver's calls in order, what a device refuses, nothing left behind.

Without a GPU the calls go to a driver that logs, checks and fails as told (``driver/``); tests
marked ``gpu`` run on a GPU, the ones that take ``device`` on both.
"""

import numpy as np
import pytest
from fake_driver import CUBIN, told

from meshc.backends.cuda.driver.device_memory import argument_bytes
from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.executor import Grid
from meshc.support.diagnostics import MeshcError

# ---- On a fake driver and on a GPU ----------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.uint8])
def test_memory_holds_what_was_written(device, dtype):
    x = np.arange(300).astype(dtype).reshape(3, 100)
    buffer = device.upload(x)
    assert (buffer.read(dtype, (3, 100)) == x).all()
    buffer.write(x[1], offset=0)
    assert (buffer.read(dtype, (100,), offset=0) == x[1]).all()
    assert (buffer.read(dtype, 100, offset=x[0].nbytes) == x[1]).all()
    buffer.fill()
    assert not buffer.read(np.uint8, buffer.nbytes).any()
    assert int(buffer.address(8)) == int(buffer.address()) + 8
    buffer.free()
    with pytest.raises(ValueError, match="was freed"):
        buffer.read(dtype, 1)


def test_memory_without_bytes_can_be_held(device):
    buffer = device.upload(np.zeros(0, np.float32))
    assert buffer.read(np.float32, 0).shape == (0,)


def test_memory_outside_of_a_buffer_is_refused(device):
    buffer = device.allocate(64)
    with pytest.raises(ValueError, match="outside"):
        buffer.write(np.zeros(17, np.float32))
    with pytest.raises(ValueError, match="outside"):
        buffer.read(np.float32, 1, offset=61)
    with pytest.raises(ValueError, match="outside"):
        buffer.address(-1)
    with pytest.raises(ValueError, match="buffer of -1 bytes"):
        device.allocate(-1)


def test_too_large_memory_is_refused_with_numbers(device):
    with pytest.raises(MeshcError) as caught:
        device.allocate(1 << 50)
    assert told(caught).code == "cuda-memory"
    assert "1073741824.0 MiB do not fit" in told(caught).message
    assert device.upload(np.arange(4)).read(np.int64, 4)[3] == 3


def test_events_measure_time(device):
    first = device.stream.record()
    device.upload(np.zeros(1000))
    last = device.stream.record()
    assert last.milliseconds_since(first) > 0
    other = device.create_stream()
    other.wait(last)
    other.synchronize()
    first.free()
    other.free()


def test_host_memory_is_not_copied_into_a_graph(device):
    buffer = device.allocate(4)
    with device.stream.capture() as graph:
        with pytest.raises(ValueError, match="captured"):
            buffer.write(np.zeros(1, np.float32))
        with pytest.raises(ValueError, match="captured"):
            buffer.read(np.float32, 1)
        with pytest.raises(ValueError, match="captured already"), device.stream.capture():
            pass
        with pytest.raises(ValueError, match="after its capture"):
            graph.launch()
        other = device.create_stream()
        buffer.fill(1, other)
    graph.launch()
    other.synchronize()
    assert (buffer.read(np.uint8, 4) == 1).all()


# ---- On a fake driver -------------------------------------------------------------------------


def test_a_device_is_opened_and_closed_in_order(fake):
    with Device(library=fake.path) as device:
        assert device.facts.name == "Fake GPU 0"
        assert device.facts.words() == "Fake GPU 0 (compute capability 9.0)"
        assert device.facts.driver == (13, 0)
        assert device.facts.multiprocessors == 132
        assert device.free_bytes == 1 << 26
        device.load(CUBIN)
        device.allocate(16)
        opened = len(fake.log)
    assert fake.live == 0
    assert fake.log[0] == "cuInit"
    assert [line.split(" ")[0] for line in fake.log[opened:]] == [
        "cuMemFree_v2",
        "cuModuleUnload",
        "cuStreamDestroy_v2",
        "cuCtxPopCurrent_v2",
        "cuDevicePrimaryCtxRelease_v2",
    ]
    device.close()
    assert len(fake.log) == opened + 5


def test_freed_things_are_freed_once(fake):
    with Device(library=fake.path) as device:
        buffer = device.allocate(16)
        buffer.free()
        buffer.free()
    assert len(fake.calls("cuMemFree_v2")) == 1
    assert fake.live == 0


def test_a_launch_says_what_the_kernel_needs(fake):
    with Device(library=fake.path) as device:
        kernels = device.load(CUBIN)
        x = device.allocate(64)
        stream = device.stream
        kernels["block"].launch(Grid(10, 128, 1, 1000), [x, np.int32(-2)], stream)
        kernels["four"].launch(Grid(132, 256, 4, 200000), [x.address(8)], stream, programmatic=True)
        kernels["free"].launch(Grid(32, 64, 16, 0), [], stream)
        kernels["block"].launch(Grid(264, 32, 1, 0, True), [x, np.int32(7)], stream)
        kernels["four"].launch(Grid(132, 256, 4, 200000), [x], stream)
        kernels["four"].launch(Grid(132, 256, 4, 100000), [x], stream)
        stream.synchronize()
        at, behind = (int(x.address(n)).to_bytes(8, "little").hex() for n in (0, 8))
    four = "cuOccupancyMaxActiveClusters four cluster=4 shared"
    assert fake.calls("cuLaunchKernelEx", "cuFuncSetAttribute") + fake.calls(
        "cuOccupancyMaxActiveClusters", "cuOccupancyMaxActiveBlocksPerMultiprocessor"
    ) == [
        "cuFuncSetAttribute block 9=100",
        f"cuLaunchKernelEx block grid=10 block=128 cluster=1 shared=1000 {at} feffffff",
        "cuFuncSetAttribute four 9=100",
        "cuFuncSetAttribute four 15=1",
        "cuFuncSetAttribute four 8=200000",
        f"cuLaunchKernelEx four grid=132 block=256 cluster=4 shared=200000 programmatic {behind}",
        "cuFuncSetAttribute free 9=100",
        "cuFuncSetAttribute free 15=1",
        "cuFuncSetAttribute free 14=1",
        "cuLaunchKernelEx free grid=32 block=64 cluster=16 shared=0",
        f"cuLaunchKernelEx block grid=264 block=32 cluster=1 shared=0 cooperative {at} 07000000",
        f"cuLaunchKernelEx four grid=132 block=256 cluster=4 shared=200000 {at}",
        f"cuLaunchKernelEx four grid=132 block=256 cluster=4 shared=100000 {at}",
        f"{four}=200000",
        "cuOccupancyMaxActiveClusters free cluster=16 shared=0",
        "cuOccupancyMaxActiveBlocksPerMultiprocessor block threads=32 shared=0",
        f"{four}=100000",
    ]


def test_static_shared_memory_counts(fake):
    with Device(library=fake.path) as device:
        kernel = device.load(CUBIN)["static"]
        kernel.launch(Grid(1, 32, 1, 9000), [], device.stream)
        kernel.launch(Grid(1, 32, 1, 9500), [], device.stream)
        with pytest.raises(MeshcError, match="needs 240000 bytes of shared memory"):
            kernel.launch(Grid(1, 32, 1, 200000), [], device.stream)
    asked = [f"cuFuncSetAttribute static {what}" for what in ("9=100", "8=9500")]
    assert fake.calls("cuFuncSetAttribute") == asked


def test_active_clusters_are_asked_for(fake):
    with Device(library=fake.path) as device:
        kernels = device.load(CUBIN)
        assert kernels["four"].active_clusters(Grid(132, 256, 4, 0)) == 33
        assert kernels["block"].active_clusters(Grid(132, 256, 1, 0)) == 2 * 132


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("kernel", "grid", "words"),
    [
        ("block", Grid(1, 257, 1, 0), "257 threads in a block, and it allows 256"),
        ("block", Grid(1, 0, 1, 0), "0 threads"),
        ("free", Grid(1, 1025, 1, 0), "it allows 1024"),
        ("four", Grid(8, 32, 2, 0), "clusters of 2 blocks, and it is made for 4"),
        ("four", Grid(6, 32, 4, 0), "6 blocks in clusters of 4"),
        ("free", Grid(0, 32, 1, 0), "0 blocks"),
        ("free", Grid(17, 32, 17, 0), "a cluster has 1 to 16"),
        ("free", Grid(1, 32, 1, 232449), "needs 232449 bytes of shared memory"),
    ],
)
def test_grids_that_a_kernel_does_not_allow_are_refused(fake, kernel, grid, words):
    with Device(library=fake.path) as device:
        loaded = device.load(CUBIN)[kernel]
        arguments = [
            np.zeros(size, np.uint8).view(f"V{size}")[0] for size in loaded.needs.parameters
        ]
        with pytest.raises(MeshcError) as caught:
            loaded.launch(grid, arguments, device.stream)
    assert told(caught).code == "cuda-launch"
    assert words in told(caught).message
    assert not fake.calls("cuLaunchKernelEx")


def test_arguments_that_are_not_the_kernels_are_refused(fake):
    with Device(library=fake.path) as device:
        kernel = device.load(CUBIN)["block"]
        x = device.allocate(4)
        for arguments in ([], [x], [np.int32(1), x], [x, np.int64(1)], [x, np.int32(1), x]):
            with pytest.raises(MeshcError, match=r"its parameters are \(8, 4\)") as caught:
                kernel.launch(Grid(1, 32, 1, 0), arguments, device.stream)
            assert told(caught).code == "cuda-launch"


class Tensor:
    """What meshc uses of torch's tensors."""

    def __init__(self, cuda=True, contiguous=True):
        self.is_cuda = cuda
        self._contiguous = contiguous

    def data_ptr(self):
        return 0x1234

    def is_contiguous(self):
        return self._contiguous


class Interface:
    """An array as other libraries describe theirs."""

    def __init__(self, strides=None):
        self.__cuda_array_interface__ = {"data": (0x5678, False), "strides": strides}


def test_tensors_of_other_libraries_are_given_by_address():
    assert argument_bytes(Tensor()) == np.uint64(0x1234).tobytes()
    assert argument_bytes(Interface()) == np.uint64(0x5678).tobytes()
    assert argument_bytes(np.float32(1.5)) == np.float32(1.5).tobytes()


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        (Tensor(cuda=False), "memory of the host"),
        (Tensor(contiguous=False), "not contiguous"),
        (Interface(strides=(8, 4)), "not contiguous"),
        (np.zeros(3), "ndarray cannot be given"),
        (3, "int cannot be given"),
        (None, "NoneType cannot be given"),
    ],
)
def test_what_no_kernel_can_receive_is_refused(argument, words):
    with pytest.raises(TypeError, match=words):
        argument_bytes(argument)


def test_a_captured_step_is_one_graph(fake):
    with Device(library=fake.path) as device:
        kernels = device.load(CUBIN)
        x = device.allocate(64)
        with device.stream.capture() as graph:
            for n in range(3):
                kernels["four"].launch(
                    Grid(8, 32, 4, 0), [x.address(n)], device.stream, programmatic=n > 0
                )
        assert graph.kernels == ["four"] * 3
        before = len(fake.log)
        graph.launch()
        graph.launch(device.create_stream())
        device.stream.synchronize()
        replayed = fake.calls("cuGraphLaunch")
        graph.free()
        assert int(x.address(2)).to_bytes(8, "little").hex() in replayed[0]
    assert len(replayed) == 2
    assert replayed[0].count("[four grid=8 block=32 cluster=4 shared=0") == 3
    assert replayed[0].count("programmatic") == 2
    assert not [line for line in fake.log[before:] if line.startswith("cuLaunchKernelEx")]
    assert fake.calls("cuGraphDestroy") == ["cuGraphDestroy"]
    assert fake.live == 0


def test_an_adopted_stream_stays_with_its_owner(fake):
    with Device(library=fake.path) as device:
        theirs = device.create_stream()
        ours = device.adopt_stream(theirs.handle)
        device.load(CUBIN)["free"].launch(Grid(1, 32, 1, 0), [], ours)
        ours.free()
        ours.synchronize()
        device.adopt_stream(0).synchronize()


def test_a_capture_that_fails_leaves_the_stream_usable(fake):
    with Device(library=fake.path) as device:
        kernel = device.load(CUBIN)["free"]
        with pytest.raises(MeshcError, match="0 blocks"), device.stream.capture():
            kernel.launch(Grid(0, 32, 1, 0), [], device.stream)
        with device.stream.capture() as graph:
            kernel.launch(Grid(1, 32, 1, 0), [], device.stream)
        graph.launch()
        device.stream.synchronize()
    assert fake.live == 0
