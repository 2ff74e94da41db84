"""Queries and keys that are normed head by head, as Qwen3 has them, in CUDA kernels on the CPU."""

import pytest
from layer_kinds import Kind, check, compiled

from meshc.backends.cuda import from_json
from meshc.backends.cuda.executor import CXX

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

SHARED = Kind(2, 4, 2, 96, 10000.0, normed=True)
MANY = Kind(1, 12, 1, 96, 10000.0, normed=True)


@pytest.mark.parametrize(
    ("kinds", "options"),
    [
        ((SHARED,), {"chunk": 8}),
        pytest.param((MANY,), {"chunk": 16}, marks=pytest.mark.slow),
        ((SHARED, Kind(1, 2, 2, 96, 500.0)), {"chunk": 8}),
    ],
    ids=["shared keys", "twelve heads of a key head", "a stage with and one without"],
)
def test_prompt_and_steps_agree_with_float64(kinds, options, tmp_path):
    check(compiled(tmp_path, kinds, **options), kinds)


def test_gains_are_packed_in_the_order_of_the_lanes(tmp_path):
    result = compiled(tmp_path, (SHARED,), chunk=8)
    program = from_json(result.files["manifest.json"])
    for name, source in (("norm_of_queries", "nq_0"), ("norm_of_keys", "nk_0")):
        weight = program.weights[name]
        assert (weight.sources, weight.paired, weight.layers) == ((source,), (source,), 2)
