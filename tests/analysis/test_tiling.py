"""How heads, rows and chunks are dealt to the mesh: covers everything, for every shape."""

from __future__ import annotations

from math import lcm

from hypothesis import given
from hypothesis import strategies as st

from meshc.analysis.layout.tiling import choose_tiling, make_tiling
from meshc.ir.rows import Attention

HEADS = Attention("H", "G", "D", "S")

mesh_sides = st.integers(1, 40)


@given(mesh_sides, mesh_sides, st.integers(1, 5), st.integers(1, 6), st.integers(1, 20))
def test_every_lane_of_every_head_has_a_core(
    rows: int, columns: int, group: int, keys: int, pairs: int
) -> None:
    extents = {"H": group * keys, "G": keys, "D": 2 * pairs}
    tiling = choose_tiling(extents, HEADS, rows, columns, 100)
    assert columns % tiling.segments == 0
    assert tiling.key_block * tiling.segments >= keys
    assert tiling.query_block == group * tiling.key_block
    assert tiling.lane_block * tiling.segment >= 2 * pairs
    assert tiling.lane_block % 2 == 0, "pairs that rope turns stay on one core"


@given(mesh_sides, mesh_sides, st.integers(1, 6), st.integers(1, 12))
def test_no_other_number_of_segments_leaves_fewer_lanes(
    rows: int, columns: int, keys: int, pairs: int
) -> None:
    extents = {"H": 3 * keys, "G": keys, "D": 2 * pairs}
    best = choose_tiling(extents, HEADS, rows, columns, 50)
    for segments in (s for s in range(1, keys + 1) if columns % s == 0):
        other = make_tiling(extents, HEADS, rows, columns, 50, segments)
        lanes = other.key_block * other.lane_block
        assert best.key_block * best.lane_block <= lanes


def test_ties_of_long_segments_go_to_few_key_heads() -> None:
    extents = {"H": 32, "G": 8, "D": 128}
    for columns, segments in ((480, 8), (240, 8), (128, 8), (72, 8), (64, 8), (32, 8)):
        assert choose_tiling(extents, HEADS, 4, columns, 100).segments == segments


def test_short_segments_with_fewer_key_heads_are_taken_in_place_of_long_ones() -> None:
    """Segments of 75 columns with 5 key heads on a core have as many lanes as those of 15 with one,
    as do those of 36 and 27 columns with 3 and 2."""
    extents = {"H": 40, "G": 40, "D": 128}
    for columns, segments in ((480, 40), (540, 20), (600, 40), (720, 40)):
        assert choose_tiling(extents, HEADS, 4, columns, 100).segments == segments


def test_ties_go_to_few_segments_or_to_whole_heads() -> None:
    extents = {"H": 32, "G": 8, "D": 128}
    assert choose_tiling(extents, HEADS, 1, 8, 100).segments == 1
    assert choose_tiling(extents, HEADS, 1, 8, 100, whole_heads=True).segments == 8
    assert choose_tiling(extents, HEADS, 1, 6, 100, whole_heads=True).segments == 2


@given(mesh_sides, st.integers(1, 8), st.integers(1, 6), st.integers(1, 6))
def test_queries_lie_where_their_keys_are(columns: int, group: int, keys: int, pairs: int) -> None:
    """Of whole heads, too, every one has a core, and a core with a query has its key."""
    extents = {"H": group * keys, "G": keys, "D": 2 * pairs}
    tiling = choose_tiling(extents, HEADS, 1, columns, 100, whole_heads=True)
    assert columns % tiling.segments == 0 == tiling.segments % tiling.copies
    found = set()
    for segment in range(tiling.segments):
        first = segment // tiling.copies * tiling.key_block
        own = range(segment * tiling.query_block, (segment + 1) * tiling.query_block)
        found |= {*own}
        assert all(first <= q // group < first + tiling.key_block for q in own if q < group * keys)
    assert found >= {*range(group * keys)}
    assert tiling.lane_block * tiling.segment >= 2 * pairs


def test_key_heads_lie_on_several_cores_where_there_are_fewer() -> None:
    wanted = {(8, 32, 16): 2, (2, 8, 8): 4, (1, 8, 8): 8, (1, 32, 8): 8, (8, 32, 8): 1}
    for (keys, queries, columns), copies in wanted.items():
        extents = {"H": queries, "G": keys, "D": 64}
        tiling = choose_tiling(extents, HEADS, 1, columns, 100, whole_heads=True)
        assert (tiling.copies, tiling.segment) == (copies, 1)
        assert choose_tiling(extents, HEADS, 1, columns, 100).copies == 1


@given(mesh_sides, mesh_sides, st.integers(1, 500))
def test_rows_and_chunks_cover_the_cache(rows: int, columns: int, capacity: int) -> None:
    tiling = make_tiling({"H": 2, "G": 1, "D": 4}, HEADS, rows, columns, capacity, 1)
    assert tiling.chunks == lcm(rows, columns)
    assert tiling.chunks_y * rows == tiling.chunks_x * columns == tiling.chunks
    assert tiling.row_lanes * rows >= capacity
    assert tiling.row_lanes % tiling.chunks_y == 0


def test_a_module_without_attention_has_no_heads() -> None:
    tiling = choose_tiling({"E": 8}, None, 3, 4, 10)
    assert (tiling.heads, tiling.segments, tiling.row_lanes) == (None, 1, 4)


def test_many_more_query_heads_than_columns_are_not_counted_one_by_one():
    extents = {**dict.fromkeys((HEADS.query, HEADS.key, HEADS.lane), 2), HEADS.query: 141 * 10**9}
    assert choose_tiling(extents, HEADS, 1, 16, 8, whole_heads=True).segments == 16
