"""Algorithms of products asked for a whole layer."""

import pytest

from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics, MeshcError


def compiled(algo):
    report = Diagnostics()
    request = CompileRequest(phase="prefill", mesh="4x4", seq=64, layers=2, algo=(f"gemm={algo}",))
    return compile_loaded(load_any("smollm2-135m", report), request, (), report)


@pytest.mark.parametrize("algo", ["summa", "allgather"])
def test_algorithms_without_skew_are_refused_in_words(algo):
    with pytest.raises(MeshcError, match="skewed-product"):
        compiled(algo)


@pytest.mark.parametrize("algo", ["cyclic_shift", "cannon", "transposed"])
def test_the_others_compile(algo):
    assert compiled(algo).files
