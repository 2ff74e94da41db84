"""The programs that the scaling benchmark measures are ones that the compiler takes."""

import csl_scaling
import pytest

from meshc.ir.parser import parse_module
from meshc.ir.verifier import verify_module
from meshc.support.spans import Source


@pytest.mark.parametrize("order", ["interleaved", "natural"])
@pytest.mark.parametrize("size", [2, 7])
def test_steps_of_a_ring(order, size):
    module = parse_module(Source("step.meshir", csl_scaling.step_text(order, size)))
    verify_module(module)
    mesh = module.the_mesh()
    assert (mesh.rows, mesh.columns, mesh.ring("x")) == (1, size, order == "interleaved")
    sources = {place: target for (_, place), (_, target) in _pairs(module)}
    # Every core is reached once.
    assert sorted(sources.values()) == list(range(size))


def _pairs(module):
    """Places of senders and receivers as (row, column)."""
    (channel,) = module.channels
    for column in range(module.the_mesh().columns):
        env = {"y": 0, "x": column}
        for piece in channel.route.pieces:
            if piece.domain.evaluate(env):
                yield (0, column), tuple(output.evaluate(env) for output in piece.outputs)
