"""Steps of drawn decoders whose caches keep floats of eight bits with a scale for each token of each
head, in the CPU executor, beside NumPy in float64 over such caches."""

# Lines of the library are as long as they are.
# ruff: noqa: E501

from dataclasses import replace

import pytest
from drawn_decoders import drawn_decoder
from reduced import only
from task_steps import Judge, mode_of

from meshc.backends.cuda.executor import CXX
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

IN_CI = (2, 15, 22, 26)


def coded_decoder(seed):
    """The ``seed``-th decoder, with pages and runs of whole sixteens of tokens."""
    drawn = replace(drawn_decoder(seed), meet="tags" if seed // 2 % 2 else "counter")
    return replace(drawn, page=max(drawn.page, 16))


@pytest.mark.parametrize("seed", only(range(400), *IN_CI))
def test_a_step_agrees_with_float64(seed, tmp_path):
    drawn = coded_decoder(seed)
    try:
        judge = Judge.of(drawn, seed, tmp_path, coded=True)
    except MeshcError as refusal:
        assert refusal.diagnostics[0].code == "does-not-fit", refusal
        assert drawn.batch * drawn.decoder.heads * drawn.decoder.lanes >= 4096
        return
    judge.check(mode=mode_of(seed))
