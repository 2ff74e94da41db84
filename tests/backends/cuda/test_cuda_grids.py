"""Kernels may start before the grid in front of them has ended: what that one writes is used, and
anything written, only behind the wait for it, and the next grid is let go behind that wait."""

import json
import re
from functools import cache
from pathlib import Path

import mutation_judge
import numpy as np
import pytest

from meshc.backends.cuda import CpuMachine, LanguageModel, from_json
from meshc.backends.cuda.executor import CXX, WATCHED, ExecutorError, Grid, Library, Mode
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics

HERE = Path(__file__).parent
MODES = [Mode(), Mode("random", True, 3)]
WAIT = "mc::wait_for_previous_grid();"
LET_GO = "mc::let_next_grid_start();"

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


@cache
def followers(toolchain=WATCHED):
    return Library((HERE / "grids.cu").read_text(encoding="utf-8"), toolchain=toolchain)


def follow(kernel, mode, toolchain=WATCHED, written=(0,)):
    x, weights, y = np.ones(64, np.float32), np.ones(64, np.float32), np.zeros(64, np.float32)
    counts = followers(toolchain).run(
        kernel, Grid(3, 64, 1, 512), [x, weights, y], mode, written=written
    )
    assert (y == 3).all()
    return counts


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_thread_may_wait_for_others(mode):
    assert follow("in_order", mode).early_blocks == 3


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("reads_early", "reads byte .* of array 0 while the grid in front may run"),
        ("writes_early", "writes byte .* of array 2 while"),
        ("copies_early", "reads byte 0 of array 0 while"),
        ("no_barrier", "reads .* of array 0 while"),
        ("lets_go_early", "the next grid may start before the one in front has ended"),
    ],
)
def test_what_comes_before_the_wait_is_found(kernel, words):
    with pytest.raises(ExecutorError, match=words):
        follow(kernel, MODES[0])


def test_what_nobody_writes_may_be_read_early():
    follow("reads_early", MODES[0], written=())
    with pytest.raises(ExecutorError, match="before the one in front has ended"):
        follow("lets_go_early", MODES[0], CXX, None)


IN_CI = ("logits", "embed")
EMITTED = [
    n if n in IN_CI else pytest.param(n, marks=pytest.mark.slow)
    for n in mutation_judge.RIGS
    if mutation_judge.rig(n).file not in mutation_judge.DRIVERS
]


def watched(rig, text):
    library = Library(text, toolchain=WATCHED)
    return library.run(rig.kernel, rig.grid, rig.arguments(), written=rig.written)


@pytest.mark.parametrize("name", EMITTED)
def test_what_the_grid_before_writes_is_read_behind_the_wait(name):
    rig = mutation_judge.rig(name)
    assert watched(rig, rig.text).early_blocks == rig.grid.blocks
    assert rig.text.count(LET_GO) == 1
    # Without one of the waits, or with one that a thread does not make.
    lines = rig.text.replace(LET_GO, "").split("\n")
    places = [n for n, line in enumerate(lines) if WAIT in line]
    assert len(places) == 1
    for less in ("", f"if (mc::thread()) {WAIT}"):
        edited = [*lines[: places[0]], less, *lines[places[0] + 1 :]]
        with pytest.raises(ExecutorError, match="in front"):
            watched(rig, "\n".join(edited))


CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 64, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 20,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 256,
    "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "float16",
}  # fmt: skip


def writes(text, kernel):
    """Which arguments a kernel may write: pointers to what is not const."""
    arguments = re.search(rf"\b{kernel}\((.*?)\)\s*\{{", text, re.DOTALL)[1].split(",")
    return [n for n, a in enumerate(arguments) if "*" in a and not a.strip().startswith("const")]


class WatchedMachine(CpuMachine):
    """Watches what each launch uses that the one in front of it writes."""

    def __init__(self, kernels, texts):
        super().__init__(kernels, texts)
        self.libraries = {
            name: Library(texts[kernel.file], toolchain=WATCHED) for name, kernel in kernels.items()
        }
        self.writes = {name: writes(texts[k.file], name) for name, k in kernels.items()}
        self.overlapping = 0

    def run(self, launches):
        before = []
        for launch, layer in launches:
            kernel = self.kernels[launch.kernel]
            grid = Grid.of(kernel)
            arguments = [self.argument(a, layer) for a in launch.arguments]
            shared = [
                n
                for n, a in enumerate(arguments)
                if isinstance(a, np.ndarray) and any(np.may_share_memory(a, b) for b in before)
            ]
            written = None if launch is launches[0][0] else shared
            counts = self.libraries[launch.kernel].run(
                launch.kernel, grid, arguments, self.mode, written=written
            )
            # A kernel made of tasks is the last of its launches.
            assert counts.early_blocks == (0 if kernel.whole_grid else grid.blocks)
            self.overlapping += bool(written)
            before = [arguments[n] for n in self.writes[launch.kernel]]


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [None, 64])
def test_launches_that_overlap_use_nothing_early(chunk, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    report = Diagnostics()
    request = CompileRequest(target="cuda", dtype="f16", seq=64, chunk=chunk)
    result = compile_loaded(load_any(str(tmp_path), report), request, (), report)
    program, rng = from_json(result.files["manifest.json"]), np.random.default_rng(1)
    weights = {
        source: rng.standard_normal(shape) * 0.1
        for weight in program.weights.values()
        for source, shape in zip(weight.sources, weight.source_shapes, strict=True)
    }
    machine = WatchedMachine(program.kernels, result.files)
    model = LanguageModel(program, machine, weights)
    model.prefill([3, 1])
    model.step([5], [2])
    # Of both lists all but the first launch.
    lists = program.prefills[0].launches(True), program.launches()
    assert machine.overlapping == sum(len(launches) - 1 for launches in lists)
