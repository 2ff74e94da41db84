"""The GPU of a rank: its launches on the fake driver, and what it asks of torch.distributed.

On the fake driver a node of one GPU runs in the executor, by the same machine that a process of
several has. Tests marked ``oracle`` ask the installed torch whether it has what is used; none of
this has run on several GPUs.
"""

import ctypes as ct
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fake_driver import INT, POINTER, FakeDriver, built_driver, needs
from rank_programs import rank_program
from test_cuda_ranks import graph_of, tensors_of

from meshc.backends.cuda import CpuNode, LanguageModel
from meshc.backends.cuda.driver import gpu_machine, torch_peers
from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.driver.rank_machine import RankMachine, Reached
from meshc.backends.cuda.driver.torch_peers import TorchPeers, symmetric_memory_of_torch
from meshc.backends.cuda.executor import CXX, QUICK, Library, symmetric_memory
from meshc.backends.cuda.executor.cpu_kernels import _Gpus, _Symmetric
from meshc.backends.cuda.gpu_shares import RankShare
from meshc.backends.cuda.launches import RANK, RANKS
from meshc.backends.cuda.library import headers
from meshc.backends.cuda.program import Target
from meshc.backends.cuda.ranks import RankTensors
from meshc.backends.cuda.toolchain.toolkit import Cubin
from meshc.support.diagnostics import MeshcError

PROMPT = [5, 17, 3]


class OnePeer:
    """A group of one process, whose symmetric memory the executor knows."""

    rank, count = 0, 1

    def __init__(self, multicast=True):
        self.memories = []
        self.multicast = multicast

    def allocate(self, nbytes):
        number, signals = len(self.memories), nbytes <= 64
        made = symmetric_memory(number, 1, [nbytes], np.uint8, signals)
        self.memories.append(made)
        address = made.multicast if self.multicast else 0
        return Reached((made.parts[0].ctypes.data,), address)

    def tell(self, library):
        """Let grids of ``library`` reach this memory; what must stay alive meanwhile."""
        kept = [(ct.c_uint64 * 1)(m.parts[0].ctypes.data) for m in self.memories]
        given = (_Symmetric * len(kept))(
            *(
                _Symmetric(m.multicast, m.parts[0].nbytes, m.held, ct.addressof(at))
                for m, at in zip(self.memories, kept, strict=True)
            )
        )
        gpus = _Gpus(ct.addressof(given), len(kept), 1, 0)
        library.mc_give_gpus(ct.byref(gpus))
        return kept, given, gpus


def of_one_rank(transport="multimem"):
    """The program of the first of two ranks, as if it were alone, and its tensors."""
    program, texts = rank_program(graph_of("llama-4h2"), 2, transport, 8)
    tensors = dict(RankTensors(program.ranks, tensors_of("llama-4h2"), 0))
    kernels = {name: kernel for name, kernel in program.kernels.items() if name != "step"}
    alone = replace(program, kernels=kernels, ranks=RankShare(1, transport, {}))
    return alone, {**texts, **headers()}, tensors


def logits(program, machine, tensors):
    model = LanguageModel(program, machine, tensors)
    return lambda: np.stack([model.prefill(PROMPT[:n]) for n in (3, 2)])


def cubin_of(program, name):
    """What the driver is told of a kernel, as an assembler would say."""
    launches = program.launches() + program.prefills[0].launches(True)
    launch = next(launch for launch, _ in launches if launch.kernel == name)
    whole = [isinstance(a, int) or a in (RANK, RANKS) for a in launch.arguments]
    kernel = program.kernels[name]
    sizes = [INT if number else POINTER for number in whole]
    found = needs(*sizes, threads=kernel.threads, cluster=kernel.cluster)
    return Cubin(b"\x7fELF" + name.encode(), "sm_90a", "nvcc 13.0", {name: found}, ())


@pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("transport", ["multimem", pytest.param("peers", marks=pytest.mark.slow)])
def test_a_rank_captures_a_chunk_and_computes_what_the_cpu_does(transport, monkeypatch):
    program, texts, tensors = of_one_rank(transport)
    expected = logits(program, CpuNode(program.kernels, texts, 1, toolchain=QUICK), tensors)()
    fake, peer, libraries = FakeDriver(built_driver()), OnePeer(), {}
    cubins = {texts[k.file]: cubin_of(program, name) for name, k in program.kernels.items()}
    monkeypatch.setattr(gpu_machine, "compile_cubin", lambda text, *_: cubins[text])
    for kernel in program.kernels.values():
        at = libraries[kernel.file] = Library(texts[kernel.file], toolchain=QUICK)._library
        fake.know(cubins[texts[kernel.file]], lambda name, at=at: getattr(at, f"run_{name}"))
    with Device(library=fake.path) as device:
        machine = RankMachine(device, program.device, program.kernels, texts, program.ranks, peer)
        run = logits(program, machine, tensors)
        kept = [
            peer.tell(libraries[kernel.file]) for kernel in program.kernels.values() if kernel.meets
        ]
        assert (run() == expected).all()
        del kept
    assert len(fake.calls("cuStreamBeginCapture_v2")) == 1
    assert len(fake.calls("cuGraphLaunch")) == 2
    assert fake.live == 0


