"""Steps and prompts of mixtures of experts as CUDA: the graph's logits, in every order, without a
race, by blocks that bring nothing of experts before they are chosen."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from reduced import each, only
from safetensors.numpy import save_file
from task_steps import device_of

import meshc
from meshc.backends.cuda import CpuMachine, LanguageModel, from_json
from meshc.backends.cuda.executor import CXX, FIRST, QUICK, WATCHED, Library, Mode, headers, modes
from meshc.cost.tasks.stages import LoopWork, PhaseWork
from meshc.cost.tasks.work import work_of
from meshc.frontend.checkpoints import open_checkpoint, read_config
from meshc.interp.graph import run_graph
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

DATA = Path(__file__).parents[1] / "data"
FOLDERS = ("tiny_experts", "tiny_gpt_oss", "tiny_latent_experts")
MODELS = sorted(path for folder in FOLDERS for path in (DATA / folder).iterdir())
MIXTRAL = DATA / "tiny_experts" / "mixtral-5x2"
GROUPS = DATA / "tiny_latent_experts" / "deepseek-v3-8x3"
STEPS = 6
# As a part of the largest logit: of steps the noise of sums, and elements of caches that are
# rounded the other way; vectors of prompts are rounded once.
BOUND, PROMPT_BOUND = 2.0**-8, 3 * 2.0**-8
SHARED = ((1, FIRST, QUICK), (3, Mode("random", True, 5), WATCHED))
"""Batches of which columns are shared, and how they run."""


@dataclass(frozen=True)
class Wanted:
    """Logits behind each of ``tokens``, by the graph with weights and caches of f16."""

    tokens: tuple[int, ...]
    logits: np.ndarray
    tensors: dict[str, np.ndarray]


@cache
def wanted(model: Path) -> Wanted:
    module = meshc.compile(
        str(model), compile_to="graph", seq=24, dtype="f32", phase="decode"
    ).modules["decode"]
    stored = open_checkpoint(model, read_config(model))
    roles = {p.value.name: p.role for p in module.function.params}
    states = [name for name, role in roles.items() if role == "state"]
    weights = {n: half(stored.read(n)) for n, role in roles.items() if role == "weight"}
    ids = np.random.default_rng(5).integers(0, module.dims["V"], STEPS)
    rows, caches = [], dict[str, np.ndarray]()
    for position, token in enumerate(ids):
        given = {"tokens": np.array([[token]]), **weights, **caches}
        logits, *more = run_graph(module, given, {"pos": position})
        caches = {name: half(value) for name, value in zip(states, more, strict=True)}
        rows.append(logits.reshape(-1))
    tensors = {name: stored.read(name) for name in stored.names()}
    return Wanted(tuple(map(int, ids)), np.array(rows), tensors)


def half(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float32)


@cache
def compiled(model: Path, device: str, batch: int = 1) -> meshc.Compiled:
    return meshc.compile(str(model), target="cuda", dtype="f16", seq=24, device=device, batch=batch)


def error(
    model: Path, device: str, mode: Mode = FIRST, toolchain=QUICK, batch: int = 1, edit=None
) -> float:
    """How far logits of all steps are off; other requests of a batch have the same tokens, one
    behind the other."""
    want, made = wanted(model), compiled(model, device, batch)
    texts = dict(made.files)
    if edit is not None:
        file, old, new = edit
        assert texts[file].count(old) == 1
        texts[file] = texts[file].replace(old, new)
    program = replace(from_json(texts["manifest.json"]), prefills=())
    machine = CpuMachine(program.kernels, texts, mode, toolchain)
    if edit is not None and file in headers():
        own = headers() | {file: texts[file]}
        machine._libraries["step"] = Library(texts["step.cu"], own, toolchain)
    running = LanguageModel(program, machine, want.tensors)
    most = 0.0
    for at in range(len(want.tokens) + batch - 1):
        behind = [min(max(at - b, 0), len(want.tokens) - 1) for b in range(batch)]
        found = running.step([want.tokens[n] for n in behind], behind)
        off = np.abs(found - want.logits[behind]).max() / np.abs(want.logits).max()
        assert np.isfinite(found).all()
        most = max(most, float(off))
    return most


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> str:
    return device_of(5, tmp_path_factory.mktemp("device"))


@pytest.mark.parametrize(("model", "number"), each(zip(MODELS, range(99), strict=False), 5))
def test_steps_give_the_logits_of_the_graph(model, number, device):
    """One request, and several, of which each is sent to experts of its own."""
    assert error(model, device, batch=1 + number % 3) <= BOUND


@pytest.fixture(scope="module")
def sixteen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mixtral of 32 elements and 16 experts, whose scores and gates are whole rows."""
    folder = tmp_path_factory.mktemp("sixteen")
    config = json.loads((MIXTRAL / "config.json").read_text())
    config |= {"hidden_size": 32, "num_local_experts": 16, "intermediate_size": 16, "head_dim": 8}
    config["vocab_size"] = 64
    (folder / "config.json").write_text(json.dumps(config))
    rng, shapes = np.random.default_rng(7), {}
    for layer in range(2):
        stem = f"model.layers.{layer}"
        shapes |= {f"{stem}.{kind}_layernorm.weight": (32,) for kind in ("input", "post_attention")}
        shapes |= {f"{stem}.self_attn.{one}_proj.weight": (32, 32) for one in "qo"}
        shapes |= {f"{stem}.self_attn.{one}_proj.weight": (16, 32) for one in "kv"}
        shapes[f"{stem}.block_sparse_moe.gate.weight"] = (16, 32)
        for expert in range(16):
            own = f"{stem}.block_sparse_moe.experts.{expert}"
            sizes = (("w1", (16, 32)), ("w2", (32, 16)), ("w3", (16, 32)))
            shapes |= {f"{own}.{one}.weight": shape for one, shape in sizes}
    shapes |= {"model.norm.weight": (32,), "model.embed_tokens.weight": (64, 32)}
    shapes["lm_head.weight"] = (64, 32)
    tensors = {name: rng.standard_normal(shape) / 4 for name, shape in shapes.items()}
    save_file({n: t.astype(np.float32) for n, t in tensors.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(("batch", "mode", "toolchain"), each(SHARED, 2))
def test_columns_that_gates_were_made_of_are_those_of_experts(
    batch, mode, toolchain, sixteen, device
):
    """Blocks have them from the phase before the choice; nothing makes them again behind it."""
    text = compiled(sixteen, device, batch).files["step.cu"]
    before, _, behind = text.partition("choice.make")
    assert "_columns" in before[before.index("// ---- gates") :]
    assert "_columns" not in behind[: behind.index("multiply_row_group")]
    assert error(sixteen, device, mode, toolchain, batch) <= BOUND


def test_a_step_copies_the_bytes_that_are_predicted(sixteen, device, monkeypatch):
    """Weights of the experts that a token is sent to, and of no others; rows that are cached."""
    want, made, copied = wanted(sixteen), compiled(sixteen, device), []
    run = Library.run
    monkeypatch.setattr(Library, "run", lambda *a, **k: copied.append(run(*a, **k)))
    program = replace(from_json(made.files["manifest.json"]), prefills=())
    running = LanguageModel(program, CpuMachine(program.kernels, made.files), want.tensors)
    for position, token in enumerate(want.tokens):
        running.step([token], [position])
        stages = work_of(made.modules["decode"], {"pos": position})
        assert copied.pop().copied_bytes == brought(stages)
        assert not copied


def brought(stages) -> int:
    """Bytes that tasks bring."""
    found = 0
    for stage in stages:
        if isinstance(stage, LoopWork):
            found += stage.count * brought(stage.body)
        elif isinstance(stage, PhaseWork):
            tasks = (one for family in stage.families for one in family.tasks)
            found += sum(piece.bytes for one in tasks for piece in one.pieces)
    return found


def test_prompts_give_them_too(device):
    want, made = wanted(MIXTRAL), compiled(MIXTRAL, device)
    program = from_json(made.files["manifest.json"])
    assert program.prefills
    running = LanguageModel(program, CpuMachine(program.kernels, made.files), want.tensors)
    found = running.prefill(want.tokens)
    off = np.abs(found - want.logits[-1]).max() / np.abs(want.logits).max()
    assert off <= PROMPT_BOUND


@pytest.mark.parametrize("model", only([MIXTRAL, GROUPS], MIXTRAL))
def test_every_order_of_threads_and_copies(model, device):
    assert {error(model, device, mode) <= BOUND for mode in modes()} == {True}


@pytest.mark.parametrize("late", only([0, 1], 1))
def test_no_two_threads_race(late, tmp_path):
    """The workers and the warp that brings what they have chosen."""
    few = device_of(3, tmp_path)
    assert error(MIXTRAL, few, Mode("random", bool(late), 5), WATCHED) <= BOUND


def test_experts_over_two_gpus():
    """The tokens of one."""
    prompt, given = wanted(MIXTRAL).tokens, {"target": "cuda", "dtype": "f16", "seq": 24}
    found = []
    for gpus in (1, 2):
        made = meshc.compile(str(MIXTRAL), device="h200", gpus=gpus, **given)
        with made.load(backend="cuda-cpu") as program:
            found.append(program.generate(prompt, 4, ignore_eos=True).tokens)
    assert found[0] == found[1]


EDITS = {
    "an expert more is chosen": ("mc_experts.cuh", "before < COUNT ?", "before <= COUNT ?"),
    "of equal groups the last": (
        "mc_experts.cuh", "if (before >= KEPT)", "if (before > KEPT)",
    ),
    "groups by their best expert": ("mc_experts.cuh", "if (before < BEST)", "if (before < 1)"),
    "gates as they are": ("mc_experts.cuh", "if (NORMALISED) {", "if (false) {"),
    "the last expert left out": (
        "mc_experts.cuh", "chosen[0] = count;", "chosen[0] = count > 1 ? count - 1 : count;",
    ),
    "experts in the place of others": (
        "mc_experts.cuh", "chosen[count + place] = x;", "chosen[count + place] = x / 2 * 2;",
    ),
    "one choice for all layers": (
        "mc_experts.cuh", "return words[(made - 1) % 2 * WORDS + 1 + n];", "return words[1 + n];",
    ),
    "brought before it is chosen": (
        "mc_experts.cuh",
        "        wait(told + made % 2, made / 2 & 1);\n        made++;\n    }\n\n    MC_INLINE int",
        "        made++;\n    }\n\n    MC_INLINE int",
    ),
    "told before it is written": (
        "mc_experts.cuh",
        "        group_sync(id, WORKERS);\n        if (me == 0) arrive(told + made % 2);",
        "        if (me == 0) arrive(told + made % 2);",
    ),
    "places of the whole warp": (
        "mc_experts.cuh", "if ((int)lane() >= apart) place += other;", "place += other;",
    ),
    "written over while it is read": (
        "mc_experts.cuh",
        "        if (made > 1 && me == 0) wait(told + (made - 1) % 2, (made - 1) / 2 & 1);\n", "",
    ),
}  # fmt: skip
EQUIVALENT = {
    "told before it is written": "who tells has written how many there are, workers have met since "
    "they wrote which, and meet for left sides before they read it",
    "written over while it is read": "each block has tiles of each layer here, so that workers are "
    "never two choices ahead of what is brought to them",
}


@pytest.mark.parametrize("name", only(EDITS, *list(EDITS)[::14]))
def test_edits_are_noticed(name, tmp_path):
    """By logits, by a race, or by a deadlock."""
    model = MIXTRAL if "choice" in name or "written" in name else GROUPS
    few = device_of(3, tmp_path)
    try:
        for mode in (Mode("forward", False), Mode("random", True, 3)):
            assert error(model, few, mode, WATCHED, edit=EDITS[name]) <= BOUND
    except (AssertionError, MeshcError):
        assert name not in EQUIVALENT
    else:
        assert name in EQUIVALENT
