"""Texts that steps continue by verifying drafts: whatever is guessed, tokens are those of steps
that read one, greedy or drawn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from reduced import only

import meshc
from meshc.backends.cuda import CpuMachine, LanguageModel, from_json
from meshc.backends.cuda.drafted import DraftedModel
from meshc.backends.cuda.executor import CXX, QUICK
from meshc.cli import main
from meshc.driver import CompileRequest, compile_loaded, load_any, open_weights
from meshc.serving.drafting import Repeats
from meshc.serving.sampling import Sampler, Sampling
from meshc.support.diagnostics import Diagnostics, MeshcError

DATA = Path(__file__).parents[2] / "data"
LLAMA = DATA / "tiny_cuda" / "llama-4h2"
PROMPTS, COUNT = [[7, 3, 9, 11, 2, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8, 9], [4]], 8

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler"),
]


def loaded(path: Path, drafts: int, **options: object) -> LanguageModel:
    """The program of a checkpoint in the executor, which counts its runs."""
    opened = load_any(str(path), Diagnostics())
    asked = {"dtype": "f16", "seq": 40, "batch": 3, "drafts": drafts} | options
    compiled = compile_loaded(opened, CompileRequest(target="cuda", **asked))
    program = from_json(compiled.files["manifest.json"])
    machine = Counting(program.kernels, compiled.files, toolchain=QUICK)
    made = DraftedModel if drafts else LanguageModel
    return made(program, machine, open_weights(path, opened.config, None, Diagnostics()))


class Counting(CpuMachine):
    steps = 0

    def run(self, launches) -> None:
        self.steps += launches[0][0].kernel == "step"
        super().run(launches)


class Known:
    """Drafts of ``wanted`` tokens, of which ``right`` are right."""

    def __init__(self, wanted: list[list[int]], right: int) -> None:
        self.wanted, self.right = wanted, right

    def draft(self, texts):
        found = {}
        for request, (text, most) in texts.items():
            rest = self.wanted[request][len(text) - len(PROMPTS[request]) :]
            found[request] = [*rest[: self.right], 999_999 if self.right % 2 else 0][:most]
        return found


@pytest.fixture(scope="module")
def pair():
    """Without drafts, and with three."""
    return loaded(LLAMA, 0), loaded(LLAMA, 3)


def greedy(request: int, row: np.ndarray) -> int:
    return int(row.argmax())


@pytest.mark.parametrize("right", only([0, 1, 3], 1))
def test_any_drafts_give_the_tokens_of_none(pair, right) -> None:
    one, drafted = pair
    wanted = one.generate_all(PROMPTS, COUNT, lambda *_: False)
    told: list[tuple[int, int]] = []
    before = drafted.machine.steps
    found = drafted.generate_drafted(
        PROMPTS, COUNT, lambda r, t, _: told.append((r, t)), (), greedy, Known(wanted, right)
    )
    assert found == wanted
    assert [[t for r, t in told if r == n] for n in range(2)] == wanted
    taken = drafted.machine.steps - before - len(PROMPTS)  # which read the last of each prompt
    assert taken == -(-(COUNT - 1) // (1 + right))


@pytest.mark.slow
def test_draws_ends_and_stops_are_those_of_no_drafts(pair) -> None:
    one, drafted = pair

    def drawn(model: LanguageModel, *drafter: object) -> list[list[int]]:
        samplers = [Sampler(Sampling(1.5), 11, number) for number in range(2)]
        how = PROMPTS, COUNT, lambda r, t, _: r == 1 and t == ended[1][2], {ended[0][4]}
        choose = lambda number, row: samplers[number](row)  # noqa: E731
        generate = model.generate_drafted if drafter else model.generate_all
        return generate(*how, choose, *drafter)

    ended = [[-1] * COUNT] * 2
    wanted = drawn(one)
    assert drawn(drafted, Known(wanted, 2)) == wanted
    ended = wanted
    shorter = drawn(one)
    assert [len(row) for row in shorter] < [len(row) for row in wanted]
    assert drawn(drafted, Known(wanted, 3)) == shorter
    assert drawn(drafted, Repeats()) == shorter


@pytest.mark.slow
def test_requests_have_room_for_drafts_behind_their_tokens(pair) -> None:
    drafted = pair[1]
    full = [1] * 34
    (found,) = drafted.generate_drafted([full], 4, lambda *_: False, (), greedy, Repeats())
    assert len(found) == 4
    with pytest.raises(
        MeshcError, match="34 prompt tokens and 5 new ones do not fit a cache of 37"
    ):
        drafted.generate_drafted([full], 5, lambda *_: False, (), greedy, Repeats())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["tiny_cuda/deepseek-4h", "tiny_experts/mixtral-5x2", "tiny_families/cohere2-6h2-window"],
)
def test_families_verify_drafts(name) -> None:
    """Twelve tokens of three requests, beside the same program one by one: more than four round
    otherwise than those of a program without drafts."""
    drafted = loaded(DATA / name, 3)
    wanted = drafted.generate_all(PROMPTS, COUNT, lambda *_: False)
    for right in (0, 2, 3):
        known = Known(wanted, right)
        found = drafted.generate_drafted(PROMPTS, COUNT, lambda *_: False, (), greedy, known)
        assert found == wanted


def test_the_command_verifies_what_texts_repeat(capsys) -> None:
    want = json.loads((LLAMA / "expected.json").read_text())
    words = ["--backend", "cuda-cpu", "--prompt-ids", ",".join(map(str, want["prompt_ids"]))]
    words += ["--max-tokens", str(len(want["tokens"]))]
    assert main(["run", str(LLAMA), "--target", "cuda", "--drafts", "3", *words]) == 0
    assert capsys.readouterr().out == ",".join(map(str, want["tokens"])) + "\n"


@pytest.mark.slow
def test_a_compiled_directory_verifies_what_texts_repeat(tmp_path, capsys) -> None:
    ids = ",".join(map(str, PROMPTS[0]))
    words = ["--backend", "cuda-cpu", "--prompt-ids", ids, "--max-tokens", "8", "--ignore-eos"]
    assert main(["run", str(LLAMA), "--target", "cuda", *words]) == 0
    wanted = capsys.readouterr().out
    out = str(tmp_path / "out")
    compiling = ["compile", str(LLAMA), "--target", "cuda", "--seq", "40", "--drafts", "2"]
    assert main([*compiling, "-o", out]) == 0
    capsys.readouterr()
    assert main(["run", out, "--weights", str(LLAMA), *words]) == 0
    assert capsys.readouterr().out == wanted


def test_who_makes_no_drafts_is_told(pair, capsys) -> None:
    program = pair[1].program
    with pytest.raises(MeshcError, match="verify drafts, and nobody makes any"):
        LanguageModel(program, pair[1].machine, {})
    words = ["--target", "cuda", "--seq", "40", "--drafts", "2"]
    assert main(["compile", str(LLAMA), *words, "--nodes", "2"]) == 1
    assert "with --drafts 2 are dealt to no nodes yet" in capsys.readouterr().err
    assert main(["compile", str(LLAMA), *words, "--standalone", "-o", "nowhere"]) == 1
    assert "--standalone writes hosts that make no drafts" in capsys.readouterr().err
    assert main(["run", str(LLAMA), *words, "--prompt-ids", "5", "--steps", "2"]) == 1
    assert "leaves the choice of tokens to the host" in capsys.readouterr().err
    with pytest.raises(meshc.MeshcError, match="reads 16 tokens of all requests at the most"):
        meshc.compile(str(LLAMA), target="cuda", seq=40, drafts=7, batch=4)
