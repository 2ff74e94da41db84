"""Sequences that one loaded program is given behind each other: nothing that the first one left, be
it no number, matters to the next."""

import numpy as np
import pytest
from csl_prompts import MODEL, Conversation

WAYS = {
    "steps": {"phase": "decode"},
    "two programs": {},
    "one program": {"phases": "one"},
    "moved weights": {"phases": "moved"},
    "chunks": {"chunk": 4, "phases": "one"},
    "requests": {"phase": "decode", "batch": 2},
}


def logits(model, prompts):
    """Those behind each of ``prompts`` and one token more."""
    found = [[] for _ in prompts]

    def told(number, token, row):
        found[number].append(row)

    if hasattr(model, "generate_all"):
        model.generate_all(prompts, 2, told, ())
    else:
        for rows, ids in zip(found, prompts, strict=True):
            model.generate(ids, 2, lambda token, row, rows=rows: rows.append(row), ())
    return found


@pytest.mark.parametrize("kv", ["shift", "cyclic"])
@pytest.mark.parametrize("way", WAYS)
def test_a_sequence_of_no_numbers_leaves_nothing(way, kv, tmp_path):
    path = tmp_path / "drawn.mesh"
    path.write_text(MODEL.format(dtype="f32", E=8, H=2, G=1, D=4, F=6, layers=2))
    options = {"device": "wse3", "mesh": "2x2", "seq": 10, "kv": kv, **WAYS[way]}
    model = Conversation(path, tmp_path, **options).model
    model.embedding = np.array(model.embedding)
    model.embedding[0] = np.nan
    spoilt, prompt = [1, 0, 0, 2, 0, 3, 1, 2], [4, 5, 6]
    (alone,) = logits(model, [prompt])
    assert np.isfinite(alone).all()
    (lost,) = logits(model, [spoilt])
    assert np.isnan(lost).all()
    np.testing.assert_array_equal(logits(model, [prompt]), [alone])
    lost, beside = logits(model, [spoilt, prompt])
    assert np.isnan(lost).all()
    np.testing.assert_array_equal(beside, alone)
