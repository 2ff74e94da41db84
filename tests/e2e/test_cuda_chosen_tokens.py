"""Tokens that programs for CUDA choose themselves are those that the host takes, however many steps
a launch has; prompts of a batch, tokens that end a text, and prompts that are read in any way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reduced import each

import meshc
from meshc.backends.cuda import CpuMachine, CpuNode, Draw, LanguageModel, from_json
from meshc.backends.cuda.executor import CXX, QUICK
from meshc.cli import main
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.frontend.checkpoints import open_checkpoint, read_config
from meshc.serving.sampling import Sampler, Sampling
from meshc.support.diagnostics import Diagnostics, MeshcError

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler"),
]

DATA = Path(__file__).parents[1] / "data"
FOLDERS = ("tiny", "tiny_cuda", "tiny_dense", "tiny_families", "tiny_scaled")
MODELS = sorted(path for folder in FOLDERS for path in (DATA / folder).iterdir())
NAMES = [f"{path.parent.name}/{path.name}" for path in MODELS]
COUNT, STEPS = 6, (1, 4, 16)


def loaded(path: Path, **options: object) -> LanguageModel:
    """The program of a checkpoint in the executor, of as many GPUs as it is for."""
    config, report = read_config(path), Diagnostics()
    request = CompileRequest(target="cuda", seq=40, **{"dtype": "f16"} | options)
    result = compile_loaded(load_any(str(path), report), request, (), report)
    program = from_json(result.files["manifest.json"])
    checkpoint = open_checkpoint(path, config)
    tensors = {name: checkpoint.read(name) for name in checkpoint.names()}
    if program.ranks is not None:
        machine = CpuNode(program.kernels, result.files, program.ranks.count, toolchain=QUICK)
    else:
        machine = CpuMachine(program.kernels, result.files, toolchain=QUICK)
    return LanguageModel(program, machine, tensors)


def check(model: LanguageModel, prompts: list[list[int]]) -> None:
    """Any number of steps in a launch gives the host's tokens, and ends where it does."""
    wanted = model.generate_all(prompts, COUNT, lambda *_: False)
    for steps in STEPS:
        told: list[tuple[int, int]] = []
        found = model.generate_chosen(
            prompts, COUNT, lambda *one, to=told: to.append(one), (), steps
        )
        assert found == wanted
        assert [[t for r, t in told if r == n] for n in range(len(prompts))] == wanted
    ends = {wanted[0][2], 5}
    ended = model.generate_all(prompts, COUNT, lambda *_: False, ends)
    assert len(ended[0]) <= 3
    for steps in STEPS:
        assert model.generate_chosen(prompts, COUNT, lambda *_: False, ends, steps) == ended
    assert model.machine.read("left").tolist()[0] == 0


def check_draws(model: LanguageModel, prompts: list[list[int]], sampling: Sampling) -> None:
    """Any number of steps in a launch draws the host's tokens, from the same seed."""

    def samplers() -> list[Sampler]:
        return [Sampler(sampling, 0xFEDCBA9876543210, number) for number in range(len(prompts))]

    ends, own = {5}, samplers()
    wanted = model.generate_all(
        prompts, COUNT, lambda *_: False, ends, lambda number, row: own[number](row)
    )
    for steps in STEPS:
        own = samplers()
        keys = [one.key for one in own]
        draw = Draw(sampling.numbers().tolist(), keys, lambda number, row, of=own: of[number](row))
        found = model.generate_chosen(prompts, COUNT, lambda *_: False, ends, steps, draw)
        assert found == wanted


SAMPLINGS = [
    Sampling(1.0), Sampling(2.0, top_k=9), Sampling(1.5, top_p=0.8), Sampling(3.0, 20, 0.9, 0.1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "number"), each(zip(NAMES, range(99), strict=False), 60))
def test_every_tiny_model_chooses_what_the_host_does(name: str, number: int) -> None:
    batch = 1 + number % 3
    try:
        model = loaded(DATA / name, batch=batch)
    except MeshcError as refusal:
        pytest.skip(refusal.diagnostics[0].message)
    prompts = [[7, 3, 9, 11, 2], [4], [8, 8, 1]][:batch]
    check(model, prompts)
    check_draws(model, prompts, SAMPLINGS[number % 4])


