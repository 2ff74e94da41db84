"""Steps of task programs of drawn decoders, in the CPU executor, beside NumPy in float64."""

from dataclasses import replace

import pytest
from drawn_decoders import Drawn, drawn_decoder
from float64_decoders import Decoder
from latent_decoders import drawn_latent_decoder
from reduced import only
from task_steps import Judge, mode_of

from meshc.backends.cuda.executor import CXX
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

# Batches, windows, sinks, caps, norms of heads, learned positions, pages of one token, and gains
# whose memory is no whole number of sixteen bytes.
IN_CI = (2, 15, 18, 22, 26, 60, 308)


@pytest.mark.parametrize("seed", only(range(400), *IN_CI))
def test_a_step_agrees_with_float64(seed, tmp_path):
    drawn = replace(drawn_decoder(seed), meet="tags" if seed // 2 % 2 else "counter")
    try:
        judge = Judge.of(drawn, seed, tmp_path)
    except MeshcError as refusal:
        # Many vectors of many heads leave no room for tiles; nothing else drawn is refused.
        assert refusal.diagnostics[0].code == "does-not-fit", refusal
        assert drawn.batch * drawn.decoder.heads * drawn.decoder.lanes >= 4096
        return
    judge.check(mode=mode_of(seed))


@pytest.mark.parametrize("seed", only(range(40), 4, 10))
def test_a_step_of_latent_attention_agrees_with_float64(seed, tmp_path):
    drawn = replace(drawn_latent_decoder(seed), meet="tags" if seed % 4 == 0 else "counter")
    judge = Judge.of(drawn, seed, tmp_path)
    judge.check(mode=mode_of(seed))


def test_queries_below_a_cap_keep_their_bits(tmp_path):
    """A cap far above the scores: over it, queries would be numbers below the normal ones of f16,
    whose second values have few bits."""
    decoder = Decoder(lanes=64, layers=1, cap=2000.0, where="both")
    positions = (37,), (60,)
    drawn = Drawn(decoder, "f16", 1, 64, 16, 16, 16, 1, merge=False, cores=4, positions=positions)
    Judge.of(drawn, 1, tmp_path).check()
