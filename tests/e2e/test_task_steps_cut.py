"""Steps that are cut: a kernel for each phase, which gives the bits of one kernel of all."""

from dataclasses import replace

import pytest
from drawn_decoders import drawn_decoder
from reduced import only
from task_step_cases import CASES
from task_steps import Judge, mode_of

from meshc.backends.cuda.executor import CXX, modes
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


def same(found):
    first, *others = found
    return all(
        (one == other).all() for logits in others for one, other in zip(first, logits, strict=True)
    )


@pytest.mark.parametrize("name", only(CASES, "windows", "tagged parts"))
def test_kernels_give_the_bits_of_one_that_counts_blocks(name, tmp_path):
    """Whichever kind of meeting the case has; kernels of any number of blocks, in any order of
    threads and copies."""
    case = CASES[name]
    whole, cut = (Judge.of(replace(case, meet=m), 1, tmp_path) for m in ("counter", "kernel"))
    program, others = cut.step.program, len(("Shared memory", "Bring", "Compute"))
    phases = whole.step.text.count("// ---- ") - others
    assert cut.step.text.count("__global__") == len(program.kernels) == phases > 6
    assert "met" not in program.buffers and not any(k.whole_grid for k in program.kernels.values())
    runs = [cut.check(cut.step.with_blocks(n)) for n in (40, 3)]
    assert same([whole.check(), cut.check(), *runs, *(cut.check(mode=m) for m in [*modes()][-2:])])


@pytest.mark.parametrize("seed", only(range(600, 700), 603))
def test_a_step_agrees_with_float64(seed, tmp_path):
    drawn = replace(drawn_decoder(seed), meet="kernel")
    try:
        judge = Judge.of(drawn, seed, tmp_path)
    except MeshcError as refusal:
        assert refusal.diagnostics[0].code == "does-not-fit", refusal
        return
    judge.check(mode=mode_of(seed))
