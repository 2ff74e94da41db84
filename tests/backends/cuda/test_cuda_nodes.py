"""Layers that are dealt to nodes: each has the weights and caches of its own, and hands rows on."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from json_schema import faults

from meshc.backends.cuda import CpuMachine, LanguageModel, Nodes, from_json, memory_of
from meshc.backends.cuda.driver.torch_links import TorchLinks
from meshc.backends.cuda.executor import CXX, FIRST, QUICK, WATCHED, Mode
from meshc.backends.cuda.nodes import NodeTensors, layers_of
from meshc.cli import main
from meshc.driver import CompileRequest, compile_loaded, load_any, open_weights
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.schemas import json_schema

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data"
LLAMA = DATA / "tiny_cuda" / "llama-4h2"
# A prompt in a long chunk and a short one, and a request beside it.
PROMPTS, COUNT = [[7, 3, 9, 11, 2, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8, 9], [4]], 4

needs_compiler = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


class Dealt:
    """The program of a checkpoint for so many ``nodes``, and its tensors."""

    def __init__(self, path: Path, nodes: int, **options: object) -> None:
        loaded = load_any(str(path), Diagnostics())
        asked = {"dtype": "f16", "seq": 40, "batch": 2, "nodes": nodes} | options
        compiled = compile_loaded(loaded, CompileRequest(target="cuda", **asked))
        self.program, self.texts = from_json(compiled.files["manifest.json"]), compiled.files
        self.tensors = open_weights(path, loaded.config, None, Diagnostics())

    def model(self, mode=FIRST, toolchain=QUICK) -> LanguageModel:
        first = CpuMachine(self.program.kernels, self.texts, mode, toolchain)
        nodes = self.program.nodes
        if nodes is None:
            return LanguageModel(self.program, first, self.tensors)
        machines = [first, *(first.twin() for _ in range(nodes.count - 1))]
        return LanguageModel(self.program, Nodes(self.program, machines), self.tensors)


@cache
def llama(nodes: int) -> Dealt:
    return Dealt(LLAMA, nodes)


def continued(model: LanguageModel) -> tuple[list[list[int]], np.ndarray]:
    logits: list[np.ndarray] = []
    tokens = model.generate_all(PROMPTS, COUNT, lambda r, t, row: logits.append(row))
    return tokens, np.array(logits)


MODELS = {
    "tiny_cuda/llama-4h2": 2,
    "tiny_cuda/deepseek-4h": 2,
    "tiny_experts/mixtral-5x2": 2,
}


@needs_compiler
@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_nodes_give_the_tokens_of_one_gpu(name: str) -> None:
    one, dealt = (Dealt(DATA / name, nodes).model() for nodes in (1, MODELS[name]))
    wanted, logits = continued(one)
    found, others = continued(dealt)
    assert found == wanted
    assert np.abs(others - logits).max() <= 1e-3 * np.abs(logits).max()


@needs_compiler
@pytest.mark.models
def test_the_command_gives_the_tokens_of_transformers(tmp_path, capsys) -> None:
    """Compiled and then run, all nodes here."""
    want = json.loads((LLAMA / "expected.json").read_text())
    out, ids = str(tmp_path / "out"), ",".join(map(str, want["prompt_ids"]))
    assert (
        main(["compile", str(LLAMA), "--target", "cuda", "--nodes", "2", "--seq", "40", "-o", out])
        == 0
    )
    said = capsys.readouterr().out
    assert "GPUs of 2 nodes, which pass 1 layers each" in said
    assert "us on its 2 nodes, one behind the other, with 39 tokens before it" in said
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert faults(manifest, json_schema("manifest")) == []
    words = ["run", out, "--backend", "cuda-cpu", "--weights", str(LLAMA), "--prompt-ids", ids]
    assert main([*words, "--max-tokens", str(len(want["tokens"]))]) == 0
    assert capsys.readouterr().out == ",".join(map(str, want["tokens"])) + "\n"


@needs_compiler
@pytest.mark.models
def test_processes_hand_rows_on(monkeypatch) -> None:
    """A thread for each node, over a stand-in for torch.distributed: both have all tokens of one
    GPU."""
    dealt = llama(2)
    wanted = continued(llama(1).model())[0]
    group = Group(2)
    found: dict[int, object] = {}

    def process(node: int) -> None:
        try:
            links = group.links(node, monkeypatch)
            machine = OneAtATime(dealt.program.kernels, dealt.texts, toolchain=QUICK)
            model = LanguageModel(
                dealt.program, Nodes(dealt.program, [machine], links), dealt.tensors
            )
            assert model.machine.here == (node,)
            found[node] = continued(model)[0]
            links._wait()
        except BaseException as error:
            found[node] = error
            group.broken.set()

    threads = [threading.Thread(target=process, args=(node,)) for node in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: wanted, 1: wanted}


class OneAtATime(CpuMachine):
    """The executor keeps memory for the next launch of a process, and so takes one at a time."""

    taken = threading.Lock()

    def run(self, launches) -> None:
        with self.taken:
            super().run(launches)


class Group:
    """Threads in the place of the processes of torch.distributed."""

    def __init__(self, count: int) -> None:
        self.count, self.broken = count, threading.Event()
        self.ways = {(n, m): queue.Queue() for n in range(count) for m in range(count)}

    def links(self, node: int, monkeypatch: pytest.MonkeyPatch) -> TorchLinks:
        made = TorchLinks.__new__(TorchLinks)
        made._torch = SimpleNamespace(from_numpy=lambda array: array)
        made._group = SimpleNamespace(
            get_rank=lambda: node,
            get_world_size=lambda: self.count,
            isend=lambda array, to: self.send(array, node, to),
            recv=lambda array, of: self.receive(array, of, node),
            broadcast=lambda array, of: self.broadcast(array, of, node),
        )
        made._on_their_way = []
        return made

    def send(self, array: np.ndarray, of: int, to: int) -> SimpleNamespace:
        self.ways[of, to].put(array)
        return SimpleNamespace(wait=lambda: None)

    def receive(self, array: np.ndarray, of: int, to: int) -> None:
        while not self.broken.is_set():
            try:
                array[...] = self.ways[of, to].get(timeout=0.2)
                return
            except queue.Empty:
                continue
        raise RuntimeError("the other node has ended")

    def broadcast(self, array: np.ndarray, of: int, node: int) -> None:
        if node != of:
            self.receive(array, of, node)
            return
        for other in range(self.count):
            if other != of:
                self.ways[of, other].put(array.copy())


@needs_compiler
@pytest.mark.models
@pytest.mark.oracle
def test_processes_of_torch_hand_rows_on(tmp_path) -> None:
    """The commands of the page, by torch.distributed and gloo."""
    pytest.importorskip("torch")
    want = json.loads((LLAMA / "expected.json").read_text())
    out = str(tmp_path / "out")
    words = ["compile", str(LLAMA), "--target", "cuda", "--nodes", "2", "--seq", "40", "-o", out]
    assert main(words) == 0
    words = ["--nproc-per-node", "2", "--local-ranks-filter", "0", f"{out}/run.py"]
    words += ["--backend", "cuda-cpu", "--prompt-ids", ",".join(map(str, want["prompt_ids"]))]
    words += ["--weights", str(LLAMA), "--max-tokens", str(len(want["tokens"]))]
    known = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=known, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ",".join(map(str, want["tokens"])) + "\n"


@pytest.mark.parametrize(("layers", "count"), [(2, 2), (5, 4), (30, 4), (7, 7), (9, 2)])
def test_each_layer_is_of_one_node(layers: int, count: int) -> None:
    dealt = llama(2).program
    program = replace(dealt, nodes=replace(dealt.nodes, count=count, layers=layers))
    passed = [layers_of(program, node) for node in range(count)]
    assert [layer for own in passed for layer in own] == list(range(layers))
    most = program.nodes.of_each
    assert {len(own) for own in passed} <= {most, most - 1} and max(map(len, passed)) == most
    whole = {"wq": np.arange(layers * 3).reshape(layers, 3), "embedding": np.arange(3)}
    names = [w.sources for w in program.weights.values() if w.layers]
    stacked = {names[0][0]: whole["wq"], "embedding": whole["embedding"]}
    for node, own in enumerate(passed):
        tensors = NodeTensors(program, stacked, node)
        part, one_by_one = tensors[names[0][0]], tensors.stored(names[0][0])
        assert part.shape == one_by_one.shape == (most, 3)
        assert (part[: len(own)] == whole["wq"][own.start : own.stop]).all()
        assert not part[len(own) :].any()
        assert all((one_by_one[n] == part[n]).all() for n in range(most))
        assert (tensors["embedding"] == whole["embedding"]).all()


def test_a_node_has_the_memory_of_its_layers() -> None:
    one, two = (memory_of(llama(nodes).program) for nodes in (1, 2))
    assert two.caches == one.caches // 2
    assert one.weights // 2 < two.weights < one.weights  # tables of words are on each


EDITS = {
    "weights of the first node": ("wq -= (size_t)from_layer * 8192;", ""),
    "weights of another matrix": ("wo -= (size_t)from_layer * 8192", "wo -= from_layer * 4096"),
    "caches of the first node": ("cache_v -= (size_t)from_layer", "cache_v -= (size_t)0 *"),
    "each node looks words up": ("if (from_layer == 0) {", "{"),
    "one layer less": ("min(to_layer, 2)", "min(to_layer, 1)"),
    "each node passes all layers": ("int layer = from_layer;", "int layer = 0;"),
}  # fmt: skip


@needs_compiler
@pytest.mark.models
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if i % 6 else n for i, n in enumerate(EDITS)]
)
def test_edits_of_what_nodes_have_are_noticed(name: str) -> None:
    """By other numbers, or as an access outside of what a node has."""
    dealt, (old, new) = llama(2), EDITS[name]
    assert old in dealt.texts["step.cu"]
    wanted, edited = dealt.model().prefill([5, 17, 3]), copy(dealt)
    changed = {file: dealt.texts[file].replace(old, new) for file in ("step.cu", "prompt.cu")}
    edited.texts = {**dealt.texts, **changed}
    try:
        found = edited.model().prefill([5, 17, 3])
    except MeshcError as error:
        assert error.diagnostics[0].code == "cuda-executor"
    else:
        assert not np.allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


@needs_compiler
@pytest.mark.models
@pytest.mark.slow
def test_nodes_race_in_no_order() -> None:
    dealt = Dealt(LLAMA, 2, batch=1)
    wanted = dealt.model().prefill([5, 17, 3, 4])
    for mode in (Mode("random", True, 3), Mode("starve_block", True)):
        assert (dealt.model(mode, WATCHED).prefill([5, 17, 3, 4]) == wanted).all()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--nodes", "0"], "--nodes"),
        (["--nodes", "17"], "--nodes"),
        (["--nodes", "2", "--gpus", "2"], "with --gpus 2 are dealt to no nodes"),
        (["--nodes", "2", "--chunk", "16"], "with --chunk 16 are dealt to no nodes"),
        (["--nodes", "2", "--cluster", "2"], "with --cluster 2 are dealt to no nodes"),
        (["--nodes", "2", "--standalone"], "--standalone writes programs of one GPU"),
        (["--nodes", "2", "--serving", "chunks"], "with --serving chunks are dealt to no nodes"),
        (["--nodes", "3"], "2 layers are too few for 3 nodes"),
    ],
)
def test_what_nodes_do_not_have_is_refused_by_name(more, words, tmp_path, capsys) -> None:
    out = str(tmp_path / "out")
    assert main(["compile", str(LLAMA), "--target", "cuda", "--seq", "40", *more, "-o", out]) == 1
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_nodes_are_of_no_single_machine() -> None:
    dealt = llama(2)
    alone = SimpleNamespace(kernels={})
    with pytest.raises(MeshcError, match="several nodes was given to a single machine"):
        LanguageModel(dealt.program, alone, {})
    with pytest.raises(MeshcError, match="is of 2 nodes, and 3 processes run it"):
        Nodes(dealt.program, [alone] * 3)


def test_one_process_is_no_node(monkeypatch) -> None:
    for name in ("LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(MeshcError, match="needs a process for each"):
        TorchLinks()
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MeshcError, match=r"hand rows on by torch.distributed"):
        TorchLinks()


def test_layers_of_several_kinds_are_refused(capsys) -> None:
    model = str(DATA / "tiny_latent_experts" / "deepseek-v3-8x3")
    assert main(["compile", model, "--target", "cuda", "--nodes", "2", "--seq", "40"]) == 1
    assert "layers of nodes are of one kind" in capsys.readouterr().err
