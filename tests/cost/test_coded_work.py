"""What tasks bring of weights that stay quantised, and how long a block takes to decode it."""

from dataclasses import replace
from pathlib import Path

import pytest

import meshc
from meshc.analysis.tasks.tiles import coded_tile_bytes, tile_bytes
from meshc.backends.cuda.tasks.coded import block_bytes
from meshc.cost.tasks.stages import PhaseWork, TaskWork
from meshc.cost.tasks.tile_times import TileTimes
from meshc.cost.tasks.work import work_of
from meshc.devices import device
from meshc.ir.codes import CODE_FORMATS
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
    assert times.size(piece) == 64 // piece.coded.group * piece.coded.bytes
    longer = replace(piece, bytes=1000 * piece.bytes)
    assert times.size(longer) % piece.coded.bytes == 0
    assert abs(times.size(longer) - times.tile) <= 2 * piece.coded.bytes
    assert times.piece(longer) > 113e-9 / min(1.0, piece.filled)


@pytest.mark.parametrize("form", ("int4_128", "q4_k", "e4m3_128"))
def test_tiles_of_a_row_have_as_many_blocks(form):
    """As many but for the last one, in pairs where two blocks are multiplied at once, and about a
    tile of numbers."""
    gpu, block = device("h200"), block_bytes(CODE_FORMATS[form])
    for pairs in (False, True):
        for count in range(1, 200):
            size = coded_tile_bytes(gpu, block, count, pairs)
            own = size // block
            assert size % block == 0
            assert own % 2 == 0 or not pairs
            tiles = -(-count // own)
            assert own - count / tiles < (2 if pairs else 1)
            assert size <= max(1.25 * tile_bytes(gpu), block) + (1 + pairs) * block
            assert tiles == 1 or size > tile_bytes(gpu) / 2


def attending(name):
    """The first piece of attention of the case ``name`` of expand-tasks, with 7 tokens before."""
    text = (CASES.parent / "expand_tasks" / f"{name}.meshir").read_text().split("# ---\n")[1]
    module = meshc.parse(text, name)
    module.options["dtype"] = "f16"
    phases = [one for one in work_of(module, {"pos": 7}) if isinstance(one, PhaseWork)]
    families = [f for phase in phases for f in phase.families if f.name == "attend"]
    return families[0].tasks[0].pieces[0]


def test_rows_of_floats_come_with_their_scales_and_are_decoded():
    # Of two lanes, which no tensor core attends to; here as if one did.
    plain, coded = (replace(attending(case), issued=0.0) for case in ("layers", "coded_caches"))
    # Keys and values of four tokens: two lanes of 16 bits, or of 8 and a scale.
    assert (plain.bytes, coded.bytes) == (2 * 4 * 2 * 2, 2 * 4 * (2 + 1))
    assert (plain.of_floats, coded.of_floats, coded.rows) == (False, True, plain.rows)
    times = TileTimes(device("h200"))
    whole = replace(coded, bytes=times.tile)
    decoding = 2.4 * 10 * times.tile / 128 / 4 / 1.98e9
    assert times.piece(whole) == pytest.approx(2 * times.piece(plain) + decoding)
    assert len(times.tiles(TaskWork((replace(whole, bytes=times.tile + 128),)))) == 1
