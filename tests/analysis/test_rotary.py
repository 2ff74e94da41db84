"""Angles of rotary embeddings, in the compiler and in the interpreter, beside transformers."""

import math

import numpy as np
import pytest

from meshc.analysis.rotary_angles import rope_frequencies
from meshc.interp.formulas import frequencies
from meshc.ir.ops import graph

YARN = [
    # theta, factor, slow and fast beta, original positions, lanes
    (10000.0, 40.0, 1.0, 32.0, 4096, 64),  # DeepSeek-V2-Lite
    (1000000.0, 4.0, 1.0, 32.0, 32768, 128),
    (10000.0, 40.0, 1.0, 32.0, 256, 16),
    (10000.0, 2.0, 1.0, 32.0, 16, 8),  # every pair turns less than 32 times
    (10.0, 8.0, 2.0, 3.0, 64, 10),
]


def rope(theta, factor, slow, fast, original):
    return graph.Rope(
        operands=[], theta=theta, scaling="yarn", factor=factor,
        low_freq_factor=slow, high_freq_factor=fast, original_max_position=original,
    )  # fmt: skip


@pytest.mark.parametrize(("theta", "factor", "slow", "fast", "original", "lanes"), YARN)
def test_yarn_keeps_fast_pairs_and_divides_slow_ones(theta, factor, slow, fast, original, lanes):
    op = rope(theta, factor, slow, fast, original)
    found = np.array(rope_frequencies(op, lanes))
    np.testing.assert_allclose(frequencies(op, lanes), found, rtol=1e-12)
    plain = theta ** (-np.arange(0, lanes, 2) / lanes)
    turns = original * plain / (2 * math.pi)
    # The pairs at which a blend starts and ends are rounded outwards by less than one pair.
    step = theta ** (2 / lanes)
    kept, divided = turns >= fast * step, turns <= slow / step
    np.testing.assert_allclose(found[kept], plain[kept], rtol=1e-12)
    np.testing.assert_allclose(found[divided], plain[divided] / factor, rtol=1e-12)
    assert (found <= plain * (1 + 1e-12)).all() and (found >= plain / factor * (1 - 1e-12)).all()
    assert (np.diff(found) < 0).all()


@pytest.mark.oracle
@pytest.mark.parametrize(("theta", "factor", "slow", "fast", "original", "lanes"), YARN)
def test_yarn_is_that_of_transformers(theta, factor, slow, fast, original, lanes):
    """Which computes in f32."""
    transformers = pytest.importorskip("transformers")
    utilities = pytest.importorskip("transformers.modeling_rope_utils")

    config = transformers.LlamaConfig(
        head_dim=lanes,
        max_position_embeddings=original,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": factor,
            "beta_slow": slow,
            "beta_fast": fast,
            "original_max_position_embeddings": original,
        },
    )
    wanted, _ = utilities.ROPE_INIT_FUNCTIONS["yarn"](config)
    found = rope_frequencies(rope(theta, factor, slow, fast, original), lanes)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5)
