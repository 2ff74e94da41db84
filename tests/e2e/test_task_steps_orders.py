"""Steps of task programs do not depend on who runs first, on how many blocks there are, or on steps
before."""

from dataclasses import replace

import numpy as np
import pytest
from drawn_decoders import Drawn
from float64_decoders import Decoder, rounded
from reduced import only
from task_step_cases import CASES, LLAMA, PAGES
from task_steps import BOUNDS, Judge, Run

from meshc.backends.cuda.executor import CXX, WATCHED, Mode, modes
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

every_case = pytest.mark.parametrize("name", only(CASES, "llama", "tags"))


def same(found):
    first, *others = found
    return all(
        (one == other).all() for logits in others for one, other in zip(first, logits, strict=True)
    )


@every_case
def test_every_order_of_threads_and_copies_gives_the_same_bits(name, tmp_path):
    judge = Judge.of(CASES[name], 1, tmp_path)
    assert same([judge.check(mode=mode) for mode in modes()])


def test_blocks_that_wait_for_words_are_not_counted(tmp_path):
    by_counter, by_tags = (
        Judge.of(CASES[name], 1, tmp_path).step.text for name in ("llama", "tags")
    )
    assert by_counter.count("wait(met, target, me);") == 6 and "mc::Tagged" not in by_counter
    assert by_tags.count("wait(met, target, me);") == 0 and by_tags.count("mc::Tagged") >= 6


@every_case
def test_any_number_of_blocks_gives_the_same_bits(name, tmp_path):
    judge = Judge.of(CASES[name], 2, tmp_path)
    most = judge.step.program.kernels["step"].blocks
    assert same([judge.check(judge.step.with_blocks(n)) for n in (most, most + 40, 5, 2, 1)])


@every_case
def test_no_two_threads_race(name, tmp_path):
    """Blocks have fewer tasks than there are, and several."""
    judge = Judge.of(CASES[name], 3, tmp_path)
    few = judge.step.with_blocks(5)
    watched = [judge.check(few, Mode("random", late, 5), WATCHED) for late in (False, True)]
    assert same([judge.check(), *watched])


@pytest.mark.parametrize("tokens", [16, 64])
def test_pages_of_several_tiles_are_looked_up_at_once(tokens, tmp_path):
    """Pages of one token; those of a tile of 64 are more than a warp has lanes."""
    judge = Judge.of(replace(PAGES, tokens=tokens), 8, tmp_path)
    assert f"mc::Pages<1, 2, {tokens}>" in judge.step.text
    judge.check(mode=Mode("starve_warp", True, 2))


@pytest.mark.slow
def test_all_blocks_of_a_full_grid_are_watched(tmp_path):
    """A block for each multiprocessor of an H200; a barrier left out is a race."""
    decoder = replace(LLAMA.decoder, words=132 * 16, layers=1)
    wide = replace(LLAMA, decoder=decoder, cores=132, positions=((99,),))
    judge = Judge.of(wide, 4, tmp_path)
    assert judge.step.program.kernels["step"].blocks == 132
    assert same([judge.check(), judge.check(toolchain=WATCHED)])
    barrier = "    group_sync(1, 32 * WARPS);  // the next group's sums go to the other half\n"
    with pytest.raises(MeshcError, match="a race: thread"):
        judge.check(judge.step.edited("mc_tasks.cuh", barrier, ""), toolchain=WATCHED)


@pytest.mark.parametrize("name", only(CASES, "windows"))
def test_steps_go_on_where_the_last_one_ended(name, tmp_path):
    """Requests at positions of their own, caches that no one but the steps themselves fill."""
    drawn = CASES[name]
    decoder, count = drawn.decoder, 4
    judge = Judge.of(drawn, 5, tmp_path)
    weights = decoder.weights(5, drawn.dtype)
    run, rng = (
        Run(judge.step, decoder.named(weights), Mode("shuffled", True)),
        np.random.default_rng(5),
    )
    first = rng.integers(0, drawn.capacity - count, drawn.batch)
    caches = {
        cache: rounded(rng.standard_normal(shape), drawn.dtype)
        for cache, shape in decoder.cached(drawn.batch, drawn.capacity).items()
    }
    run.give({cache: c[..., decoder.stored(cache)] for cache, c in caches.items()}, first)
    for positions in first + np.arange(count)[:, None]:
        tokens = rng.integers(0, decoder.words, drawn.batch)
        wanted = decoder.step(weights, caches, tokens, positions, drawn.dtype)
        error = np.abs(run.logits(tokens, positions) - wanted).max() / np.abs(wanted).max()
        # Rows that earlier steps rounded the other way add up.
        assert error <= count * BOUNDS[drawn.dtype, drawn.batch > 4]
        assert run.machine.read("met").tolist() == [0]


def test_absent_requests_leave_the_others_alone(tmp_path):
    """A token of -1 is an embedding of zeros."""
    drawn = Drawn(Decoder(layers=1), "f16", 4, 40, 16, 16, 16, 1, False, 132, ((39, 3, 0, 17),))
    judge = Judge.of(drawn, 6, tmp_path)
    weights = drawn.decoder.weights(6, "f16")
    run = Run(judge.step, drawn.decoder.named(weights))
    run.give(
        {name: np.zeros(s) for name, s in drawn.decoder.cached(4, 40).items()}, drawn.positions[0]
    )
    all_there, some = (
        run.logits(tokens, drawn.positions[0]) for tokens in ([3, 5, 7, 9], [3, -1, 7, -1])
    )
    assert (all_there[[0, 2]] == some[[0, 2]]).all() and np.isfinite(some).all()
    assert not np.allclose(all_there[1], some[1])
