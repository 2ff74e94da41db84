"""Instructions that decode codes, as machine code has them, beside those of the event model."""

import pytest
from code_instructions import counted
from reduced import only

from meshc.backends.cuda.toolchain.toolkit import BuildError, find_compiler
from meshc.cost.tasks.tile_times import OF_CODES, OF_LEAST, OF_NUMBERS, OF_SCALES, OF_UNITS
from meshc.ir.codes import CODE_FORMATS
from meshc.ir.types import DType
from meshc.support.diagnostics import MeshcError

OF_NUMBERS_BY = {"nvcc 13.0": 6, "NVRTC 13.5": 6.25}
"""By compiler; the event model has what the least of them takes."""


def count(form, dtype):
    try:
        return counted(form, dtype)
    except (BuildError, MeshcError) as problem:
        pytest.skip(str(problem).splitlines()[0])


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", only(CODE_FORMATS, "q4_0", "q6_k", "mxfp4"))
def test_the_event_model_has_what_machine_code_has(name, dtype):
    form = CODE_FORMATS[name]
    found = count(form, dtype)
    modelled = OF_CODES[form.codes, DType(dtype)] * found.fragments + OF_SCALES
    modelled += OF_LEAST[DType(dtype)] if form.least else 0
    modelled += OF_UNITS if form.block else 0
    assert 0.95 * found.of_block <= modelled <= 1.25 * found.of_block


def test_numbers_of_16_bits():
    found = count(None, "bf16").of_fragment
    known = OF_NUMBERS_BY.get(find_compiler().name)
    if known is None:
        pytest.skip(f"{find_compiler().name} is none of {', '.join(OF_NUMBERS_BY)}")
    assert found == known and min(OF_NUMBERS_BY.values()) == OF_NUMBERS
