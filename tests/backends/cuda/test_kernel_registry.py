"""Kernels of the CUDA back end and patterns of fuse-chunk: one of each, the same names."""

from pathlib import Path

import pytest

import meshc
from meshc.backends.cuda import kernels
from meshc.backends.cuda.kernels.registry import KERNELS, kernel_of
from meshc.driver import CompileRequest, graph_module, load_any
from meshc.ir.ops import graph
from meshc.passes.graph.fusing.registry import PATTERNS
from meshc.passes.registry import parse_pipeline


def fused(model="smollm2-135m"):
    """The fused ops of a decode step by the names of their kernels."""
    request = CompileRequest(device="h200", phase="decode", layers=1, dtype="bf16")
    module = graph_module(load_any(model, meshc.Diagnostics()), "decode", request)
    passes = parse_pipeline("canonicalize,eliminate-transpose,fuse-chunk")
    after = meshc.PassManager(passes).run(module, meshc.Diagnostics())
    return {op.kernel: op for op in after.walk() if isinstance(op, graph.Fuse)}


def test_every_pattern_has_a_kernel_and_every_kernel_a_pattern():
    assert {pattern.NAME for pattern in PATTERNS} == {kernel.NAME for kernel in KERNELS}
    assert len({pattern.NAME for pattern in PATTERNS}) == len(PATTERNS)


def test_every_folder_with_launches_of_a_fused_op_is_registered():
    folder = Path(kernels.__file__).parent
    registered = {type(kernel).__module__.split(".")[-2] for kernel in KERNELS}
    # What fused ops are made of.
    assert {path.parent.name for path in folder.glob("*/launch.py")} - registered == {
        "chunk_product",
        "collective",
    }


def test_operands_have_names():
    ops = fused()
    assert ops["attention_block"].takes == (
        "residual", "norm", "query", "key", "value", "keys", "values", "output",
    )  # fmt: skip
    assert ops["ffn_block"].takes == ("residual", "norm", "gate", "up", "down")
    assert all(name == kernel_of(op).NAME for name, op in ops.items())
    assert "query_bias" in fused("qwen2-72b")["attention_block"].takes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kernel": "tail"}, "there is no kernel 'tail', but attention_block"),
        ({"takes": ("residual", "norm", "query", "key", "value", "keys", "values", "wo")},
         "no operand output and an operand wo that it does not know"),
        ({"kernel": "head"}, "head is given no operand table"),
    ],
)  # fmt: skip
def test_other_kernels_and_operands_are_refused(changes, words):
    op = fused()["attention_block"]
    for name, value in changes.items():
        setattr(op, name, value)
    with pytest.raises(meshc.MeshcError) as caught:
        kernel_of(op)
    assert [d.code for d in caught.value.diagnostics] == ["cuda-graph"]
    assert words in str(caught.value)