def refusal(work):
    with pytest.raises(MeshcError) as caught:
        work()
    (told,) = caught.value.diagnostics
    assert told.code == "cuda-device"
    return told.message


@pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
def test_what_processes_and_gpus_cannot_do_is_refused():
    share = RankShare(2, "multimem", {})
    here = Target("h200", "sm_90a", 132, 232448)
    with Device(library=FakeDriver(built_driver()).path) as device:
        words = refusal(lambda: RankMachine(device, here, {}, {}, share, OnePeer()))
        assert "is of 2 GPUs, and 1 processes run it" in words
        machine = RankMachine(
            device, here, {}, {}, replace(share, count=1), OnePeer(multicast=False)
        )
        zeros = np.zeros((2, 64), np.float32)
        words = refusal(lambda: machine.store_symmetric("sums", zeros, "symmetric"))
        assert "no multicast addresses" in words


def test_one_process_alone_is_refused(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert "a process for each" in refusal(TorchPeers)
    assert torch_peers.own_gpu() is None
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert torch_peers.own_gpu() is None
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert torch_peers.own_gpu() == 3


def test_a_missing_or_old_torch_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "run by torch.distributed" in refusal(symmetric_memory_of_torch)
    old = SimpleNamespace(__version__="2.4.0", distributed=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch", old)
    monkeypatch.setitem(sys.modules, "torch.distributed._symmetric_memory", SimpleNamespace())
    assert "torch 2.4.0 has no empty, rendezvous" in refusal(symmetric_memory_of_torch)


class FakeTorch:
    """What is asked of torch, in order; tensors are names."""

    def __init__(self, offset=0):
        self.asked = []
        self.uint8 = "uint8"
        self.cuda = SimpleNamespace(
            set_device=lambda index: self.asked.append(("device", index)),
            synchronize=lambda device: self.asked.append(("synchronize", device)),
        )
        self.device = lambda kind, index: f"{kind}:{index}"
        self.distributed = SimpleNamespace(
            group=SimpleNamespace(WORLD="world"),
            is_initialized=lambda: ("group", "nccl", "cuda:1") in self.asked,
            init_process_group=lambda kind, device_id: self.asked.append(
                ("group", kind, device_id)
            ),
            get_rank=lambda: 1,
            get_world_size=lambda: 2,
            barrier=lambda: self.asked.append(("barrier",)),
            destroy_process_group=lambda: self.asked.append(("destroyed",)),
        )
        self.offset = offset

    def empty(self, nbytes, dtype, device):
        self.asked.append(("empty", nbytes, dtype, device))
        return SimpleNamespace(zero_=lambda: self.asked.append(("zeros",)))

    def rendezvous(self, tensor, group):
        self.asked.append(("rendezvous", group))
        return SimpleNamespace(buffer_ptrs=[64, 128], multicast_ptr=256, offset=self.offset)


@pytest.fixture
def torchrun(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCH_SYMMMEM_IMPLICIT_POOL", "0")

    def start(offset=0):
        torch = FakeTorch(offset)
        monkeypatch.setattr(torch_peers, "symmetric_memory_of_torch", lambda: (torch, torch))
        return torch, TorchPeers()

    return start


def test_memory_is_zero_on_all_gpus_before_anybody_uses_it(torchrun):
    torch, peers = torchrun()
    assert (peers.rank, peers.count) == (1, 2)
    assert peers.allocate(512) == Reached((64, 128), 256)
    assert torch.asked == [
        ("device", 1),
        ("group", "nccl", "cuda:1"),
        ("empty", 512, "uint8", "cuda:1"),
        ("rendezvous", "world"),
        ("zeros",),
        ("synchronize", "cuda:1"),
        ("barrier",),
    ]
    peers.close()
    assert torch.asked[-1] == ("destroyed",)


def test_shared_allocations_are_refused(torchrun):
    _, peers = torchrun(offset=512)
    assert "into one allocation" in refusal(lambda: peers.allocate(512))


@pytest.mark.oracle
def test_torch_has_what_is_used():
    pytest.importorskip("torch")
    torch, memory = symmetric_memory_of_torch()
    assert torch.__name__ == "torch" and memory.__name__ == "torch.distributed._symmetric_memory"
