"""The benchmark of packing: what it writes is a checkpoint, and what it measures is all of it."""

import numpy as np
import packing_codes
import packing_speed
import pytest

from meshc.backends.cuda.packing import kept
from meshc.ir.codes import CODE_FORMATS

MODEL = "smollm2-135m"


@pytest.mark.parametrize("source", ["bf16", pytest.param("fp8", marks=pytest.mark.slow)])
def test_packing_and_starts_are_measured(source, tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "LEAST_BYTES", 1)
    folder = tmp_path / "model"
    packing_speed.write_checkpoint(folder, MODEL, 1, source)
    found = packing_speed.opened(folder)
    for name in ("embedding", "wq", "w_down", "ffn_norm"):
        assert np.isfinite(found[name]).all() and found[name].any()
    packed = packing_speed.packing(folder, source, "bf16", 1)
    assert (packed.source, packed.target) == (source, "bf16") and packed.share > 0
    start = packing_speed.starting(folder, tmp_path / "kept", "bf16", 1)
    program = packing_speed.program_for(folder, "bf16")
    assert start.packed_bytes == kept.places_in_file(program.weights)[1]
    assert min(start.first, start.second, start.reading) > 0
    assert len(list((tmp_path / "kept").glob("*/*"))) == 1


@pytest.mark.parametrize("name", ["e4m3_128", "mxfp4", "q4_k"])
def test_packing_of_codes_is_measured(name):
    found = packing_codes.packing(CODE_FORMATS[name], 32, 1)
    assert min(found.packed, found.copy, found.read, found.copy_of_read) > 0
    assert found.read >= found.packed
