"""Algorithms of products asked for a whole layer."""

import pytest

from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics


def compiled(algo):
    report = Diagnostics()
    request = CompileRequest(phase="prefill", mesh="4x4", seq=64, layers=2, algo=(f"gemm={algo}",))
    return compile_loaded(load_any("smollm2-135m", report), request, (), report)


@pytest.mark.parametrize("algo", ["cyclic_shift", "cannon", "summa", "allgather", "transposed"])
def test_every_algorithm_takes_a_layer(algo):
    assert compiled(algo).files
