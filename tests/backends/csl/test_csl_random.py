"""Random tile programs: what is emitted does on the simulator what the tile level means.

The judge is the interpreter of the tile level, which shares no code with the back end. Queues are
bounded, values are integers that the types hold exactly, and all memory of all cores is compared.
"""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from csl_runs import emit, run_files, tile_text
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from random_programs import LARGEST_INPUT, Generator

from meshc.interp.tile import TileMachine
from meshc.ir.parser import parse_module
from meshc.ir.verifier import verify_module
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source
from meshc.verify import check_claims

NUMPY = {"f16": np.float16, "bf16": np.float32, "f32": np.float32}


@st.composite
def programs(draw):
    return Generator(draw, st).program


def inputs(program, seed):
    rng = np.random.default_rng(seed)
    shape = (program.rows, program.columns, *program.shape)
    return {
        f"in{n}": rng.integers(-LARGEST_INPUT, LARGEST_INPUT + 1, shape).astype(NUMPY[kind])
        for n, kind in enumerate(program.types)
    }


def emitted(module):
    """The files, or another example where the program needs more of a core than it has."""
    try:
        return emit({"main": module})
    except MeshcError as error:
        if {d.code for d in error.diagnostics} <= {"csl-queues", "csl-tasks"}:
            reject()
        raise


def agree(program, arch, seed):
    text = program.text()
    plain = parse_module(Source("random.meshir", text))
    verify_module(plain)
    check_claims(plain)
    tensors = inputs(program, seed)
    scalars = {"pos": seed % 3} if program.scalar else {}
    machine = TileMachine(plain)
    for name, tensor in tensors.items():
        machine.load(name, tensor)
    expected = machine.run(scalars)
    files = emitted(tile_text(text, arch))
    options = [word for name, value in scalars.items() for word in (f"--{name}", str(value))]
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as monkeypatch:
        found, _ = run_files(files, tensors, Path(name), monkeypatch, options=options)
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=f"{name} of\n{text}")


ANY = {"program": programs(), "arch": st.sampled_from(["wse2", "wse3"]), "seed": st.integers(0, 99)}


@settings(max_examples=10, deadline=None, derandomize=True)
@given(**ANY)
def test_random_programs(program, arch, seed):
    agree(program, arch, seed)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(**ANY)
def test_many_random_programs(program, arch, seed):
    agree(program, arch, seed)
