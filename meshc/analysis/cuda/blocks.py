"""What a thread block of an emitted kernel takes of its core, and how many clusters run at once.

The plan of shared memory is that of the kernels: a ring of tiles through which weights, keys and
values stream, the normed inputs, the projections and the attention sums, all sums in f32. Blocks
that share a core (``resident`` of them) get equal parts of its memory, which shortens their rings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from meshc.analysis.cuda.dsmem import VALUE_BYTES, Attention, LatentAttention
from meshc.devices import Clusters, Device

WARPS = 8
"""Warps of a block that compute."""
THREADS = 32 * WARPS + 32
"""Threads of a block: eight warps compute, and a ninth starts the copies that they wait for."""
TILE_BYTES = 32_768
LATENT_TILE_BYTES = (36_864, 18_432)
"""Bytes of a tile of cached latents: 32 or 16 tokens of DeepSeek-V2."""
MOST_TILE_TOKENS = 64
"""The most tokens in a tile of cached latents, as the scores of a tile are kept."""
MOST_STAGES, LEAST_STAGES = 6, 2
"""Tiles in a ring of tiles. At the least one is on its way while another is read."""
MOST_GROUP = 64
"""The most query heads that may share a key head."""
MOST_LANE_GROUP = 8
"""Query heads of a key head whose sums stay in the registers of threads that share its lanes; more
are attended by tiles on tensor cores (:func:`by_tiles`)."""
SHARED_LINE_BYTES = 128
"""Bytes of shared memory that a core reads in a cycle: a word of each of 32 banks."""
LEAST_TILE_GROUP = 4
"""Query heads over one latent that are attended by tiles on tensor cores: fewer take no longer from
shared memory than their tokens from global memory."""
FRAGMENT, FRAGMENT_BYTES = 16, 512
"""Rows and values of a row in a block of a matrix for tensor cores, and its bytes."""
ATTENTION_TILES, GOOD_STAGES = (32_768, 16_384, 8_192), 3
"""Bytes of a tile of an attention block; tiles that its ring has unless even the smallest are too
large for that."""
OVERLAPPING = 2
"""Blocks that a core has room for where a grid starts before the one in front has ended."""
PRODUCT_CLUSTERS, ROUND = (1, 2, 4, 8), 8
"""Blocks that may share the width of a product, and row groups whose sums they add at once."""
SCHEDULERS = 4
"""Schedulers of a core (multiprocessor); each of its warps belongs to one of them."""
MOST_REGISTERS = 168
"""Registers of a thread at which blocks of ``THREADS`` threads still launch."""

_BARRIER_BYTES = 16 * MOST_STAGES + 32
_ALIGNMENT = 128
SUMS_COST = 1.17  # by which sums between two blocks lengthen a product (docs/performance.md)


@dataclass(frozen=True)
class Part:
    """Shared memory called ``name``; later the parts of ``then`` lie there."""

    name: str
    own_bytes: int
    then: tuple[Part, ...] = ()

    @property
    def bytes(self) -> int:
        """The larger of this part's own bytes and those of the parts that lie there later."""
        return max(self.own_bytes, sum(_aligned(part.bytes) for part in self.then))


