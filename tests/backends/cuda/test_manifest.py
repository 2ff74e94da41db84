"""What is read back of a compiled directory: numbers and flags of kernels are what they must be."""

import json

import pytest

from meshc.backends.cuda import from_json
from meshc.backends.cuda.program import Kernel, StepProgram, Target
from meshc.support.diagnostics import MeshcError

H200 = Target("h200", "sm_90a", 132, 232448)


def manifest(**changes):
    """A program of one kernel, in which these values of the kernel are others."""
    kernel = Kernel("step.cu", 4, 288, 1, 1024, {"RING": (0, 1024)}, whole_grid=True)
    program = StepProgram("m", H200, 1, 8, 8, 16, (), {"step": kernel}, {}, {}, (), (), ())
    found = json.loads(program.to_json())
    found["kernels"]["step"] |= changes
    return program, json.dumps(found)


def test_a_program_is_read_back():
    program, text = manifest()
    assert from_json(text) == program


@pytest.mark.parametrize(
    "changes",
    [
        {"blocks": "x"}, {"threads": 1e99}, {"cluster": None}, {"shared_bytes": -1},
        {"blocks": 2**31}, {"blocks": True}, {"meets": "no"}, {"whole_grid": [1]},
    ],
)  # fmt: skip
def test_other_kinds_of_numbers_are_refused(changes):
    with pytest.raises(
        MeshcError, match=r"\[no-program\]: the manifest describes no decode step: "
    ):
        from_json(manifest(**changes)[1])
