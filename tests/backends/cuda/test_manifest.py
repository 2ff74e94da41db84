"""What is read back of a compiled directory: numbers and flags of kernels are what they must be."""

import json
from dataclasses import replace

import pytest

from meshc.backends.cuda import from_json
from meshc.backends.cuda.launches import Launch
from meshc.backends.cuda.program import Buffer, Kernel, StepProgram, Target
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


@pytest.mark.every_case
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


CHOICE = {"chosen": (64, 1), "ends": (16,), "left": (1,), "settings": (1, 4), "stream": (1, 4)}


def chosen(**changes):
    """The text of a program that chooses tokens, with these shapes of its buffers."""
    shapes = CHOICE | changes
    buffers = {name: Buffer("i32", shape, "input") for name, shape in shapes.items() if shape}
    program = replace(manifest()[0], buffers=buffers, choice=Launch("choose", ("logits",)))
    return program, program.to_json()


def test_a_program_that_chooses_tokens_is_read_back():
    program, text = chosen()
    assert from_json(text) == program
    assert program.most_steps == 64 and manifest()[0].most_steps == 0
    rows = [launch.arguments[-1] for launch, _ in program.chosen_launches(3)]
    assert rows == [0, 1, 2]


@pytest.mark.parametrize(
    "changes",
    [{"chosen": None}, {"chosen": (64, 2)}, {"ends": (1, 16)}, {"left": (2,)}, {"stream": (1, 3)}],
)
def test_a_choice_for_other_requests_is_refused(changes):
    with pytest.raises(MeshcError, match=r"\[no-program\]: the manifest describes no decode step"):
        from_json(chosen(**changes)[1])
