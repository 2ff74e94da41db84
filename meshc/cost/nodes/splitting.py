"""Where a batch is cut in two so that communication hides, and from how many tokens on it pays.

A cut at any place may cost a wave: 300 tiles on 132 multiprocessors take three waves, two halves of
150 take two each. So the boundary is one at which the product with most blocks takes no wave more
in two parts than in one (TokenWeave, Figure 8); of some of those, spread evenly, the one whose
schedule is shortest. Where there is none, or where the schedule is not shorter than that of the
fused kernel alone, the batch stays whole.
"""

from __future__ import annotations

from meshc.cost.nodes.iteration_batches import Batch, prompts, tokens_of
from meshc.cost.nodes.overlap import Schedule, fused_only, overlapped
from meshc.cost.nodes.products import TILES, Product, ProductRates, waves
from meshc.cost.nodes.ranks import Ranks
from meshc.cost.served_models import LayerShape

_FIRST, _LAST = 0.4, 0.7
"""Shares of a batch that the first half may have: the second one's attention sees both."""
_MOST_TRIED = 12
_MOST_THRESHOLD = 1 << 17


def boundaries(
    ranks: Ranks, tokens: int, blocks: int, layer: LayerShape | None = None
) -> list[int]:
    """Multiples of the rows of the smallest tile at which no wave is paid in ``layer``, the last
    one if none is given, from small to large, where collectives have ``blocks`` multiprocessors."""
    whole = ranks.widest(layer or ranks.model.layers[-1], tokens)
    rest = ranks.multiprocessors - blocks
    rows = TILES[-1].rows
    first = max(1, int(_FIRST * tokens) // rows) * rows
    places = range(first, min(int(_LAST * tokens) + 1, tokens), rows)
    return [at for at in places if extra_waves(ranks.rates, whole, at, rest) <= 0]


def boundaries_tried(
    ranks: Ranks, tokens: int, blocks: int, layer: LayerShape | None = None
) -> list[int]:
    """Some twelve of :func:`boundaries`, evenly, and the one nearest to the middle."""
    places = boundaries(ranks, tokens, blocks, layer)
    if not places:
        return []
    step = -(-len(places) // _MOST_TRIED)
    return sorted({*places[::step], min(places, key=lambda at: abs(at - tokens // 2))})


def extra_waves(rates: ProductRates, whole: Product, at: int, multiprocessors: int) -> int:
    """Waves that a product takes more in two parts than in one, of which the first has ``at`` rows;
    by the tile that makes least difference, of those that the whole and its parts are fastest
    with."""
    parts = (whole._replace(rows=at), whole._replace(rows=whole.rows - at))
    tiles = {rates.best_tile(shape, multiprocessors) for shape in (whole, *parts)}
    return min(
        sum(waves(part, tile, multiprocessors) for part in parts)
        - waves(whole, tile, multiprocessors)
        for tile in tiles
    )


def best_schedule(ranks: Ranks, batch: Batch) -> Schedule:
    """The shortest of the fused schedule and of overlapped ones at boundaries without an extra
    wave, with two multiprocessors for collectives up to as many as the device gives them."""
    tokens = tokens_of(batch)
    best = fused_only(ranks, batch)
    for blocks in range(2, ranks.blocks + 1, 2):
        for at in boundaries_tried(ranks, tokens, blocks):
            tried = overlapped(ranks, batch, at, blocks)
            if tried.seconds < best.seconds:
                best = tried
    return best


def equal_split(ranks: Ranks, batch: Batch, blocks: int) -> Schedule:
    """The schedule that cuts a batch in the middle, whatever waves that costs, with ``blocks``
    multiprocessors for collectives."""
    return overlapped(ranks, batch, tokens_of(batch) // 2, blocks)


def threshold_tokens(ranks: Ranks) -> int | None:
    """The fewest tokens of one prompt that are cut, of multiples of 128; None where none are up to
    some 100,000."""
    tokens = 128
    while tokens <= _MOST_THRESHOLD:
        if best_schedule(ranks, prompts([tokens])).split is not None:
            return tokens
        tokens += max(128, tokens // 16 // 128 * 128)
    return None
