"""Single edits of emitted programs that decode weights, and of the host's packing of their codes:
each changes a number, or the simulator refuses it."""

import re

import numpy as np
import pytest
from csl_code_programs import decoded, program, tensors
from csl_runs import compiled, emit, run_files

from meshc.ir.codes import CODE_FORMATS
from meshc.support.diagnostics import MeshcError

PROGRAMS = {
    "exact": ("q4_0", (2, 2, 5, 1, 3), "f16", "wse2"),
    "lifted": ("q4_1", (2, 2, 5, 1, 3), "f16", "wse3"),
    "bytes": ("q8_0", (2, 2, 6, 2, 4), "f32", "wse3"),
    "wide": ("int4_64", (2, 2, 7, 0, 7), "f32", "wse2"),
}
"""A format, the sizes of :func:`program`, the type of numbers and the device."""

PE, HOST = "main.csl", "run.py"
# Fault class, program, file, what stands once in it, what is put there.
EDITS = (
    ("other code", "lifted", PE, r"@as\(u16, 4 \* part\)", "@as(u16, 4 * (3 - part))"),
    ("other code", "exact", PE, r"@as\(u16, 4 \* part\)", "@as(u16, 8 * part)"),
    ("other code", "bytes", PE, r"@as\(u16, 8 \* part\)", "@as(u16, 4 * part)"),
    ("other code", "lifted", PE, r"(scratch_codes_\d+), 15\)", r"\1, 7)"),
    ("other code", "wide", PE, r"(scratch_codes_\d+), 15\)", r"\1, 31)"),
    ("other code", "bytes", PE, r"(scratch_codes_\d+), 255\)", r"\1, 127)"),
    ("other code", "exact", PE, r"@range\(i16, 4\)", "@range(i16, 3)"),
    ("other code", "lifted", PE, r"(words = .*), words_at,", r"\1, 0,"),
    ("other zero", "exact", PE, r"(scratch_codes_\d+), 8\)", r"\1, 7)"),
    ("other zero", "bytes", PE, r"(scratch_codes_\d+), 128\)", r"\1, 127)"),
    ("other sign", "exact", PE, r"@sub16\(", "@add16("),
    ("other sign", "wide", PE, r"@fadds\(", "@fsubs("),
    ("other scale", "exact", PE, r"(scales = .*), scales_at,", r"\1, 0,"),
    ("other scale", "lifted", PE, r", scales_at, f16\)", ", 0, f16)"),
    ("other scale", "exact", PE, r"(-> w_scales\[)5 \* i \+", r"\1 5 * j +"),
    ("other scale", "wide", PE, r"(-> scratch_f32\[)7 \* i \+", r"\1 "),
    ("other scale", "bytes", PE, r"@fmuls\((\w+), \w+, \w+\);", r"@fmovs(\1, \1);"),
    ("other minimum", "lifted", PE, r"@faddhs\(.*\);", ""),
    ("other minimum", "wide", PE, r"@fadds\(.*\);", ""),
    ("other minimum", "lifted", PE, r"(-> w_least\[)5 \* i \+", r"\1 "),
    ("other minimum", "wide", PE, r"(least = .*), least_at,", r"\1, 0,"),
    ("other place", "lifted", PE, r"numbers_at \+ y_per_part \* part", "numbers_at"),
    ("other place", "bytes", PE, r"(?<=y_per_part = )(\d+)", r"\1 - 1"),
    ("packing", "exact", HOST, r"bits \* part", "bits * (parts - 1 - part)"),
    ("packing", "wide", HOST, r"parts, group // parts, columns\)",
     "group // parts, parts, columns).swapaxes(-3, -2)"),
    ("packing", "bytes", HOST, r"found \|= ", "found[:] = "),
)  # fmt: skip
IN_CI = ("other code", "other zero", "other sign", "other scale", "other minimum", "packing")


def judged(name, folder, monkeypatch, edit=None):
    """How ``edit`` of a program is noticed: the code of what stops it, ``numbers``, or not at all,
    an empty text."""
    form, sizes, dtype, arch = PROGRAMS[name]
    form, (groups, layers, columns, first, count) = CODE_FORMATS[form], sizes
    text = program(form, groups, layers, columns, first, count, dtype)
    given = tensors(form, groups, layers, columns, 5)
    files = dict(emit(compiled(text, folder, "codes.meshir", device=arch)))
    if edit is not None:
        file, pattern, new = edit
        files[file], edits = re.subn(pattern, new, files[file])
        assert edits == 1, f"{pattern} stands {edits} times in {file}"
    try:
        with np.errstate(all="ignore"):
            found, _ = run_files(files, given, folder, monkeypatch)
    except MeshcError as problem:
        return problem.diagnostics[0].code
    wanted = decoded(form, given, first, count, dtype)
    return "" if np.array_equal(found["y"].view(np.uint8), wanted.view(np.uint8)) else "numbers"


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_emitted_is_right(name, tmp_path, monkeypatch):
    assert judged(name, tmp_path, monkeypatch) == ""


def _in_ci(place):
    """Whether an edit is the first of a class that is tried in CI."""
    fault = EDITS[place][0]
    return fault in IN_CI and fault not in [one[0] for one in EDITS[:place]]


@pytest.mark.every_case
@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(one, id=f"{n}-{one[0]}", marks=() if _in_ci(n) else pytest.mark.slow)
        for n, one in enumerate(EDITS)
    ],
)
def test_an_edit_is_noticed(edit, tmp_path, monkeypatch):
    _, name, *change = edit
    assert judged(name, tmp_path, monkeypatch, change) != ""
