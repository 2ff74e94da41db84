"""CUDA: a decode step as one kernel made of tasks, and what reads prompts, over one library."""

from meshc.backends.cuda.chunk_launches import ChunkGraph
from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.driver.gpu_machine import GpuMachine, other_than
from meshc.backends.cuda.driver.rank_machine import RankMachine
from meshc.backends.cuda.driver.torch_links import TorchLinks
from meshc.backends.cuda.driver.torch_peers import TorchPeers, own_gpu, started_by_torchrun
from meshc.backends.cuda.emit import MANIFEST, emit, summary
from meshc.backends.cuda.executor.cpu_machine import CpuMachine, toolchain_for
from meshc.backends.cuda.executor.cpu_node import CpuNode
from meshc.backends.cuda.host import Draw, LanguageModel, Machine
from meshc.backends.cuda.library import headers
from meshc.backends.cuda.memory import GpuIsTooSmall, memory_of
from meshc.backends.cuda.nodes import Nodes
from meshc.backends.cuda.packing import Keeping
from meshc.backends.cuda.paged import PagedModel
from meshc.backends.cuda.program import KERNELS, MOST_CHUNK, StepProgram, from_json
from meshc.backends.cuda.standalone import standalone_files
from meshc.backends.cuda.tasks.attending import attends_by_statements
from meshc.backends.cuda.tasks.groups import LAYER_GROUPS
from meshc.backends.cuda.tasks.ring_room import QueriesDoNotFit
from meshc.backends.cuda.tasks.step import TaskGraph
from meshc.backends.cuda.tasks.storage import CACHE_PAGES

__all__ = [
    "CACHE_PAGES",
    "KERNELS",
    "LAYER_GROUPS",
    "MANIFEST",
    "MOST_CHUNK",
    "ChunkGraph",
    "CpuMachine",
    "CpuNode",
    "Device",
    "Draw",
    "GpuIsTooSmall",
    "GpuMachine",
    "Keeping",
    "LanguageModel",
    "Machine",
    "Nodes",
    "PagedModel",
    "QueriesDoNotFit",
    "RankMachine",
    "StepProgram",
    "TaskGraph",
    "TorchLinks",
    "TorchPeers",
    "attends_by_statements",
    "emit",
    "from_json",
    "headers",
    "memory_of",
    "other_than",
    "own_gpu",
    "standalone_files",
    "started_by_torchrun",
    "summary",
    "toolchain_for",
]
