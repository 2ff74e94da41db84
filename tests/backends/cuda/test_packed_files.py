"""Packed weights are kept for the next run, and never taken for those of another."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from meshc.backends.cuda import Keeping, from_json
from meshc.backends.cuda.gpu_shares import RankShare
from meshc.backends.cuda.packing import all_packed, kept, packed
from meshc.backends.cuda.ranks import RankTensors
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics

CONFIG = {
    "model_type": "llama", "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 200,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 64,
    "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "float16",
}  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    request = CompileRequest(target="cuda", dtype="f16", seq=64)
    files = compile_loaded(load_any(str(folder), Diagnostics()), request).files
    return from_json(files["manifest.json"])


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    monkeypatch.setattr(kept, "LEAST_BYTES", 1)


class Weights(dict):
    """Tensors with a stamp, and which of them were asked for."""

    def __init__(self, program, stamp="one", factor=1.0):
        rng = np.random.default_rng(0)
        for weight in program.weights.values():
            for name, shape in zip(weight.sources, weight.source_shapes, strict=True):
                self[name] = rng.standard_normal(shape, dtype=np.float32) * np.float32(factor)
        self._stamp, self.asked = stamp, []

    def stored(self, name):
        self.asked.append(name)
        return self[name]

    def stamp(self):
        return self._stamp


def start(program, weights, folder):
    """What a start packs or maps, beside what packing gives; what was said."""
    said = []
    found = dict(all_packed(program, weights, Keeping(folder, said.append)))
    asked = list(weights.asked)
    assert list(found) == list(program.weights)
    for name, weight in program.weights.items():
        assert (found[name] == packed(weight, weights)).all(), name
    weights.asked.clear()
    return asked, said


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_second_start_reads_no_weight(program, tmp_path):
    first, second = Weights(program), Weights(program)
    assert start(program, first, tmp_path)[0]
    assert start(program, second, tmp_path) == ([], [])
    (file,) = files(tmp_path)
    _, size = kept.places_in_file(program.weights)
    assert file.stat().st_size == size


def test_weights_with_other_stamps_are_packed(program, tmp_path):
    start(program, Weights(program), tmp_path)
    other = Weights(program, "two", 2.0)
    assert start(program, other, tmp_path)[0]
    assert len(files(tmp_path)) == 2


def test_another_packing_is_packed(program, tmp_path):
    start(program, Weights(program), tmp_path)
    weights = {name: replace(w, dtype="bf16") for name, w in program.weights.items()}
    assert start(replace(program, weights=weights), Weights(program), tmp_path)[0]


def test_each_rank_has_its_own(program, tmp_path):
    share = RankShare(2, "multimem", {})
    ranked = replace(program, ranks=share)
    found = []
    for rank in (0, 1, 0):
        weights = Weights(program)
        list(all_packed(ranked, RankTensors(share, weights, rank), Keeping(tmp_path, print)))
        found.append(bool(weights.asked))
    assert found == [True, True, False] and len(files(tmp_path)) == 2


def test_what_is_damaged_is_packed_again(program, tmp_path):
    start(program, Weights(program), tmp_path)
    (file,) = files(tmp_path)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert start(program, Weights(program), tmp_path)[0]
    assert start(program, Weights(program), tmp_path)[0] == []


def test_what_has_no_stamp_or_is_small_is_not_kept(program, tmp_path, monkeypatch):
    weights = Weights(program, None)
    assert start(program, weights, tmp_path)[0] and not files(tmp_path)
    monkeypatch.setattr(kept, "LEAST_BYTES", 1 << 30)
    assert start(program, Weights(program), tmp_path)[0] and not files(tmp_path)


def test_where_nothing_can_be_kept_weights_are_packed_for_the_run(program, tmp_path):
    place = tmp_path / "packed"
    place.write_text("no folder")
    asked, said = start(program, Weights(program), place)
    assert asked and len(said) == 1
    assert said[0].startswith(f"packed weights cannot be kept in '{place}': ")
    assert said[0].endswith("they are packed for this run alone")


def test_weights_that_change_while_they_are_packed_are_not_kept(program, tmp_path):
    weights, said = Weights(program), []
    stamps = iter(["one", "two", "two"])
    weights.stamp = lambda: next(stamps)
    found = dict(all_packed(program, weights, Keeping(tmp_path, said.append)))
    assert (found["wq"] == packed(program.weights["wq"], weights)).all()
    assert not files(tmp_path) and "their files were changed meanwhile" in said[0]


def test_a_write_that_writes_less_goes_on(program, tmp_path, monkeypatch):
    write = os.pwrite
    monkeypatch.setattr(kept.os, "pwrite", lambda file, data, at: write(file, data[:1000], at))
    start(program, Weights(program), tmp_path)
    assert start(program, Weights(program), tmp_path)[0] == []
