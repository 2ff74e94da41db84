"""Codes of weights that stay quantised, packed by a C compiler's function as NumPy packs them."""

import numpy as np
import pytest

from meshc.backends.cuda.packing import codes
from meshc.backends.cuda.packing.codes import CodedRows, block_words
from meshc.backends.cuda.packing.matrix_rows import Rows
from meshc.ir.codes import CODE_FORMATS
from meshc.ir.stored import E2M1, E4M3
from meshc.ir.types import DType
from meshc.support.diagnostics import MeshcError

FORMS = [*CODE_FORMATS.values()]
FLOATS = {DType.E4M3: E4M3, DType.E2M1: E2M1}
WIDTH, GROUPS = 512, 3


def drawn(form, dtype="f16"):
    """Groups of rows of two matrices in any order, some rows zeros, of every code there is."""
    rng = np.random.default_rng(7)
    of = rng.integers(-1, 2, 16 * GROUPS)
    at = np.where(of < 0, -1, rng.integers(0, 20, 16 * GROUPS))

    def rows(values):
        return Rows([values[:20], values[20:]], of, at)

    held = rng.integers(0, 1 << form.codes.bits, (40, WIDTH)).astype(np.uint8)
    if form.codes is DType.E4M3:
        held[held & 0x7F == 0x7F] = 0x80
    numbers = [
        rng.integers(0, 64, (40, WIDTH // form.elements(part))).astype(np.float32)
        for part in form.parts
    ]
    codes = rows(held.view(FLOATS.get(form.codes, np.uint8)))
    return held, CodedRows(form, codes, [*map(rows, numbers)], dtype)


def filled(rows):
    words = np.zeros(GROUPS * WIDTH // rows.form.span * block_words(rows.form), np.uint16)
    rows.fill(words)
    return words


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("form", "dtype"),
    [(form, "f16") for form in FORMS]
    + [(CODE_FORMATS[name], "bf16") for name in ("e4m3_32", "mxfp4")],
    ids=lambda of: getattr(of, "name", of),
)
def test_both_pack_the_same_and_refuse_what_is_no_code(form, dtype, monkeypatch):
    if codes._compiled("mc_codes", codes._Codes) is None:
        pytest.skip("there is no C compiler")
    held, rows = drawn(form, dtype)
    found = filled(rows)
    asked = []
    with monkeypatch.context() as without:
        without.setattr(codes, "_compiled", lambda *which: asked.append(which))
        assert (filled(rows) == found).all() and found.any() and len(asked) > 1
    if form.codes.bits == 8 and form.whole:
        return
    of = rows.codes.of.tolist()
    held[20 * max(of) + rows.codes.at[of.index(max(of))], -1] = 0xFF
    for compiled in (codes._compiled, lambda *which: None):
        monkeypatch.setattr(codes, "_compiled", compiled)
        with pytest.raises(MeshcError, match="has no code for"):
            filled(rows)


@pytest.mark.parametrize("form", [CODE_FORMATS["q2_k"], CODE_FORMATS["mxfp4"]], ids=str)
def test_both_refuse_numbers_that_are_no_codes(form, monkeypatch):
    """Scales of K-quants are codes of eight bits, those of mxfp4 have the bits of bf16."""
    for compiled in (codes._compiled, lambda *which: None):
        monkeypatch.setattr(codes, "_compiled", compiled)
        for wrong in (0.1, 1e38 / 3):
            rows = drawn(form)[1]
            first = rows.numbers[0]
            first.matrices[max(first.of)][first.at[first.of.tolist().index(max(first.of))], -1] = (
                wrong
            )
            with pytest.raises(MeshcError, match="has no code for"):
                filled(rows)
