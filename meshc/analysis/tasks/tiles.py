"""How much a block of a step that is made of tasks asks for at once."""

from __future__ import annotations

from collections.abc import Sequence

from meshc.analysis.cuda.blocks import FRAGMENT, FRAGMENT_BYTES, WARPS, block_memory
from meshc.devices import Device
from meshc.ir.types import DType
from meshc.support.diagnostics import fail

USUAL_BYTES = 16_384
"""Bytes of a tile on a device that does not say it (``tile_bytes``)."""
MOST_TOGETHER = 4
"""Row groups that a block multiplies at once by vectors that come through the ring with them. On an
H200 a step of Llama-3-8B for eight requests takes 1.20 times as long with eight: a copy of 2 KiB
takes nearly as long as one of 4."""
STREAMED_BLOCKS = 7
"""Blocks of numbers of so many row groups that a tile has place for, with vectors beside them.
Eight leave a block of 96 KB no room for 16 tokens of a prompt."""
DOUBLED_VECTORS = 4
"""Vectors of which products have two values each, the rounded one and what rounding left; of more
they have one."""
MOST_VECTORS = 16
"""Left sides of products in the memory of a block, whose threads have an element of one each."""

MOST_NEIGHBOURS, NEIGHBOUR_LANES = 8, 256
"""Tokens of a batch, one behind the other in their request, for which a block attends at once, and
lanes of heads whose sums a thread has in registers, of as many queries as a product takes."""
LATENT_SUMS = 32 * 512
"""Sums of latents that the registers of a block hold, of all queries for which it attends."""
LATENT_NEIGHBOUR = 0.22
"""What attention over latents takes more for a further token that attends to the same tiles, of
what one takes: instructions of a warp, counted in machine code (docs/step-times.md)."""
DIGITS, COLUMNS, LONG_GROUP = 4, 8, 128
"""Digits of eight bits that a vector has where codes are multiplied as whole numbers; columns that
a product has for them; and of how many codes a scale is at least where that is done for vectors
with more digits than columns, too."""
ATTENDED_QUERIES = 8
"""Queries whose attention takes the same instructions as that of one."""
MOST_ATTENDED, MOST_LANES, MOST_LATENT_LANES = 64, 256, 512
"""Queries of a key head, lanes of heads and lanes of latents that tensor cores attend to, at the
most: what the registers of a block hold."""
PIECE_BYTES = 16_384
"""Left sides that lie in memory are copied in pieces of about so many bytes (Copied in
mc_tasks.cuh)."""
RUN_TOKENS, LOOKING_LANES = 16, 32
"""Cached tokens that lie in one page, as long as pages are no smaller; and lanes of a warp, each of
which looks up the page of one such run (Pages in mc_tasks.cuh)."""
CACHE_PAGE, USUAL_PAGE = "cache_page", 16
"""The option of a module that says how many tokens a page of caches has where that is not the usual
number."""