@pytest.mark.parametrize(
    "options",
    [
        {"chunk": 8},
        pytest.param({"gpus": 2, "collectives": "peers"}, marks=pytest.mark.slow),
        pytest.param({"cluster": 2}, marks=pytest.mark.slow),
        pytest.param({"dataflow": "split_head", "cluster": 2, "batch": 2}, marks=pytest.mark.slow),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_whatever_reads_the_prompt(options: dict) -> None:
    """Kernels of many tokens, which give logits; steps alone; two GPUs."""
    prompts = [[7, 3, 9, 11, 2, 5, 6, 1, 12, 14], [4]][: options.get("batch", 1)]
    model = loaded(DATA / "tiny_cuda" / "llama-4h2", **options)
    check(model, prompts)
    check_draws(model, prompts, SAMPLINGS[3])


def test_a_stop_of_the_host_ends_a_request_amid_a_launch() -> None:
    """A text to stop at, which the program does not know; more tokens that end a text than it
    takes notice of; a cache that is full behind the last token."""
    model = loaded(DATA / "tiny_cuda" / "llama-4h2", batch=2)
    prompts = [[7, 3, 9], [4, 1]]
    wanted = model.generate_all(prompts, COUNT, lambda *_: False)

    def third(request: int, token: int) -> bool:
        return request == 0 and token == wanted[0][2]

    found = model.generate_chosen(prompts, COUNT, third, (), 4)
    assert found == [wanted[0][:3], wanted[1]]
    many = [*(t for t in range(60) if t not in {*wanted[0], *wanted[1]}), wanted[0][2]]
    assert model.generate_chosen(prompts, COUNT, lambda *_: False, many, 16)[0] == wanted[0][:3]
    full = [[1 + n % 50 for n in range(38)], [3]]
    wanted = model.generate_all(full, 3, lambda *_: False)
    assert model.generate_chosen(full, 3, lambda *_: False, (), 16) == wanted


def test_what_no_launch_has_is_refused() -> None:
    model = loaded(DATA / "tiny_cuda" / "llama-4h2")
    for steps in (0, 65):
        with pytest.raises(
            MeshcError, match=rf"{steps} steps were asked for, and a launch has 1 to"
        ):
            model.generate_chosen([[1]], 2, lambda *_: False, (), steps)
    with pytest.raises(MeshcError, match="2 prompts, but the program takes 1"):
        model.generate_chosen([[1], [2]], 2, lambda *_: False)


def test_logits_that_are_no_numbers_end_a_run() -> None:
    model = loaded(DATA / "tiny_cuda" / "llama-4h2")
    for name in model.program.weights:
        model.machine.write(name, np.full_like(model.machine.read(name), 0x7E5A))
    with pytest.raises(MeshcError, match="no largest number that is finite"):
        model.generate_chosen([[1, 2]], 2, lambda *_: False)


COMMAND = ["run", str(DATA / "tiny_cuda" / "llama-4h2"), "--target", "cuda", "--seq", "40"]


@pytest.mark.parametrize(
    ("how", "steps"),
    [([], ["--steps", "4"]), (["--temperature", "2", "--top-p", "0.9", "--seed", "5"], [])],
)
def test_the_command_lets_the_program_choose(how, steps, tmp_path, capsys) -> None:
    """With logits, which the host is given, the same tokens come."""
    words = [*COMMAND, "--backend", "cuda-cpu", "--ignore-eos", "--max-tokens", "6", *how]
    words += ["--prompt-ids", "7,3,9", "--prompt-ids", "7,3,9"]
    assert main([*words, *steps]) == 0
    chosen = capsys.readouterr().out
    assert main([*words, "--logits", str(tmp_path / "logits.npy")]) == 0
    assert capsys.readouterr().out == chosen
    logits = np.load(tmp_path / "logits.npy")
    likeliest = "".join(
        f"[{n}] {','.join(map(str, rows.argmax(-1)))}\n" for n, rows in enumerate(logits, 1)
    )
    assert (likeliest == chosen) == (not how)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--steps", "0"], "--steps is 0, not 1 or more"),
        (["--steps", "65"], "--steps is 65, but a launch of this program has 64 at the most"),
        (["--steps", "4", "--logits", "x.npy"], "--steps is 4, but the host is given logits"),
    ],
)
def test_steps_that_no_launch_has_are_refused(more, words, capsys) -> None:
    given = [*COMMAND, "--backend", "cuda-cpu", "--prompt-ids", "7,3,9", "--max-tokens", "2"]
    assert main([*given, *more]) == 1
    assert words in capsys.readouterr().err


def test_the_library_lets_the_program_choose() -> None:
    compiled = meshc.compile(str(DATA / "tiny_cuda" / "llama-4h2"), target="cuda", seq=40)
    with compiled.load(backend="cuda-cpu") as model:
        wanted = model.generate([7, 3, 9], 5, ignore_eos=True)
        found = model.generate([7, 3, 9], 5, ignore_eos=True, logits=False, steps=4)
        assert found.tokens == wanted.tokens
        assert len(wanted.logits) == 5 and not len(found.logits)


def test_programs_that_leave_the_choice_to_the_host_take_no_steps(capsys) -> None:
    words = ["run", str(DATA / "tiny" / "llama-3h1"), "--prompt-ids", "7,3", "--steps", "4"]
    assert main([*words, "--mesh", "2x2", "--max-tokens", "2"]) == 1
    assert "--steps is 4, but this program leaves the choice of tokens to the host" in (
        capsys.readouterr().err
    )
