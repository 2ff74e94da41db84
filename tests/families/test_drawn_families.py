"""Drawn models of every family, written by transformers and held against it on every target: the
table of families and targets, at many configurations."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random
from types import ModuleType
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pytest
from drawn_families import drawn, odd
from family_cells import BOUNDS, DATA, Answer, check
from family_outcomes import COLUMNS, TABLE

TOOLS = DATA.parents[1] / "tools" / "oracle"
DRAWS = 4
"""Configurations of a row, each in small sizes for meshes, in those that kernels of clusters take,
and in odd ones."""
OF_SIZES = {
    "meshes": [column for column in COLUMNS if not column.startswith("cuda")],
    "cuda": [column for column in COLUMNS if column.startswith("cuda")],
    "odd": ["cuda"],
}
"""The columns that are asked of models of such sizes."""
ROUNDED_BOUND = 2.0**-9
"""How far logits of steps and prompts of tasks may be off, as a part of the largest one, from
float64 of what they keep and round: elements of a cache may be rounded the other way."""
NOISES = range(1, 9)
"""Seeds of what sums may be off by."""
MULTIPLIED = ("gemma", "granite")
"""Families with drawn multipliers or scaled embeddings, whose kernels round what is large: their
bound goes by how far rounding its weights moves a model."""
LESS_ONE = ("gemma", "nemotron")
"""What names of families begin with whose gains of norms are stored less one."""
SQUARES, OTHERS = ("2x2", "3x3"), ("3x2", "2x3", "4x2", "1x4")


class Oracle(NamedTuple):
    """The scripts that make tiny models, and store one as an internlm2."""

    tiny_models: ModuleType
    tiny_families: ModuleType


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    sys.path.insert(0, str(TOOLS))
    try:
        return Oracle(import_module("tiny_models"), import_module("tiny_families"))
    finally:
        sys.path.remove(str(TOOLS))


class Transformers:
    """Logits of the saved model, computed in float32 for all tokens at once."""

    def __init__(self, network: object, prompt: list[int], count: int, bound: float) -> None:
        self.network, self.prompt, self.count, self.bound = network, prompt, count, bound

    def wanted(self, found: Answer) -> np.ndarray:
        """Logits behind the prompt and behind each of the tokens that were found, but the last."""
        import torch

        ids = [*self.prompt, *found.tokens[:-1]]
        with torch.no_grad():
            logits = self.network(input_ids=torch.tensor([ids])).logits[0]  # type: ignore[operator]
        return logits[len(self.prompt) - 1 :].double().numpy()

    def error(self, found: Answer) -> float:
        """Of every step, whose tokens are those that were found."""
        assert len(found.tokens) == self.count
        assert found.tokens == found.logits.argmax(-1).tolist()
        wanted = self.wanted(found)
        return float(np.abs(found.logits - wanted).max() / np.abs(wanted).max())


class OfRoundedValues(Transformers):
    """The same in float64, of what a program of f16 keeps and rounds (``rounded_transformers.py``).
    So what is left is what it computes, and what it rounds the other way: its bound goes by how far
    logits move where what is rounded is off by as much as sums of f32 are."""

    def wanted(self, found: Answer) -> np.ndarray:
        from rounded_transformers import rounded_logits

        of = self.network, self.prompt, found.tokens[:-1], found.together
        wanted = rounded_logits(*of)
        off = max(np.abs(rounded_logits(*of, seed) - wanted).max() for seed in NOISES)
        self.bound = max(ROUNDED_BOUND, 2 * float(off / np.abs(wanted).max()))
        return wanted


def moved(network: object, prompt: list[int], gains_less_one: bool) -> float:
    """How far the logits of ``prompt`` move, as a part of the largest one, if every weight is off
    by up to half a unit of f16; of norms, the gain, which may be stored less one."""
    import torch

    dice, ids = torch.Generator().manual_seed(1), torch.tensor([prompt])
    with torch.no_grad():
        wanted = network(input_ids=ids).logits[0]  # type: ignore[operator]
        kept = {n: p.clone() for n, p in network.named_parameters()}  # type: ignore[attr-defined]
        for name, param in network.named_parameters():  # type: ignore[attr-defined]
            whole = kept[name] + (gains_less_one and name.endswith("norm.weight"))
            param += whole * (torch.rand(whole.shape, generator=dice) * 2 - 1) * 2.0**-11
        found = network(input_ids=ids).logits[0]  # type: ignore[operator]
        for name, param in network.named_parameters():  # type: ignore[attr-defined]
            param.copy_(kept[name])
    return float((found - wanted).abs().max() / wanted.abs().max())


def written(
    oracle: Oracle, folder: Path, family: str, settings: dict[str, object], kernels: bool
) -> dict[str, Transformers]:
    """A checkpoint of random weights in ``folder``, of f16 for programs of ``kernels``, and the
    judge of its programs by column. Those of many tokens at once for CUDA round what kernels take
    otherwise than those of tasks, so their bound goes by how far rounding its weights moves a
    model that multiplies what is large."""
    import torch

    seed = crc32(json.dumps(settings).encode())
    kind = {"gemma3_text": "gemma3", "internlm2": "llama"}.get(family, family)
    dtype = torch.float16 if kernels else torch.float32
    make = oracle.tiny_models
    make.save(make.TinyModel("drawn", kind, settings, dtype), folder, seed)
    network, other = make.load(folder), make.load(folder) if kernels else None
    if family == "internlm2":
        oracle.tiny_families.as_internlm2(folder)
    length, count = (21, 8) if kernels else (7, 12)
    vocab = network.config.vocab_size
    ids = np.random.default_rng(seed).integers(0, vocab, length)
    prompt = [int(token) for token in ids]
    less_one = kind.startswith(LESS_ONE)
    stretched = "attention_factor" in json.dumps(settings)
    bound = BOUNDS["f16" if kernels else "f32"]
    if kernels and (stretched or family in MULTIPLIED):
        bound = max(bound, moved(network, prompt, less_one))
    found = dict.fromkeys(COLUMNS, Transformers(network, prompt, count, bound))
    if kernels:
        from rounded_transformers import of_stored_weights

        exact = of_stored_weights(other, less_one)
        found["cuda"] = OfRoundedValues(exact, prompt, count, ROUNDED_BOUND)
    return found


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.models
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("sizes", ["meshes", "cuda", "odd"])
@pytest.mark.parametrize("number", range(DRAWS))
@pytest.mark.parametrize(("family", "case"), TABLE)
def test_a_drawn_model_gives_what_the_table_says(
    family: str,
    case: str,
    number: int,
    sizes: str,
    oracle: Oracle,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """All columns of meshes, or of CUDA for sizes that kernels of clusters take, or steps and
    prompts of tasks for odd ones; none hides what the others show."""
    settings = drawn(family, case, number, sizes == "cuda")
    if sizes == "odd":
        settings = odd(family, case, number)
    judges = written(oracle, tmp_path, family, settings, sizes != "meshes")
    dice = Random(f"{family} {case} {number}")
    seen, wrong = Counter[str](models=1), []
    for column in OF_SIZES[sizes]:
        meshes = SQUARES if column in ("python square", "csl whole") else OTHERS
        options = {"mesh": dice.choice(meshes)} if sizes == "meshes" else {}
        try:
            wanted = TABLE[family, case].outcomes[column]
            outcome = check(tmp_path, column, wanted, judges[column], **options)
        except AssertionError as error:
            wrong.append(f"{column} {options}: {error}")
            outcome = "wrong"
        seen[outcome.partition(":")[0]] += 1
    record_property("drawn", dict(seen))
    assert not wrong, "\n".join([json.dumps(settings), *wrong])