def looked_up_together(tokens: int, page: int = USUAL_PAGE) -> int:
    """Tiles of so many cached ``tokens`` whose pages, of ``page`` tokens, a warp looks up at once:
    at least one."""
    runs = -(-tokens // min(page, RUN_TOKENS))
    return max(LOOKING_LANES // runs, 1)


def neighbours(tokens: int, heads: int, lanes: int) -> tuple[int, int]:
    """For how many of so many ``tokens`` of a batch, one behind the other in their request, a block
    attends at once, at the most, and how many of them products take together: each has so many
    query ``heads`` of so many ``lanes``."""
    together = max(min(ATTENDED_QUERIES // heads, MOST_NEIGHBOURS, tokens), 1)
    passes = max(min(NEIGHBOUR_LANES // lanes, MOST_NEIGHBOURS // together), 1)
    passes = min(passes, -(-tokens // together))
    return together * passes, together


def padded_heads(heads: int) -> int:
    """Rows of fragments that so many query heads of a token take over latents."""
    return -(-heads // 8) * 8


def latent_neighbours(tokens: int, heads: int, lanes: int) -> int:
    """The same of latents of so many ``lanes``, which products take all together."""
    most = LATENT_SUMS // (padded_heads(heads) * lanes)
    return max(min(most, MOST_NEIGHBOURS, tokens), 1)


def attended_by_tiles(queries: int, lanes: Sequence[int], values: int, tokens: int) -> bool:
    """Whether tensor cores attend for so many ``queries`` of a key head to tiles of so many
    ``tokens``, whose keys have ``lanes`` and whose values have so many: in one part, or of latents,
    the first of which are the values, in several. Other attention is done statement by
    statement."""
    whole = not any(count % FRAGMENT for count in (*lanes, tokens))
    if len(lanes) > 1:
        return whole and values == lanes[0] <= MOST_LATENT_LANES
    return whole and values == lanes[0] <= MOST_LANES and queries <= MOST_ATTENDED


def group_attention_bytes(
    queries: int, lanes: int, passes: int = 1, together: int = 1
) -> dict[str, int]:
    """Bytes of the parts of a block's memory in which it attends for so many ``queries`` of a key
    head, beside values of tasks, which may have the first: sums of the warps, their statistics, and
    queries as fragments, of so many ``passes`` over tokens whose products are taken
    ``together``."""
    sums, asked = WARPS * min(queries, ATTENDED_QUERIES), query_values(together * queries, lanes)
    return {"JOINED": 4 * sums * lanes, "STATISTICS": 8 * sums, "ASKED": 2 * passes * asked}


def query_values(queries: int, lanes: int) -> int:
    """Values of 16 bits that so many ``queries`` are as fragments of tensor cores, two of each."""
    return -(-queries // ATTENDED_QUERIES) * FRAGMENT * lanes


def multiplied_whole(codes: DType, group: int, span: int, vectors: int, width: int) -> bool:
    """Whether codes of which a ``group`` has a scale, in blocks of ``span``, are multiplied as
    whole numbers by so many ``vectors`` of ``width`` elements in the memory of a block (Digits in
    mc_digits.cuh): where that takes fewer instructions, which of more than two vectors it does for
    long groups alone."""
    fits = codes in (DType.U4, DType.U8) and group % (2 * FRAGMENT) == 0 and width % span == 0
    return fits and vectors <= (DOUBLED_VECTORS if group >= LONG_GROUP else DOUBLED_VECTORS // 2)


def digit_bytes(group: int, vectors: int, width: int) -> int:
    """Bytes of a block's memory for so many ``vectors`` of ``width`` elements as digits, and of
    each ``group`` of them a unit and a sum of each."""
    return width // group * (DIGITS * group * vectors + -(-8 * vectors // 16) * 16)


def side_by_side(vectors: int, groups: int) -> bool:
    """Whether codes of two groups, of blocks of so many, are multiplied as whole numbers at once:
    the digits of both's ``vectors`` have columns beside each other (DigitSums in mc_digits.cuh)."""
    return 2 * DIGITS * vectors <= COLUMNS and (groups == 1 or groups % 2 == 0)


def coded_tile_bytes(device: Device, block: int, count: int, pairs: bool = False) -> int:
    """Bytes that are asked for at once of a matrix that stays quantised, of whose rows a task
    multiplies ``count`` blocks of so many bytes: whole blocks, or ``pairs`` of them, about as many
    as a tile of numbers has, and in all tiles but the last one as many."""
    whole, usual = count * block, tile_bytes(device)
    tiles = max((2 * whole + usual) // (2 * usual), -(-4 * whole // (5 * usual)))
    unit = 2 if pairs else 1
    return -(-count // (unit * tiles)) * unit * block


def coded_tile_blocks(device: Device, rows: int, vectors: int) -> int:
    """Blocks of codes of several row groups, of ``rows`` bytes each, that are asked for at once
    with so many bytes of ``vectors`` beside each: what fills a tile of numbers."""
    return -(-tile_bytes(device) // (MOST_TOGETHER * rows + vectors))


def streamed_tile_bytes(device: Device, rows: int, vectors: int, coded: bool) -> int:
    """Bytes of a tile that has place for blocks of as many row groups as are multiplied at once, of
    ``rows`` bytes each, and for ``vectors`` bytes beside those of each block."""
    together = coded_tile_blocks(device, rows, vectors) if coded else STREAMED_BLOCKS
    return together * (MOST_TOGETHER * rows + vectors)


def streamed_copy_bytes(device: Device, rows: int, vectors: int, groups: int, coded: bool) -> int:
    """Bytes of a copy of one row group, where as many blocks of ``groups`` of them, of ``rows``
    bytes each, are asked for at once as a tile has place for with ``vectors`` bytes beside."""
    place = streamed_tile_bytes(device, rows, vectors, coded)
    return place // (groups * rows + vectors) * rows


def tile_bytes(device: Device) -> int:
    """Whole blocks of a matrix. Raises ``device-number`` for others."""
    if "tile_bytes" not in device.numbers:
        return USUAL_BYTES
    given = device.whole("tile_bytes")
    if given % FRAGMENT_BYTES:
        fail(
            "device-number",
            f"tile_bytes of device '{device.name}' is {given}, no multiple of {FRAGMENT_BYTES}",
        )
    return given


def columns_are_copied(device: Device, vectors: int, width: int) -> bool:
    """Whether a block copies so many ``vectors`` that lie in memory, rounded, of ``width`` elements
    before it multiplies rows by them: they are one value each, a ring of a tile more than are on
    their way has room beside them, and as much as two tiles for what else a block has."""
    size = 2 * vectors * -(-width // FRAGMENT) * FRAGMENT
    tile = tile_bytes(device)
    beside = (-(-device.bytes_in_flight // tile) + 3) * tile
    copied = DOUBLED_VECTORS < vectors <= MOST_VECTORS
    return copied and size + beside <= block_memory(device)
