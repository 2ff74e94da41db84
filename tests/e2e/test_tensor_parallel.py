"""Random small models on nodes of GPUs: every level, and the emitted program, compute what the
graph means, with heads of any grouping, key heads on several GPUs, and forms pinned at random."""

from __future__ import annotations

import json
import random
from collections import Counter
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from mesh_programs import MeshProgram
from reduced import each, only

from meshc.analysis.layout.tiling import Tiling
from meshc.driver import CompileRequest, graph_module, load_any
from meshc.interp.check import check_outcomes, random_trace, run_from
from meshc.interp.sessions import Session
from meshc.ir.clone import clone_module
from meshc.ir.module import Level, Module
from meshc.passes.manager import PassManager
from meshc.passes.mesh.form_search import Search
from meshc.passes.mesh.partition import Partition
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import Diagnostics

CAPACITY, PROMPT, STEPS = 9, 5, 3


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a node like h100x8 with eight rows of sixteen GPUs."""
    entry = resources.files("meshc.devices") / "data" / "h100x8.toml"
    path = tmp_path_factory.mktemp("node") / "node.toml"
    text = entry.read_text().replace("cores_y = {value = 1,", "cores_y = {value = 8,")
    path.write_text(text.replace("cores_x = {value = 8,", "cores_x = {value = 16,"))
    return str(path)


def drawn_model(drawn: random.Random, folder: Path, keys: int = 0, group: int = 0) -> str:
    """The configuration of a model of two layers, in sizes that few numbers divide."""
    keys, group = keys or drawn.choice([1, 1, 2, 2, 3, 5]), group or drawn.choice([1, 2, 3, 4])
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": drawn.randint(9, 30),
        "intermediate_size": drawn.randint(9, 40),
        "num_attention_heads": keys * group,
        "num_key_value_heads": keys,
        "head_dim": drawn.choice([2, 4, 6, 8]),
        "num_hidden_layers": 2,
        "vocab_size": drawn.randint(20, 40),
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


class Phases:
    """The graphs of both phases of a model, and what the passes make of them on a mesh."""

    def __init__(
        self,
        model: str,
        mesh: str,
        node: str,
        drawn: random.Random | None = None,
        regions: int = 1,
    ) -> None:
        self.regions = regions
        loaded = load_any(model, Diagnostics())
        self.request = CompileRequest(device=node, mesh=mesh, seq=CAPACITY, dtype="f32")
        self.graphs = {p: graph_module(loaded, p, self.request) for p in loaded.phases()}
        self.pins = {p: self.drawn_pins(p, drawn) if drawn else () for p in self.graphs}
        self.mesh, self.tile = self.lowered("mesh"), self.lowered("tile")

    def drawn_pins(self, phase: str, drawn: random.Random) -> tuple[str, ...]:
        """One of the forms of each product, of some of them, whatever it costs."""
        prepared = PassManager(pipeline_to("graph")).run(clone_module(self.graphs[phase]))
        search = Search(Partition(grid=self.request.grid).problem(prepared))
        best = search.run()[0]
        known = {name: search.several[name] for name, _ in best.chosen if name in search.several}
        names = ("x", "q", "gate", "y", *(["o"] if phase == "prefill" else []))
        several = {n: forms for n, forms in known.items() if n in names}
        return tuple(f"{n}={drawn.choice(f)}" for n, f in several.items() if drawn.random() < 0.7)

    def tiling(self) -> Tiling:
        """How heads meet the mesh."""
        prepared = PassManager(pipeline_to("graph")).run(clone_module(self.graphs["decode"]))
        return Partition(grid=self.request.grid).problem(prepared).tiling

    def lowered(self, level: Level) -> dict[str, Module]:
        found = {}
        for phase, module in self.graphs.items():
            settings = {
                "partition": str(Partition(grid=self.request.grid, forms=self.pins[phase])),
                "split-regions": f"split-regions{{regions={self.regions}}}",
            }
            steps = pipeline_to(level, settings)
            found[phase] = PassManager(steps).run(clone_module(module))
        return found

    def judge_levels(self, seed: int) -> None:
        """Prefill, then decode from what it has left, at the mesh level and at the tile level."""
        read = random_trace(self.graphs["prefill"], seed)
        step = random_trace(self.graphs["decode"], seed, STEPS, read.steps[0][1]["len"])
        start = run_from(self.graphs["prefill"], read)
        wanted = run_from(self.graphs["decode"], step, start.state)
        for modules in (self.mesh, self.tile):
            left = run_from(modules["prefill"], read)
            got = run_from(modules["decode"], step, left.state)
            check_outcomes(self.graphs["prefill"], modules["prefill"], start.results, left.results)
            check_outcomes(
                self.graphs["decode"],
                modules["decode"],
                wanted.results,
                got.results,
                self.graphs["prefill"],
            )

    def judge_program(self, seed: int, folder: Path) -> None:
        """The emitted program continues a prompt as the graph does."""
        tensors = dict(random_trace(self.graphs["prefill"], seed).constant)
        tensors |= dict(random_trace(self.graphs["decode"], seed).constant)
        vocab = tensors["embedding"].shape[0]
        ids = [int(n) for n in np.random.default_rng(seed).integers(0, vocab, PROMPT)]
        program = MeshProgram("model", self.tile, tensors, CAPACITY)
        tokens, logits = program.run(folder, ids, STEPS)
        wanted_tokens, wanted = self.continued(tensors, ids)
        assert np.abs(logits - wanted).max() <= 2e-4 * np.abs(wanted).max()
        assert tokens == wanted_tokens

    def continued(
        self, tensors: dict[str, np.ndarray], ids: list[int]
    ) -> tuple[list[int], np.ndarray]:
        """Greedy tokens and logits [STEPS, vocab] by the graph."""
        prefill = Session(self.graphs["prefill"], tensors)
        prefill.step({"tokens": np.array([ids[:-1]])}, {"len": len(ids) - 1})
        decode = Session(self.graphs["decode"], tensors)
        decode.adopt_state(prefill)
        tokens, logits, last = [], [], ids[-1]
        for position in range(len(ids) - 1, len(ids) - 1 + STEPS):
            (found,) = decode.step({"tokens": np.array([[last]])}, {"pos": position})
            logits.append(found.ravel())
            last = int(found.argmax())
            tokens.append(last)
        return tokens, np.array(logits)


def judge(seed: int, folder: Path, node: str) -> Phases:
    drawn = random.Random(seed)
    columns, rows = drawn.choice([*((n, 1) for n in range(1, 9)), (2, 2), (3, 2), (4, 2), (2, 3)])
    model, regions = drawn_model(drawn, folder), drawn.choice([1, 1, 2]) if columns < 5 else 1
    phases = Phases(model, f"gpu={columns},row={rows}", node, drawn, regions)
    phases.judge_levels(seed)
    phases.judge_program(seed, folder / "program")
    return phases


@pytest.mark.parametrize("seed", only(range(8), 0, 1))
def test_random_models_on_nodes(seed: int, tmp_path: Path, node: str) -> None:
    judge(seed, tmp_path, node)


@pytest.mark.slow
def test_many_random_models_on_nodes(tmp_path: Path, node: str) -> None:
    pins: Counter[str] = Counter()
    for seed in range(100, 400):
        folder = tmp_path / str(seed)
        folder.mkdir()
        phases = judge(seed, folder, node)
        pins.update(pin for found in phases.pins.values() for pin in found)
    print(pins)


@pytest.mark.parametrize(
    ("keys", "group", "columns", "copies"),
    each(
        [
            (3, 2, 6, 2),
            (2, 4, 8, 4),
            (1, 8, 8, 8),
            (1, 7, 7, 7),
            (1, 4, 8, 4),
            (3, 2, 8, 2),
            (8, 2, 16, 2),
        ],
        4,
    ),
)
def test_gpus_share_key_heads(
    keys: int, group: int, columns: int, copies: int, tmp_path: Path, node: str
) -> None:
    """Each GPU has whole query heads and the key head that they read, which others have too."""
    model = drawn_model(random.Random(keys), tmp_path, keys, group)
    phases = Phases(model, f"gpu={columns}", node)
    tiling = phases.tiling()
    cache = next(p for p in phases.mesh["decode"].function.params if p.value.name == "cache_k")
    assert (tiling.copies, tiling.key_block) == (copies, 1)
    assert f"G_gpuh*{copies}:1" in str(cache.value.type)
    phases.judge_levels(1)
    phases.judge_program(1, tmp_path / "program")
