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
from drawn_families import drawn
from family_cells import DATA, Answer, check
from family_outcomes import COLUMNS, TABLE

TOOLS = DATA.parents[1] / "tools" / "oracle"
DRAWS = 4
"""Configurations of a row, each in small sizes for meshes and in those that kernels take."""
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

    def __init__(self, network: object, prompt: list[int], count: int, moved: float = 0.0) -> None:
        self.network, self.prompt, self.count, self.moved = network, prompt, count, moved

    def given(self) -> dict[str, object]:
        """What a run is given beside tokens."""
        return {}

    def error(self, found: Answer) -> float:
        """Of every step, whose tokens are those that were found."""
        import torch

        assert len(found.tokens) == self.count
        ids = [*self.prompt, *found.tokens[:-1]]
        with torch.no_grad():
            found_all = self.network(input_ids=torch.tensor([ids]), **self.given())  # type: ignore[operator]
        logits = found_all.logits[0]
        wanted = logits[len(self.prompt) - 1 :].double().numpy()
        assert found.tokens == found.logits.argmax(-1).tolist()
        return float(np.abs(found.logits - wanted).max() / np.abs(wanted).max())


class OfRoundedValues(Transformers):
    """The same in float64, of what a program of f16 keeps: keys and values are rounded, and gains
    of norms that are stored less one are rounded whole. So what is left is what it computes."""

    def __init__(
        self, network: object, prompt: list[int], count: int, less_one: bool, moved: float
    ) -> None:
        import torch

        super().__init__(network.double(), prompt, count, moved)  # type: ignore[attr-defined]
        with torch.no_grad():
            for name, param in network.named_parameters():  # type: ignore[attr-defined]
                if less_one and "norm" in name:
                    param.copy_((1 + param).half().double() - 1)

    def given(self) -> dict[str, object]:
        from transformers import DynamicCache

        class Rounded(DynamicCache):  # type: ignore[misc]
            def update(
                self, keys: object, values: object, *more: object, **named: object
            ) -> object:
                both = (part.half().double() for part in (keys, values))  # type: ignore[attr-defined]
                return super().update(*both, *more, **named)

        return {"past_key_values": Rounded(config=self.network.config), "use_cache": True}  # type: ignore[attr-defined]


def moved(network: object, prompt: list[int], gains_less_one: bool) -> float:
    """How far the logits of ``prompt`` move, as a part of the largest one, if every weight is off
    by up to half a unit of f16; of norms, the gain, which may be stored less one."""
    import torch

    dice, ids = torch.Generator().manual_seed(1), torch.tensor([prompt])
    with torch.no_grad():
        wanted = network(input_ids=ids).logits[0]  # type: ignore[operator]
        kept = {n: p.clone() for n, p in network.named_parameters()}  # type: ignore[attr-defined]
        for name, param in network.named_parameters():  # type: ignore[attr-defined]
            whole = kept[name] + (gains_less_one and "norm" in name)
            param += whole * (torch.rand(whole.shape, generator=dice) * 2 - 1) * 2.0**-11
        found = network(input_ids=ids).logits[0]  # type: ignore[operator]
        for name, param in network.named_parameters():  # type: ignore[attr-defined]
            param.copy_(kept[name])
    return float((found - wanted).abs().max() / wanted.abs().max())


def written(
    oracle: Oracle, folder: Path, family: str, settings: dict[str, object], wide: bool
) -> dict[str, Transformers]:
    """A checkpoint of random weights in ``folder``, and the judge of its programs by column. Those
    of many tokens at once for CUDA round what kernels take as well."""
    import torch

    seed = crc32(json.dumps(settings).encode())
    kind = {"gemma3_text": "gemma3", "internlm2": "llama"}.get(family, family)
    dtype = torch.float16 if wide else torch.float32
    make = oracle.tiny_models
    make.save(make.TinyModel("drawn", kind, settings, dtype), folder, seed)
    network, other = make.load(folder), make.load(folder) if wide else None
    if family == "internlm2":
        oracle.tiny_families.as_internlm2(folder)
    length, count = (21, 8) if wide else (7, 12)
    vocab = network.config.vocab_size
    ids = np.random.default_rng(seed).integers(0, vocab, length)
    prompt = [int(token) for token in ids]
    less_one, routed = kind.startswith(LESS_ONE), any("experts" in name for name in settings)
    stretched = "attention_factor" in json.dumps(settings)
    by_weights = wide and (routed or stretched or family in MULTIPLIED)
    change = moved(network, prompt, less_one) if by_weights else 0.0
    found = dict.fromkeys(COLUMNS, Transformers(network, prompt, count, change))
    if wide:
        # Gates go by small differences of scores, so vectors of prompts, which are rounded, move
        # mixtures of experts more than others: at most as much as rounding their weights does. So
        # are weights that are stretched, whose judge has rounded the others.
        own = change if routed or stretched else 0.0
        found["cuda"] = OfRoundedValues(other, prompt, count, less_one, own)
    return found


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.models
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("wide", [False, True], ids=["meshes", "cuda"])
@pytest.mark.parametrize("number", range(DRAWS))
@pytest.mark.parametrize(("family", "case"), TABLE)
def test_a_drawn_model_gives_what_the_table_says(
    family: str,
    case: str,
    number: int,
    wide: bool,
    oracle: Oracle,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """All columns; none hides what the others show."""
    settings = drawn(family, case, number, wide)
    judges = written(oracle, tmp_path, family, settings, wide)
    dice = Random(f"{family} {case} {number}")
    seen, wrong = Counter[str](models=1), []
    for column in COLUMNS:
        if column.startswith("cuda") != wide:
            continue
        meshes = SQUARES if column in ("python square", "csl whole") else OTHERS
        options = {} if wide else {"mesh": dice.choice(meshes)}
        try:
            wanted = TABLE[family, case].outcomes[column]
            outcome = check(tmp_path, column, wanted, judges[column], **options)
        except AssertionError as error:
            wrong.append(f"{column} {options}: {error}")
            outcome = "wrong"
        seen[outcome.partition(":")[0]] += 1
    record_property("drawn", dict(seen))
    assert not wrong, "\n".join([json.dumps(settings), *wrong])
