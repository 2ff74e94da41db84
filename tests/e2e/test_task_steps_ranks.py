"""Steps of task programs of several GPUs give the logits of float64, whoever runs first, and ranks
wait for each other."""

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from drawn_decoders import Drawn
from float64_decoders import Decoder
from rank_step_edits import CASES as EDITED
from rank_step_edits import EDITS, EQUIVALENT, SHARED
from rank_steps import RankJudge, same
from reduced import each, only
from task_step_cases import CASES, LLAMA

import meshc
from meshc.backends.cuda import from_json
from meshc.backends.cuda.executor import CXX, FIRST, QUICK, WATCHED, Mode, modes
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

# Heads that no number of ranks divides, biases behind sums, a norm behind blocks, several requests.
UNEVEN = Drawn(
    Decoder(
        hidden=48, heads=6, groups=3, lanes=16, features=72, words=37, norm="layer with bias",
        where="both", biases="qof", residual=0.5, parallel=False,
    ),
    "bf16", 3, 40, 16, 16, 16, 1, False, 5, (),
)  # fmt: skip
# Many requests; the key head is that of all ranks.
MANY = Drawn(
    Decoder(hidden=64, heads=8, groups=1, lanes=16, features=96, words=40, tied=True),
    "f16", 6, 40, 64, 16, 32, 1, True, 3, (),
)  # fmt: skip
# Logits that ranks share, in groups of sixteen; behind a cap, and of tied embeddings.
CAPPED = replace(MANY, decoder=replace(MANY.decoder, words=128, logit_cap=9.0))
# A table of positions, which each rank has whole; in tasks of few rows.
LEARNED = replace(
    UNEVEN, rows=5, decoder=replace(UNEVEN.decoder, learned=True, rope="", gated=False)
)
OF_RANKS = {
    "learned positions": (LEARNED, 2, "peers"),
    "shared": (SHARED, 2, "peers"),
    "shared by four": (replace(SHARED, meet="tags"), 4, "multimem"),
    "shared by eight": (replace(CAPPED, meet="tags"), 8, "peers"),
    "llama": (LLAMA, 2, "peers"),
    "llama in the switch": (LLAMA, 3, "multimem"),
    "llama words": (replace(LLAMA, meet="tags"), 2, "peers"),
    "tags": (replace(CASES["tags"], cores=5), 4, "multimem"),
    "uneven": (UNEVEN, 4, "peers"),
    "uneven words": (replace(UNEVEN, meet="tags"), 4, "peers"),
    "eight": (replace(LLAMA, cores=2, meet="tags"), 8, "peers"),
    "many": (MANY, 2, "multimem"),
    "many words": (replace(MANY, meet="tags"), 2, "multimem"),
}


def judge(name, folder):
    drawn, ranks, transport = OF_RANKS[name]
    return RankJudge.of(drawn, 1, folder, ranks, transport)


@pytest.mark.parametrize("name", OF_RANKS)
def test_ranks_give_the_logits_of_float64(name, tmp_path):
    judge(name, tmp_path).check()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "tags"])
def test_every_order_of_threads_gpus_and_copies_gives_the_same_bits(name, tmp_path):
    of_ranks = judge(name, tmp_path)
    assert same([of_ranks.check(mode=mode, steps=3) for mode in modes()])


def test_orders_of_gpus_and_any_number_of_blocks_give_the_same_bits(tmp_path):
    of_ranks = judge("llama", tmp_path)
    orders = [Mode("starve_block", True), Mode("random", True, 3), Mode("reverse")]
    few = [of_ranks.check(of_ranks.step.with_blocks(n), steps=3) for n in (1, 4)]
    assert same(
        [of_ranks.check(steps=3), *few, *(of_ranks.check(None, m, steps=3) for m in orders)]
    )


@pytest.mark.parametrize("name", only(["llama", "llama words", "tags"], "llama words"))
def test_no_two_threads_of_any_gpu_race(name, tmp_path):
    of_ranks = judge(name, tmp_path)
    few = of_ranks.step.with_blocks(3)
    watched = of_ranks.check(few, Mode("random", True, 5), WATCHED, steps=2)
    assert same([of_ranks.check(steps=2), watched])


@pytest.mark.parametrize(
    ("count", "meet"),
    only(product(range(2, 9), ("counter", "tags")), (3, "tags")),
)
def test_ranks_choose_the_tokens_of_one_gpu(count, meet, tmp_path):
    """Behind a prompt, of logits that they share."""
    decoder = replace(LLAMA.decoder, words=32 * count)
    one, of_ranks = (
        RankJudge.of(replace(SHARED, meet=meet, decoder=decoder), 1, tmp_path, n)
        for n in (1, count)
    )
    assert of_ranks.step.program.buffers["logits"].shape == (1, 32 * count)
    assert "logits_of_ranks" in of_ranks.step.program.buffers
    assert of_ranks.tokens() == one.tokens()


@cache
def edited_of(name):
    with TemporaryDirectory() as folder:
        return RankJudge.of(EDITED[name][0], 1, Path(folder), *EDITED[name][1:])


MODES = (FIRST, QUICK), (Mode("starve_block", True, 1), QUICK), (Mode("random", True, 2), QUICK)


@pytest.mark.parametrize("name", each(EDITS, 9))
def test_edits_of_meetings_of_ranks_are_noticed(name):
    """By a report or by other numbers, in some order, of plain runs or of watched ones."""
    case, file, old, new = EDITS[name]
    of_ranks = edited_of(case)
    text = of_ranks.step.texts[file]
    assert old in text
    texts = {**of_ranks.step.texts, file: text.replace(old, new)}
    edited, noticed = replace(of_ranks.step, texts=texts).with_blocks(2), False
    for how in (*MODES, (Mode("random", True, 3), WATCHED)):
        try:
            of_ranks.check(edited, *how, steps=3)
        except (MeshcError, AssertionError):
            noticed = True
            break
    assert noticed == (name not in EQUIVALENT)


def test_at_most_one_in_ten_edits_changes_nothing():
    assert EQUIVALENT.keys() <= EDITS.keys() and 10 * len(EQUIVALENT) <= len(EDITS) >= 40


def test_a_step_of_ranks_is_one_kernel_in_which_they_meet_at_the_start(tmp_path):
    """And once more where they share the logits; in layers they give each other words."""
    model = tmp_path / "drawn.mesh"
    for drawn, persistent in ((LLAMA, False), (LLAMA, True), (SHARED, False)):
        model.write_text(drawn.decoder.text())
        made = meshc.compile(
            str(model), target="cuda", device="h100", dtype="f16", seq=64, gpus=2,
            persistent=persistent,
        )  # fmt: skip
        program = from_json(made.files["manifest.json"])
        assert [launch.kernel for launch, _ in program.launches()] == ["step"]
        assert program.meetings == 1 + (drawn is SHARED)
        remarks = [m.message for m in made.report.messages if m.code == "step-of-tasks"]
        assert len(remarks) == 1
        assert all("is one kernel made of tasks: predicted" in words for words in remarks)
