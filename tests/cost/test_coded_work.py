"""What tasks bring of weights that stay quantised, and how long a block takes to decode it."""

from pathlib import Path

import pytest

import meshc
from meshc.cost.tasks.stages import PhaseWork
from meshc.cost.tasks.tile_times import TileTimes
from meshc.cost.tasks.work import work_of
from meshc.devices import device
from meshc.ir.types import DType

CASES = Path(__file__).parents[1] / "passes" / "stream_quantised"
# Bytes of two rows of 64 columns and their scales, and of a block of 16 rows, by hand.
BYTES = {
    "example": (2 * (32 + 4), 16 * (16 + 2), 2, DType.U4, False),
    "lifted": (2 * (32 + 4 + 8), 16 * (16 + 2 + 4), 2, DType.U4, True),
    "e4m3": (2 * (64 + 16), 16 * (16 + 4), 1, DType.E4M3, False),
}


def piece_of(name):
    text = (CASES / f"{name}.meshir").read_text().split("# ---\n")[1]
    module = meshc.parse(text, name)
    module.options["dtype"] = "f16"
    *_, phase = (one for one in work_of(module, {}) if isinstance(one, PhaseWork))
    (family,) = phase.families
    (piece,) = family.tasks[0].pieces
    return piece


@pytest.mark.parametrize("name", BYTES)
def test_tasks_bring_what_is_encoded(name):
    size, block, fragments, codes, lifted = BYTES[name]
    piece = piece_of(name)
    assert (piece.bytes, piece.kind, piece.rows) == (size, "product", 1)
    coded = piece.coded
    assert (coded.bytes, coded.fragments, coded.codes) == (block, fragments, codes)
    assert (coded.lifted, coded.values) == (lifted, DType.F16)


@pytest.mark.parametrize("name", BYTES)
def test_tiles_are_whole_blocks_that_take_longer(name):
    times, piece = TileTimes(device("h200")), piece_of(name)
    size = times.size(piece)
    assert size % piece.coded.bytes == 0
    assert abs(size - times.tile) <= piece.coded.bytes / 2
    assert times.piece(piece) > 113e-9 / min(1.0, piece.filled)