@dataclass(frozen=True)
class SharedMemory:
    """Shared memory of a block: a ring of ``stages`` tiles, then ``parts``, within ``limit`` bytes.

    ``stages`` is how many tiles fit; with fewer than ``LEAST_STAGES`` the kernel cannot run.
    """

    parts: tuple[Part, ...]
    tile_bytes: int
    stages: int
    limit: int

    @property
    def fixed_bytes(self) -> int:
        """Bytes beside the ring."""
        return sum(_aligned(part.bytes) for part in self.parts)

    @property
    def bytes(self) -> int:
        """All bytes, with the shortest ring at the least."""
        return self.fixed_bytes + max(self.stages, LEAST_STAGES) * self.tile_bytes

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of the ring that may be on their way while one of its tiles is read."""
        return (self.stages - 1) * self.tile_bytes

    @property
    def fits(self) -> bool:
        """Whether there is room for a ring."""
        return self.stages >= LEAST_STAGES


def block_memory(device: Device, resident: int = 1) -> int:
    """Bytes of shared memory a block may have where ``resident`` blocks share a core."""
    clusters = _clusters(device)
    own = clusters.core_memory_bytes // resident - clusters.block_reserved_bytes
    return min(own, device.data_bytes or own)


def memory_limits(device: Device, resident: int = 1) -> tuple[int, ...]:
    """Bytes of shared memory that a block may have where ``resident`` blocks of its grid share a
    core: first what leaves room beside it for one of the next grid, which then fills its ring
    before this grid has ended, then all there is. Plans take the first that costs no bandwidth."""
    shares = dict.fromkeys((max(resident, OVERLAPPING), resident))
    return tuple(block_memory(device, share) for share in shares)


def shared_memory(
    device: Device,
    shape: Attention,
    cluster: int,
    dataflow: str = "split_token",
    context: int = 0,
    resident: int = 1,
) -> SharedMemory:
    """The plan of an attention block in clusters of ``cluster`` blocks, ``resident`` of which share
    a core of ``device``, within the first of :func:`memory_limits` whose ring keeps memory busy, or
    else within the last.

    The inputs' memory is used again once queries, keys and values are computed. ``split_head``
    keeps the scores of all ``context`` tokens that a query sees and an output vector. Tiles are
    the largest of which there are ``GOOD_STAGES``.
    """
    limits = memory_limits(device, resident)
    plans = (_attention_memory(shape, cluster, dataflow, context, limit) for limit in limits)
    return _first_busy(device, plans)


def _attention_memory(
    shape: Attention, cluster: int, dataflow: str, context: int, limit: int
) -> SharedMemory:
    tiles = [t for t in ATTENTION_TILES if t >= 4 * FRAGMENT * shape.head]
    plans = []
    for tile in tiles:
        if dataflow == "split_head":
            rows = _values("PROJECTED", shape.batch * shape.rows // cluster)
            then = _split_head(shape, cluster, context)
        else:
            # Peers push rows here, and read them.
            rows = _values("ALL", shape.batch * shape.rows)
            then = _split_token(shape, cluster, tile)
        inputs = 2 * fragment_columns(shape.batch) * _up(shape.hidden, FRAGMENT)
        parts = [
            Part("BARRIERS", _BARRIER_BYTES),
            _values("PARTS", 2 * WARPS * shape.batch * FRAGMENT),
            rows,
            Part("COLUMNS", inputs, tuple(then)),
        ]
        plans.append(_with_ring(parts, tile, limit))
    good = [plan for plan in plans if plan.stages >= GOOD_STAGES]
    return good[0] if good else max(plans, key=lambda p: (p.fits, p.stages * p.tile_bytes))


def fragment_tile(blocks: int, tile_bytes: int) -> int:
    """Blocks of a row group of ``blocks`` in a tile, about as many in each."""
    tiles = -(-blocks * FRAGMENT_BYTES // tile_bytes)
    return -(-blocks // tiles)


def by_tiles(shape: Attention, dataflow: str) -> bool:
    """Whether the warps of a block attend together (library/mc_attention.cuh)."""
    return dataflow == "split_token" and shape.group > MOST_LANE_GROUP


def tile_tokens(head: int, tile_bytes: int) -> int:
    """Tokens in a tile of keys and values: a power of two."""
    return 1 << (tile_bytes // (4 * head)).bit_length() - 1


def tile_query_bytes(queries: int, key_lanes: int, *, twice: bool) -> int:
    """Queries as attention by tiles has them, ``twice`` where each is two values."""
    return 2 * _tile_rows(queries, twice) * _up(key_lanes, 32)


def tile_work_bytes(queries: int, key_lanes: int, tokens: int, *, twice: bool = False) -> int:
    """What attention by tiles of ``tokens`` keeps besides queries: scores, of several parts of the
    lanes where there are fewer units of eight tokens than warps, weights, ``twice`` where each is
    two values, and factors."""
    rows = _tile_rows(queries, twice)
    padded = rows // 2 if twice else rows
    units = tokens // (16 if tokens % (16 * WARPS) == 0 else 8)
    parts = min(max(WARPS // units, 1), _up(key_lanes, 32) // 32)
    return padded * VALUE_BYTES * (parts * (tokens + 8) + 1) + 2 * rows * tokens


def _tile_rows(queries: int, twice: bool) -> int:
    return 2 * _up(queries, 8) if twice else _up(queries, 16)


def _joining(shape: Attention, tile_bytes: int) -> list[Part]:
    """What a block needs to have its tokens' sums in one place."""
    if not by_tiles(shape, "split_token"):
        return [
            _values("JOINED", WARPS * shape.attended),
            _values("STATISTICS", 2 * WARPS * shape.group),
            Part("ASKED", 2 * FRAGMENT * shape.head),
        ]
    tokens = tile_tokens(shape.head, tile_bytes)
    return [
        Part("ASKED", 2 * _up(shape.group, 16) * shape.head),
        Part("WORK", tile_work_bytes(shape.group, shape.head, tokens)),
        Part("FRESH", 4 * shape.head),
    ]


