"""Learned positions in CSL: the host adds their rows to the embeddings of tokens, wherever it looks
tokens up. ``tests/families`` has the logits that transformers recorded for GPT-2."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from csl_prompts import model_text

import meshc
from meshc.frontend.checkpoints import open_checkpoint, read_config
from meshc.sim.emitted_runs import compile_folder, host_names
from meshc.sim.machine.run_options import Options
from meshc.support.output import write_directory

pytestmark = pytest.mark.models

DATA = Path(__file__).parents[1] / "data" / "tiny_families"
GPT2 = DATA / "gpt2-5h-tied"
RNG = np.random.default_rng(4)
TABLES = {
    "embedding": RNG.standard_normal((9, 6)).astype(np.float16),
    "positions": RNG.standard_normal((5, 6)).astype(np.float16),
}
SIZES = {"E": 6, "H": 1, "G": 1, "D": 2, "F": 3, "layers": 1, "learned": 5}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """What the host program of a small model defines."""
    folder = tmp_path_factory.mktemp("learned")
    (folder / "learned.mesh").write_text(model_text("f16", **SIZES))
    asked = {"target": "csl", "mesh": "1x1", "phase": "decode", "seq": 5}
    made = meshc.compile(folder / "learned.mesh", **asked)
    write_directory(folder / "out", made.files, made.facts)
    return SimpleNamespace(**host_names(folder / "out" / "run.py", Options(files=False)))


def holding(**tables: np.ndarray) -> SimpleNamespace:
    """A model with these tables."""
    return SimpleNamespace(
        embedding=tables["embedding"].astype(np.float16), learned=tables["positions"]
    )


def test_rows_are_sums_in_f32(host: SimpleNamespace) -> None:
    found = host.embedded(holding(**TABLES), [3, 0, 8], 2)
    wanted = [
        np.float32(TABLES["embedding"][token]) + np.float32(TABLES["positions"][place])
        for token, place in ((3, 2), (0, 3), (8, 4))
    ]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("ids", "position"), [([1], 5), ([1, 2], 4), ([1], -1)])
def test_positions_that_the_table_lacks_are_refused(
    host: SimpleNamespace, ids: list[int], position: int
) -> None:
    with pytest.raises(SystemExit, match=r"positions.npy has the shape \(5, 6\), and rows of 6"):
        host.embedded(holding(**TABLES), ids, position)


def test_a_table_of_another_width_is_refused(host: SimpleNamespace) -> None:
    with pytest.raises(SystemExit, match=r"has the shape \(5, 1\)"):
        host.embedded(holding(**TABLES | {"positions": np.ones((5, 1))}), [1], 0)


LOOKED_UP = {
    "steps": {"phase": "decode", "mesh": "2x3"},
    "tokens chosen on cores": {"phase": "decode", "mesh": "2x2", "choose": "cores"},
    "whole prompts": {"mesh": "2x2"},
    "chunks": {"mesh": "3x2", "chunk": 4},
    "a batch": {"mesh": "2x2", "batch": 2},
}
PROMPTS = ([3, 14, 15, 9, 26], [5, 35])


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOKED_UP)
def test_tokens_are_those_of_the_python_target(name: str) -> None:
    """One prompt and, of a batch, two of different lengths."""
    python = meshc.compile(str(GPT2), mesh="1x1", seq=9, dtype="f32").load()
    compiled = meshc.compile(str(GPT2), target="csl", dtype="f32", seq=9, **LOOKED_UP[name])
    prompts = PROMPTS if "batch" in LOOKED_UP[name] else PROMPTS[:1]
    with compiled.load() as program:
        answers = program.generate_all(prompts, 4, ignore_eos=True)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.tokens == python.generate(prompt, 4, ignore_eos=True).tokens


@pytest.mark.slow
def test_edits_of_the_host_are_noticed(tmp_path: Path) -> None:
    """Rows of other positions, or of none, give other logits."""
    made = meshc.compile(str(GPT2), target="csl", dtype="f32", seq=4, mesh="2x2", phase="decode")
    write_directory(tmp_path / "out", made.files, made.facts)
    compile_folder(tmp_path / "out", tmp_path / "built")
    weights = open_checkpoint(GPT2, read_config(GPT2))
    script, found = tmp_path / "out" / "run.py", []
    text = script.read_text()
    for old, new in (
        ("", ""),
        (r"position : position \+ len\(ids\)", ": len(ids)"),
        (r" \+ np.asarray\(learned, np.float32\)", ""),
    ):
        script.write_text(re.sub(old, new, text, count=1) if old else text)
        names = host_names(script, Options(files=False))
        model = names["Model"](str(tmp_path / "built"), weights.read)
        found.append(np.array([model.step(token, place) for place, token in enumerate((3, 5))]))
        model.stop()
    right, *wrong = found
    for logits in wrong:
        assert np.abs(logits - right).max() > 1e-3 * np.abs(right).max()
