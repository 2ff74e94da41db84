"""Codes of weights that stay quantised, packed by a C compiler's function as NumPy packs them."""

import numpy as np
import pytest

from meshc.backends.cuda.packing import codes
from meshc.backends.cuda.packing.codes import CodedRows, block_words
from meshc.backends.cuda.packing.matrix_rows import Rows
from meshc.ir.codes import CODE_FORMATS
from meshc.ir.stored import E4M3
from meshc.ir.types import DType
from meshc.support.diagnostics import MeshcError

FORMS = [form for form in CODE_FORMATS.values() if form.codes is not DType.E2M1]
WIDTH, GROUPS = 512, 3


def drawn(form):
    """Groups of rows of two matrices in any order, some rows zeros, of every code there is."""
    rng = np.random.default_rng(7)
    of = rng.integers(-1, 2, 16 * GROUPS)
    at = np.where(of < 0, -1, rng.integers(0, 20, 16 * GROUPS))

    def rows(values):
        return Rows([values[:20], values[20:]], of, at)

    floats = form.codes is DType.E4M3
    held = rng.integers(0, 256 if floats else 1 << form.codes.bits, (40, WIDTH)).astype(np.uint8)
    if floats:
        held[held & 0x7F == 0x7F] = 0x80
    numbers = [
        rng.integers(0, 64, (40, WIDTH // form.elements(part))).astype(np.float32)
        for part in form.parts
    ]
    return held, CodedRows(form, rows(held.view(E4M3) if floats else held), [*map(rows, numbers)])


def filled(rows):
    words = np.zeros(GROUPS * WIDTH // rows.form.span * block_words(rows.form), np.uint16)
    rows.fill(words)
    return words


@pytest.mark.every_case
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_both_pack_the_same_and_refuse_what_is_no_code(form, monkeypatch):
    if codes._compiled() is None:
        pytest.skip("there is no C compiler")
    held, rows = drawn(form)
    found = filled(rows)
    asked = []
    with monkeypatch.context() as without:
        without.setattr(codes, "_compiled", lambda: asked.append(form))
        assert (filled(rows) == found).all() and found.any() and asked
    if form.codes.bits == 8 and form.whole:
        return
    of = rows.codes.of.tolist()
    held[20 * max(of) + rows.codes.at[of.index(max(of))], -1] = 0xFF
    for compiled in (codes._compiled, lambda: None):
        monkeypatch.setattr(codes, "_compiled", compiled)
        with pytest.raises(MeshcError, match="has no code for"):
            filled(rows)