def _split_token(shape: Attention, cluster: int, tile_bytes: int) -> list[Part]:
    batch, group = shape.batch, shape.group
    sums, outputs = batch * (shape.attended + group), _out_columns(batch, shape.attended)
    return [
        _values("PROJECTED", batch * shape.rows, (outputs,)),
        *_joining(shape, tile_bytes),
        _values("HIGHEST", batch * group),
        _values("SHARES", batch * group * cluster),
        _values("ATTENDED_AT", sums),
    ]


def _split_head(shape: Attention, cluster: int, context: int) -> list[Part]:
    batch, own = shape.batch, shape.attended // cluster
    scores = batch * shape.group * context
    outputs = (
        _out_columns(batch, own),
        _values("OUTPUTS", batch * shape.hidden),
        _values("OWN_COLUMNS", shape.hidden // cluster),
    )
    return [
        _values("OWN_SCORES", scores),
        _values("SCORES", scores, outputs),
        _values("WEIGHTS", batch * shape.group),
        _values("JOINED", WARPS * own),
        _values("ATTENDED_AT", batch * own),
    ]


def _out_columns(batch: int, attended: int) -> Part:
    return Part("OUT_COLUMNS", 2 * fragment_columns(batch) * attended)


def latent_memory(device: Device, shape: LatentAttention, cluster: int) -> SharedMemory:
    """The plan of latent attention in clusters of ``cluster`` blocks on ``device``, within the
    first of :func:`memory_limits` whose ring keeps memory busy, or else within the last, with tiles
    of that size of ``LATENT_TILE_BYTES`` of which more bytes are on their way.

    What follows the projections has the memory of their columns; the values' columns have that of
    the queries. Sums over latents that peers read are kept twice where there are several rounds.
    """
    limits = memory_limits(device)
    return _first_busy(device, (_latent_memory(shape, cluster, limit) for limit in limits))


def _latent_memory(shape: LatentAttention, cluster: int, limit: int) -> SharedMemory:
    plans = []
    least = 2 * shape.key * (FRAGMENT if latent_by_tiles(shape) else 1)
    for tile in LATENT_TILE_BYTES:
        tile = _up(max(tile, least), 1024)
        plans.append(
            _with_ring(_latent_parts(shape, cluster, latent_tile_tokens(shape, tile)), tile, limit)
        )
    return max(plans, key=lambda plan: (plan.stages - 1) * plan.tile_bytes)


def _latent_parts(shape: LatentAttention, cluster: int, tokens: int) -> list[Part]:
    batch, group = shape.batch, shape.group
    heads, sharers = shape.own_heads(cluster), cluster // group or 1
    joined = shape.round * group
    buffers = 2 if len(shape.rounds) > 1 else 1

    def own(rows: int, blocks: int) -> int:
        return batch * FRAGMENT * -(-rows // blocks)

    def columns(width: int) -> int:
        return 2 * _up(width, FRAGMENT) * fragment_columns(batch)

    values = Part("VALUES", columns(shape.attended))
    later = (
        Part("PLAIN", heads * columns(shape.query)),
        _values("OWN_ABSORBED_AT", heads * own(_groups(shape.latent), sharers)),
        Part("ASKED", _latent_queries(shape), (values,)),
        Part("FRESH", 2 * batch * shape.key),
        *_latent_scores(shape, tokens),
        _values("ATTENDED_AT", buffers * joined * shape.latent),
        _values("STATISTICS", buffers * joined * 2),
        _values("SHARES", shape.round * heads * cluster),
        Part("TOTAL", heads * columns(shape.latent)),
        _values("OWN_VALUES_AT", heads * own(_groups(shape.value), sharers)),
    )
    first, own_queries = shape.query_rank or shape.query_rows, []
    if shape.query_rank:
        own_queries = [_values("OWN_QUERIES_AT", own(_groups(shape.query_rows), cluster))]
        both = VALUE_BYTES * batch * shape.query_rank + columns(shape.query_rank)
        later = (Part("QUERY_LATENTS", both, later),)
    return [
        Part("BARRIERS", _BARRIER_BYTES),
        _values("PARTS", 2 * WARPS * batch * FRAGMENT),
        _values("OWN", own(_groups(first) + _groups(shape.key), cluster)),
        *own_queries,
        Part("COLUMNS", columns(shape.hidden), later),
    ]


def latent_by_tiles(shape: LatentAttention) -> bool:
    """Whether a block attends on tensor cores (library/mc_attention.cuh); caches are swizzled."""
    return (
        shape.group >= LEAST_TILE_GROUP
        and shape.key % (2 * FRAGMENT) == 0
        and shape.latent % FRAGMENT == 0
    )


def latent_shared_bytes(shape: LatentAttention) -> int:
    """Bytes that attention to a token reads from shared memory, counted in whole lines of 128.

    Threads read the token twice, for scores and for sums. By lanes each head's query is read for
    every token, and each of its weights by every warp; by tiles all queries for every eight tokens.
    """
    token = 2 * (shape.key + shape.latent)
    if latent_by_tiles(shape):
        return token + 2 * _up(shape.group, FRAGMENT) * shape.key // 8
    return token + shape.group * (VALUE_BYTES * shape.key + SHARED_LINE_BYTES * WARPS)


def _latent_queries(shape: LatentAttention) -> int:
    """Bytes of the queries of a round."""
    if latent_by_tiles(shape):
        return 2 * shape.round * _up(shape.group, FRAGMENT) * shape.key
    return VALUE_BYTES * shape.round * shape.group * shape.key


def _latent_scores(shape: LatentAttention, tokens: int) -> list[Part]:
    if latent_by_tiles(shape):
        return [Part("WORK", tile_work_bytes(shape.group, shape.key, tokens))]
    return [_values("FACTORS", shape.group), _values("SCORES", 2 * shape.group * tokens)]


def latent_tile_tokens(shape: LatentAttention, tile_bytes: int) -> int:
    """Tokens in a tile, a power of two."""
    most = min(tile_bytes // (2 * shape.key), MOST_TILE_TOKENS)
    return 1 << most.bit_length() - 1


def _groups(rows: int) -> int:
    return -(-rows // FRAGMENT)


@dataclass(frozen=True)
class ProductPlan:
    """``cluster`` blocks share the width of a product; ``dsmem_bytes`` go between blocks of all
    clusters in one launch: each block reads its share of the sums of its peers."""

    cluster: int
    memory: SharedMemory
    dsmem_bytes: int


def rows_plan(device: Device, width: int, rows: int, batch: int) -> ProductPlan:
    """The plan of a product of ``batch`` vectors of ``width`` values with ``rows`` rows of a matrix
    on ``device``."""
    cluster = product_cluster(device, width, rows, batch)
    return product_plan(device, width, rows, batch, cluster)


def product_plan(device: Device, width: int, rows: int, batch: int, cluster: int) -> ProductPlan:
    """The plan of such a product by clusters of ``cluster`` blocks; see :func:`product_memory`."""
    memory = product_memory(device, width, batch, cluster)
    sums = -(-rows // FRAGMENT) * FRAGMENT * batch
    return ProductPlan(cluster, memory, VALUE_BYTES * sums * (cluster - 1))


def product_cluster(device: Device, width: int, rows: int, batch: int) -> int:
    """Blocks of ``device`` that share the width of such a product.

    Two where rows divide better by what sums between blocks cost, more only where a block has no
    room for the vectors beside a ring that keeps memory busy.
    """
    sizes = [c for c in PRODUCT_CLUSTERS if c in _clusters(device).sizes]
    plans = {c: product_memory(device, width, batch, c) for c in sizes}
    good = [c for c, plan in plans.items() if _keeps_busy(device, plan)]
    if not good:
        return max(plans, key=lambda c: (plans[c].stages * plans[c].tile_bytes, -c))
    groups, cores = -(-rows // FRAGMENT), device.cores
    if good[:2] == [1, 2] and groups >= cores:
        alone, shared = (-(-groups * c // cores) / c for c in (1, 2))
        return 2 if shared * SUMS_COST < alone else 1
    return good[0]


def _first_busy(device: Device, plans: Iterable[SharedMemory]) -> SharedMemory:
    """The first plan whose ring keeps the memory of ``device`` busy, else the last."""
    found, busy = list(plans), device.bytes_in_flight
    return next((plan for plan in found if plan.bytes_in_flight >= busy), found[-1])


def _keeps_busy(device: Device, plan: SharedMemory) -> bool:
    """Whether the ring keeps memory busy, or has all the tiles that a ring may."""
    return plan.bytes_in_flight >= device.bytes_in_flight or plan.stages == MOST_STAGES


def product_memory(device: Device, width: int, batch: int, cluster: int) -> SharedMemory:
    """The plan of a product whose width ``cluster`` blocks share, within the first of
    :func:`memory_limits` that leaves room for a ring which keeps memory busy, or for all tiles that
    a ring has; the largest tiles that do it, down to halves.
    """
    own = -(-_up(width, FRAGMENT) // FRAGMENT // cluster)
    tiles = -(-own * FRAGMENT_BYTES // TILE_BYTES)
    sums = batch * FRAGMENT
    parts = [
        Part("BARRIERS", _BARRIER_BYTES),
        _values("PARTS", 2 * WARPS * sums),
        Part("COLUMNS", 2 * FRAGMENT * own * fragment_columns(batch)),
    ]
    if cluster > 1:
        parts += [
            _values("OWN_SUMS", 2 * ROUND * sums),
            _values("ALL_SUMS", ROUND // cluster * sums),
        ]
    plans = [
        _with_ring(parts, -(-own // count) * FRAGMENT_BYTES, limit)
        for limit in memory_limits(device)
        for count in range(tiles, 2 * tiles + 1)
    ]
    good = [plan for plan in plans if _keeps_busy(device, plan)]
    return good[0] if good else plans[-1 - tiles]


def fragment_columns(batch: int) -> int:
    """Columns of 16-bit values that ``batch`` vectors take on tensor cores: a few vectors take two
    each, their rounded values and what rounding left."""
    return 2 * batch if batch <= 4 else batch


def registers(shape: Attention) -> int:
    """Registers that a thread of an attention block cannot do without; alone on its core it may
    have more.

    A line above what ptxas 13.0 reports: of ``split_token`` 96 without spills where two blocks of
    heads of 64 to 128 lanes share a core, up to 132 with 256 lanes, by tiles 80 to 132; of
    ``split_head`` 82, 80, 105, 126, 167 with 1, 2, 3, 4, 8 query heads per key/value head.
    """
    if shape.group > MOST_LANE_GROUP:
        return 136
    return min(MOST_REGISTERS, max(136 if shape.head > 128 else 96, 40 + 24 * shape.group))


def most_resident(device: Device, shape: Attention) -> int:
    """Blocks whose registers fit in one core: a quarter of them is each scheduler's, which gives
    them to its share of the warps by eights."""
    warps, own = THREADS // 32, _clusters(device).core_registers // SCHEDULERS
    of_warp = 32 * _up(registers(shape), 8)
    return SCHEDULERS * (own // of_warp) // warps


def coresident(device: Device, cluster: int, resident: int = 1) -> int:
    """Clusters that run at once: each lies within one domain (GPC) of the device.

    Blocks of one cluster may share a core. What a chip really takes is for its driver to say
    (cuOccupancyMaxActiveClusters): which multiprocessors are switched off differs between chips.
    """
    return sum(cores * resident // cluster for cores in _clusters(device).domains)


def waves(device: Device, clusters: int, cluster: int, resident: int) -> Sequence[int]:
    """Clusters of each wave until ``clusters`` of them have run; empty if none fits."""
    at_once = coresident(device, cluster, resident)
    if not at_once:
        return ()
    full, rest = divmod(clusters, at_once)
    return [at_once] * full + ([rest] if rest else [])


def _clusters(device: Device) -> Clusters:
    if device.clusters is None:
        raise ValueError(f"device {device.name} has no clusters")
    return device.clusters


def _with_ring(parts: list[Part], tile: int, limit: int) -> SharedMemory:
    alone = SharedMemory(tuple(parts), tile, 0, limit)
    return replace(alone, stages=max(0, min(MOST_STAGES, (limit - alone.fixed_bytes) // tile)))


def _values(name: str, count: int, then: tuple[Part, ...] = ()) -> Part:
    return Part(name, VALUE_BYTES * count, then)


def _aligned(count: int) -> int:
    return _up(count, _ALIGNMENT)


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
