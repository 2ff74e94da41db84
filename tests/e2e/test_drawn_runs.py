"""Drawn models with drawn options, all of it at once, in the CPU executor, beside NumPy in float64:
steps, prompts of up to 97 tokens, mixed launches, one GPU and two."""

import numpy as np
import pytest
from drawn_runs import RunJudge, decoded_too, drawn_run
from reduced import only
from task_steps import mode_of
from turned_sides import Turned

from meshc.backends.cuda.executor import CXX, QUICK, WATCHED
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

# Norms of more keys than there are tokens, a mixture whose tokens are read beside each other, and
# new rows of latents among those that are cached.
IN_CI = (1176, 1236, 1267)
DECODED = 281199211
"""Its step decodes a weight that its prompts have as codes."""
CAPPED, IN_THE_MIDDLE = 291129884, 291140031
"""Tokens of the first amplify what is lost of queries below a cap; one of the second has a left
side that float64 rounds the other way, which moves logits by twice the bound."""
REFUSED = {"does-not-fit", "cuda-shape"}


def check(seed, folder, toolchain=QUICK):
    """The judge of the run; None where blocks have no room, or a batch has more tokens than threads
    of its tasks."""
    try:
        judge = RunJudge.of(drawn_run(seed), seed, folder)
    except MeshcError as refusal:
        assert {one.code for one in refusal.diagnostics} <= REFUSED, refusal
        return
    judge.check(mode_of(seed), toolchain)
    assert judge.compared > judge.passed, "rounding may choose other experts of most tokens"


def test_ranks_have_their_parts_of_what_prompts_alone_keep(tmp_path):
    """Tasks of its step cut the groups of an output projection, those of prompts do not."""
    program = RunJudge.of(drawn_run(DECODED), DECODED, tmp_path).step.program
    assert decoded_too(program) == {"embedding", "wo"}
    coded = {s for w in program.weights.values() if w.codes for s in w.sources}
    assert {name for name in coded if name.startswith("wo.")} <= program.ranks.dealt.keys()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [DECODED, CAPPED, IN_THE_MIDDLE])
def test_a_run_of_its_own_kind_agrees_with_float64(seed, tmp_path):
    check(seed, tmp_path)


def test_what_is_in_the_middle_of_two_numbers_is_turned_and_nothing_else():
    values = np.array([[1 + 2.0**-11, 1 + 3 * 2.0**-13, 1 + 5 * 2.0**-13]])
    found = [Turned("f16", 5, turned={n}, noise=2.0**-16)(values).tolist() for n in range(2)]
    assert found == [[[middle, 1.0, 1 + 2.0**-10]] for middle in (1 + 2.0**-10, 1.0)]


@pytest.mark.parametrize("seed", only(range(1000, 1300), *IN_CI))
def test_a_run_agrees_with_float64(seed, tmp_path):
    check(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1279, 2005, 2012, 2016, 2031, 2049, 2056])
def test_no_two_threads_of_a_run_race(seed, tmp_path):
    """Left sides of products that lie in memory are copied behind fences, in step after step; of
    rows of requests none is read that is not there, by attention statement by statement (1279)."""
    check(seed, tmp_path, WATCHED)
