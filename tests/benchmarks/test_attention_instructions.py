"""Instructions of attention statement by statement, as machine code has them, beside those of the
event model."""

import pytest
from attention_instructions import counted, counted_latents

from meshc.analysis.tasks.tiles import LATENT_NEIGHBOUR
from meshc.backends.cuda.toolchain.toolkit import BuildError
from meshc.cost.tasks.attended import (
    OF_FLOAT_SCORE,
    OF_FLOAT_SUM,
    OF_ROUND,
    OF_SCORE,
    OF_SUM,
    OF_TURNED_SCORE,
)
from meshc.support.diagnostics import MeshcError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "score", "added"),
    [
        ((72,), OF_SCORE, OF_SUM),
        ((320,), OF_TURNED_SCORE, OF_SUM),
        ((72, "fp8_e4m3"), OF_FLOAT_SCORE, OF_FLOAT_SUM),
    ],
)
def test_the_event_model_has_what_machine_code_has(given, score, added):
    try:
        found = counted(*given)
    except (BuildError, MeshcError) as problem:
        pytest.skip(str(problem).splitlines()[0])
    assert found.score == pytest.approx(score, rel=0.02)
    assert found.sum == pytest.approx(added, rel=0.02)
    assert OF_ROUND / 1.05 <= found.rest <= OF_ROUND * 1.3


@pytest.mark.slow
def test_latents_of_two_tokens():
    try:
        one, two = counted_latents(1), counted_latents(2)
    except (BuildError, MeshcError) as problem:
        pytest.skip(str(problem).splitlines()[0])
    assert two / one == pytest.approx(1 + LATENT_NEIGHBOUR, abs=0.02)
