"""Steps of task programs of several GPUs give the logits of float64, whoever runs first, and ranks
wait for each other."""

from dataclasses import replace

import pytest
from drawn_decoders import Drawn
from float64_decoders import Decoder
from rank_steps import RankJudge, same
from task_step_cases import CASES, LLAMA

import meshc
from meshc.backends.cuda import from_json
from meshc.backends.cuda.executor import CXX, WATCHED, Mode, modes
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
SHARED = replace(LLAMA, cores=3, decoder=replace(LLAMA.decoder, words=64))
CAPPED = replace(MANY, decoder=replace(MANY.decoder, words=128, logit_cap=9.0))
# A table of positions, which each rank has whole; in tasks of few rows.
LEARNED = replace(
    UNEVEN, rows=5, decoder=replace(UNEVEN.decoder, learned=True, rope="", gated=False)
)
OF_RANKS = {
    "learned positions": (LEARNED, 2, "peers"),
    "shared": (SHARED, 2, "peers"),
    "shared by four": (SHARED, 4, "multimem"),
    "shared by eight": (CAPPED, 8, "peers"),
    "llama": (LLAMA, 2, "peers"),
    "llama in the switch": (LLAMA, 3, "multimem"),
    "tags": (replace(CASES["tags"], cores=5), 4, "multimem"),
    "uneven": (UNEVEN, 4, "peers"),
    "eight": (replace(LLAMA, cores=2), 8, "peers"),
    "many": (MANY, 2, "multimem"),
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


def test_no_two_threads_of_any_gpu_race(tmp_path):
    of_ranks = judge("llama", tmp_path)
    few = of_ranks.step.with_blocks(3)
    watched = of_ranks.check(few, Mode("random", True, 5), WATCHED, steps=2)
    assert same([of_ranks.check(steps=2), watched])


RACE, WRONG = "a race between GPUs", "from those of float64|hold different values"
# What is there, what is put in its place, and what shows it: a report, or other numbers.
EDITS = {
    "nobody waits for other ranks": (
        "    if (me == 0) mc::gpu_wait(told, heard);\n", "", RACE,
    ),
    "one GPU is not told": (
        "mc::gpus_arrive<RANKS>(met", "mc::gpus_arrive<RANKS - 1>(met", "deadlock",
    ),
    "a GPU waits for one too few": ("heard += RANKS;", "heard += RANKS - 1;", RACE),
    "blocks arrive without a barrier": (
        "target += mc::blocks(), heard += RANKS;\n    mc::group_sync(1, WORKERS);",
        "target += mc::blocks(), heard += RANKS;\n    ", RACE,
    ),
    "workers do not wait for theirs": (
        "mc::gpu_wait(told, heard);\n    mc::group_sync(1, WORKERS);",
        "mc::gpu_wait(told, heard);", f"{RACE}|{WRONG}",
    ),
    "steps begin to count again": ("told_before[0] = heard;", "told_before[0] = 0;", RACE),
    "what other ranks give is left out": ("+ o_of_ranks[", "+ 0.0f * o_of_ranks[", WRONG),
    "what a rank gives is another's": ("64 * rank", "64 * (1 - rank)", f"{RACE}|{WRONG}"),
}  # fmt: skip
IN_LIBRARY = {
    "one GPU is given nothing": (
        "gpu < GPUS; gpu++) store_to_gpu", "gpu < GPUS - 1; gpu++) store_to_gpu", WRONG,
    ),
    "ranks tell before their blocks have come": (
        "if (!grid_arrive_last(met, target)) return;",
        "if (grid_arrive_last(met, target), block()) return;", RACE,
    ),
}  # fmt: skip


OF_LOGITS = {
    "each rank has the first share": ("8 * rank) * 256", "0 * rank) * 256", WRONG),
    "a share in the place of another": (
        "16 * g + i + 32 * rank", "16 * g + i + 32 * (1 - rank)", f"{RACE}|{WRONG}",
    ),
    "nobody waits for the shares of others": (
        "wait_ranks(told, heard, me);\n        const mc::Run mine(4);",
        "const mc::Run mine(4);", f"{RACE}|{WRONG}",
    ),
    "one share twice": ("logits_of_ranks[16 * g + i]", "logits_of_ranks[16 * (g % 2) + i]", WRONG),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [*EDITS, *IN_LIBRARY, *(pytest.param(name, marks=pytest.mark.slow) for name in OF_LOGITS)],
)
def test_edits_of_meetings_of_ranks_are_noticed(name, tmp_path):
    """In some order, of plain runs or of watched ones."""
    of_ranks = judge("shared" if name in OF_LOGITS else "llama", tmp_path)
    old, new, words = {**EDITS, **IN_LIBRARY, **OF_LOGITS}[name]
    file = "mc_tasks.cuh" if name in IN_LIBRARY else "step.cu"
    text = of_ranks.step.texts[file]
    assert old in text
    texts = {**of_ranks.step.texts, file: text.replace(old, new)}
    edited = replace(of_ranks.step, texts=texts).with_blocks(2)
    with pytest.raises((MeshcError, AssertionError), match=words):
        for mode in (Mode(), Mode("starve_block", True, 1), Mode("random", True, 2)):
            of_ranks.check(edited, mode, steps=2)
        of_ranks.check(edited, Mode("random", True, 3), WATCHED, steps=2)


def test_a_step_of_ranks_is_one_kernel_that_meets_twice_in_a_layer(tmp_path):
    """And once more where ranks share the logits."""
    model = tmp_path / "drawn.mesh"
    for drawn, persistent in ((LLAMA, False), (LLAMA, True), (SHARED, False)):
        model.write_text(drawn.decoder.text())
        made = meshc.compile(
            str(model), target="cuda", device="h100", dtype="f16", seq=64, gpus=2,
            persistent=persistent,
        )  # fmt: skip
        program = from_json(made.files["manifest.json"])
        assert [launch.kernel for launch, _ in program.launches()] == ["step"]
        assert program.meetings == 2 * LLAMA.decoder.layers + 1 + (drawn is SHARED)
        remarks = [m.message for m in made.report.messages if m.code == "step-of-tasks"]
        assert len(remarks) == 1
        assert all("is one kernel made of tasks: predicted" in words for words in remarks)
