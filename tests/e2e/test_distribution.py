"""The emitted program is distributed: what goes round a channel fails or gives other numbers."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from mesh_programs import MeshProgram, load_program, mesh_program, write

pytestmark = pytest.mark.models

MODEL = Path(__file__).parents[1] / "data" / "tiny" / "llama-9h3-tied"
IDS = json.loads((MODEL / "expected.json").read_text())["prompt_ids"]
TOKENS = 3
CORES = 15

SEND = "        sent_2 = cast_x.send(view, on=x_is_0)\n"
RECV = "        got_3 = cast_x.recv(view, on=cast_x_receivers)\n"
CAST = f"{SEND}{RECV}        wait(got_3, sent_2)\n"
COPY_BETWEEN_CORES = """        lanes = view.direct(fabric.everyone)
        grid = lanes.reshape(5, 3, -1)
        grid[:, 1:] = grid[:, :1]
"""


@cache
def program() -> MeshProgram:
    return mesh_program(str(MODEL), "3x5", len(IDS) + TOKENS)


@cache
def files() -> dict[str, str]:
    return program().files()


def logits(folder: Path, changed: dict[str, str], order: np.ndarray | None = None) -> np.ndarray:
    """Logits [TOKENS, vocab] of a program whose decode phase has texts replaced."""
    text = files()["decode.py"]
    for old, new in changed.items():
        assert old in text
        text = text.replace(old, new)
    write(folder, files() | {"decode.py": text})
    model = load_program(folder).load(program().tensors, order)
    found: list[np.ndarray] = []
    model.generate(IDS, TOKENS, lambda token, step: found.append(step.copy()))
    return np.array(found)


def shuffled(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(CORES)


def test_the_numbering_of_cores_cannot_be_seen(tmp_path: Path) -> None:
    """Every core reads its own memory only: any order of cores gives the same bits."""
    plain = logits(tmp_path / "plain", {})
    for seed in range(3):
        again = logits(tmp_path / str(seed), {}, shuffled(seed))
        assert again.tobytes() == plain.tobytes()


def test_a_copy_that_bypasses_its_channel_is_seen(tmp_path: Path) -> None:
    """Moving data in memory works while cores lie in order, and only then. (What is recorded would
    leave it out at the second call.)"""
    plain = logits(tmp_path / "plain", {})
    bypass = {CAST: COPY_BETWEEN_CORES, "    @phase.recorded\n": ""}
    assert np.array_equal(logits(tmp_path / "ordered", bypass), plain)
    assert not np.array_equal(logits(tmp_path / "shuffled", bypass, shuffled(1)), plain)


def test_programs_cannot_reach_arrays(tmp_path: Path) -> None:
    reaches = {CAST: "        sum(row for row in view)\n" + CAST}
    with pytest.raises(Exception, match="kernels and channels only") as error:
        logits(tmp_path, reaches)
    assert type(error.value).__name__ == "IsolationError"


BROKEN_TRANSFERS = {
    "send left out": {CAST: f"{RECV}        wait(got_3)\n"},
    "receive left out": {CAST: f"{SEND}        wait(sent_2)\n"},
    "too few senders": {
        "chain_y_1.send(view, on=chain_y_1_senders)": "chain_y_1.send(view, on=y_is_3)"
    },
    "route to the wrong core": {"Hop(to=(core.y - 3, core.x)": "Hop(to=(core.y - 2, core.x)"},
    "send after the wait": {CAST: f"{RECV}        wait(got_3)\n{SEND}        wait(sent_2)\n"},
}


@pytest.mark.parametrize("kind", BROKEN_TRANSFERS)
def test_a_transfer_without_counterpart_is_an_error(kind: str, tmp_path: Path) -> None:
    with pytest.raises(Exception) as error:
        logits(tmp_path, BROKEN_TRANSFERS[kind])
    assert type(error.value).__name__ == "ChannelError"


WRONG_NUMBERS = {
    "combine": {'chain_x_1.recv(view, combine="add"': 'chain_x_1.recv(view, combine="max"'},
    "chain order": {"phase.sweep(2 - core.x, 3)": "phase.sweep(core.x, 3)"},
    "no reduction": {"        all_reduce_add_x(o)\n": ""},
    "cache row": {"(core.rank_y == pos % 5)": "(core.rank_y == (pos + 1) % 5)"},
}


@pytest.mark.parametrize("kind", WRONG_NUMBERS)
def test_a_changed_program_gives_other_numbers_or_fails(kind: str, tmp_path: Path) -> None:
    plain = logits(tmp_path / "plain", {})
    try:
        found = logits(tmp_path / "changed", WRONG_NUMBERS[kind])
    except Exception as error:
        assert type(error).__name__ == "ChannelError"
    else:
        assert not np.array_equal(found, plain)
