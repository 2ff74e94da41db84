"""Codes as tensor cores are given them: those that share bits of a word, and those in bf16."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from coded_caches import FLOATS
from kernel_reference import from_kind

from meshc.backends.cuda.executor import CXX, QUICK, Grid, Library
from meshc.backends.cuda.packing import codes as packing
from meshc.backends.cuda.packing.codes import CodedRows
from meshc.backends.cuda.packing.matrix_rows import Rows
from meshc.ir.codes import CODE_FORMATS
from meshc.ir.stored import E2M1, E4M3

UNITS = {"f16": 2.0**8, "bf16": 1.0}
UNITS_OF_FOUR = {"f16": 2.0**14, "bf16": 1.0}
OF_FOUR = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
WIDTH = 16384

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


@cache
def library():
    return Library((Path(__file__).parent / "codes.cu").read_text(), toolchain=QUICK)


def decoded(held, kind, form, dtype):
    """What lanes make of ``held``, the codes of 16 rows, in float64."""
    form = CODE_FORMATS[form]
    scales = np.ones((16, WIDTH // form.group), np.float32)
    coded = CodedRows(form, Rows.whole(held.view(kind)), [Rows.whole(scales)], dtype)
    packed = np.zeros(coded.words, np.uint16)
    coded.fill(packed)
    pairs = np.zeros((WIDTH // 16, 8, 4, 2, 2, 2), np.uint16)  # g, q, two columns, half, column
    given = [packed.view(np.uint8), np.int32(WIDTH // form.span), pairs]
    library().run(f"{form.name.split('_')[0]}_{dtype}", Grid(1, 32, 1, 0), given)
    return from_kind(pairs, dtype).transpose(4, 1, 0, 2, 3, 5).reshape(16, WIDTH)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", UNITS)
def test_every_two_of_a_word_are_what_they_stand_for(dtype, compiled, monkeypatch):
    """Rows g and g + 8 of a column share bits, of even and of odd columns, beside any others; what
    is no number is packed by nobody."""
    if not compiled:
        monkeypatch.setattr(packing, "_compiled", lambda *which: None)
    rng = np.random.default_rng(0)
    some = np.delete(np.arange(256, dtype=np.uint8), (0x7F, 0xFF))
    first, second = (of.reshape(-1) for of in np.meshgrid(some, some, indexing="ij"))
    rows = np.zeros((2, 8, WIDTH // 2, 2), np.uint8)
    for odd in (0, 1):
        order = rng.permutation(rows[0, ..., odd].size)
        for half, given in enumerate((first, second)):
            rows[half, ..., odd] = np.resize(given, order.size)[order].reshape(8, WIDTH // 2)
    held = rows.reshape(16, WIDTH)
    found = decoded(held, E4M3, "e4m3_16", dtype)
    wanted = FLOATS[held & 0x7F] * np.where(held & 0x80, -1, 1)
    assert (found * UNITS[dtype] == wanted).all()
    assert (np.signbit(found) == np.signbit(wanted)).all()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", UNITS)
def test_eight_of_a_word_are_what_they_stand_for(dtype, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(packing, "_compiled", lambda *which: None)
    held = np.random.default_rng(1).integers(0, 16, (16, WIDTH)).astype(np.uint8)
    found = decoded(held, E2M1, "mxfp4", dtype)
    wanted = OF_FOUR[held & 7] * np.where(held & 8, -1, 1)
    assert (found * UNITS_OF_FOUR[dtype] == wanted).all()
    assert (np.signbit(found) == np.signbit(wanted)).all()


def test_codes_of_eight_bits_are_what_they_stand_for_in_bf16():
    held = np.resize(np.arange(256, dtype=np.uint8), 16 * WIDTH).reshape(16, WIDTH)
    held = np.random.default_rng(2).permuted(held, axis=1)
    assert (decoded(held, np.uint8, "q8_0", "bf16") == held.astype(np.int32) - 128).all()
