"""How long a block computes at tiles and tasks, and how its ring is divided, by a device's numbers.

Statements have costs by kernel and form. A product multiplies weights by 8 or 16 columns of 16-bit
values on tensor cores: up to four vectors take two columns each, their rounded values and what
rounding left. Attention is of up to eight query heads at once. Rows of a fragment that a task has
no rows for are wasted, or, with ``packed``, hold further parts of the width, as far as there are
columns for these: an emitter could do that, none does. More columns than 16 take longer by as much
as 16 do than 8, or as long as their vectors take to come from where blocks share them. Attention
that is done statement by statement takes as long as its instructions do, at as many cycles each as
those that decode codes, which is assumed: nobody has measured it.

What is quantised takes as long as a tile of 16-bit weights, but for the instructions: those that it
has more of take ``decoding_cycles`` of a scheduler each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshc.analysis.cuda.blocks import FRAGMENT_BYTES
from meshc.analysis.tasks.tiles import (
    ATTENDED_QUERIES,
    COLUMNS,
    DIGITS,
    LATENT_NEIGHBOUR,
    PIECE_BYTES,
    coded_tile_bytes,
    side_by_side,
)
from meshc.cost.cluster_sizes import link_bytes_per_second
from meshc.cost.tasks.blocks import Memory, Ring, Shared, Tile, Tiles
from meshc.cost.tasks.coded_blocks import Coded
from meshc.cost.tasks.stages import Piece, TaskWork
from meshc.devices import Device
from meshc.devices.keys import points
from meshc.ir.types import DType

NS = 1e-9
BESIDE_RING = 1024
"""Bytes of a block's memory that barriers and the lengths of requests take."""
MOST_TILES = 16
"""Places that a ring has at most."""
SHARPNESS = 6
"""How sharply the rate of memory bends: with 1, 2, 3 and 4 tiles of 16 KiB on their way an H200 was
measured to give 0.594, 0.905, 0.997 and 1 of it; this says 0.598, 0.955, 0.995 and 0.999."""
LOOKED_UP_TOGETHER = 475 / 503
"""What is left of the time from a tile of cached tokens to the next where pages of several tiles
are looked up together: nanoseconds of the persistent step, whose warp did that, and of steps that
look up those of one. Both are what 12288 more tokens took Llama-2-7B (docs/step-times.md)."""

OF_NUMBERS = 6
"""Instructions of a warp for 16 x 16 weights of 16 bits and 8 columns, the loop's among them."""
OF_CODES = {
    (DType.U2, DType.F16): 14,
    (DType.U2, DType.BF16): 16,
    (DType.U3, DType.F16): 26,
    (DType.U3, DType.BF16): 30,
    (DType.U4, DType.F16): 7.5,
    (DType.U4, DType.BF16): 11,
    (DType.U5, DType.F16): 25,
    (DType.U5, DType.BF16): 28,
    (DType.U6, DType.F16): 22,
    (DType.U6, DType.BF16): 27,
    (DType.U8, DType.F16): 9,
    (DType.U8, DType.BF16): 14.75,
    (DType.E4M3, DType.F16): 9.75,
    (DType.E4M3, DType.BF16): 13.75,
    (DType.E2M1, DType.F16): 9.5,
    (DType.E2M1, DType.BF16): 13.75,
}
"""The same for codes of a type that are multiplied as another."""
OF_SCALES, OF_UNITS = 17, 10
OF_LEAST = {DType.F16: 5, DType.BF16: 9}
"""The same for the scales of a group, and where these are codes with a unit; and for its least
numbers besides, which in bf16 codes' offset is taken off of. All are counted in machine code
(docs/step-times.md)."""
OF_WHOLE = {DType.U4: 2.8, DType.U8: 3.3}
OF_WHOLE_GROUP, OF_MORE_DIGITS, OF_PAIRS, OF_UNIT_PAIRS = 23.5, 24, 7, 14.5
"""Instructions of a warp for 16 x 16 codes that are multiplied as whole numbers; for the sums,
scales and least numbers of a group of them, to which those of units come; for more digits of
vectors than columns, by a long group; and what a group has fewer where two are multiplied at once,
which have scales, or codes of these with a unit. Counted as above."""
OF_FLOATS = 10
"""Instructions of a warp by which four floats of eight bits of each of its lanes become pairs of
values, and their scales: 9 counted in machine code, and for heads of 128 lanes one for scales."""
WARP_LANES = 32


@dataclass(frozen=True)
class Links:
    """What joins the GPUs of all ranks: seconds until one knows of what another one did, and bytes
    per second into each."""

    latency: float
    rate: float

    @classmethod
    def of(cls, node: Device) -> Links:
        """Those of a node of GPUs: a hop, and its rate between two of them."""
        hop = node.real("hop_cycles") / node.real("clock_hz")
        return cls(hop, node.real("link_bytes_per_second"))


@dataclass(frozen=True)
class TileTimes:
    """Times on ``device``; see the module for the forms. Without ``links`` what ranks tell and give
    each other takes no longer than on one GPU."""

    device: Device
    packed: bool = False
    links: Links | None = None

    @property
    def rate(self) -> float:
        """Bytes per second from memory at best."""
        return self.device.real("stream_bytes_per_second")

    def memory(self, flying: int, tags: bool = False, kernels: bool = False) -> Memory:
        """What blocks share, with ``flying`` tiles on their way to each: by Little's law these
        bytes in the latency, or the best rate, whichever is less; less than both where the two are
        close. With ``tags`` some of their meetings are by these, with ``kernels`` by the end of
        one."""
        device = self.device
        latency = device.real("stream_latency_ns") * NS
        filled = flying * self.tile * device.cores / (latency * self.rate)
        return Memory(
            rate=self.rate / (1 + filled**-SHARPNESS) ** (1 / SHARPNESS),
            latency=latency,
            signal=device.real("signal_ns") * NS,
            signal_waits=device.real("signal_waits"),
            word=device.real("word_ns") * NS if tags else 0.0,
            word_waits=device.real("word_waits") if tags else 0.0,
            kernel=device.real("kernel_ns") * NS if kernels else 0.0,
            shared=Shared(
                rate=device.real("shared_bytes_per_second") / device.cores,
                latency=device.real("shared_latency_ns") * NS,
                waits=device.real("shared_waits"),
            ),
        )

    @property
    def tile(self) -> int:
        """Bytes of a tile."""
        return self.device.whole("tile_bytes")

    def ring(self, held: int, place: int = 0) -> Ring:
        """The ring that the memory of a block has room for beside ``held`` bytes of columns, with
        ``place`` bytes for each tile, where that is more than usual. It has at least a tile more
        than are on their way, whether there is room or not: see :meth:`fits`."""
        place = max(-(-place // FRAGMENT_BYTES) * FRAGMENT_BYTES, self.tile)
        flying = -(-self.device.bytes_in_flight // place)
        early = -(-self.device.early_bytes_in_flight // place)
        tiles = (self.device.whole("memory_bytes") - held - BESIDE_RING) // place
        most = max(min(tiles, MOST_TILES), flying + 1)
        return Ring(most, flying, early=early if early < flying else 0)

    def place(self, piece: Piece) -> int:
        """Bytes that a tile of ``piece`` has of the ring: of cached tokens those of the longest
        run."""
        if piece.kind == "attention":
            return piece.bytes
        return piece.place or self.size(piece)

    def fits(self, held: int) -> bool:
        """Whether the memory of a block has room for ``held`` bytes of columns and a ring."""
        room = self.device.whole("memory_bytes") - held - BESIDE_RING
        return room // self.tile > self.flying

    @property
    def flying(self) -> int:
        """Tiles that are on their way to a block at once: as many as keep memory busy."""
        return -(-self.device.bytes_in_flight // self.tile)

    def ready(self, read: float, brings: bool) -> float:
        """Seconds until a block has made of the bytes that it read at a meeting what its tasks
        take; ``brings``: whether these bring tiles, which they multiply."""
        return self.first(brings) + self.device.real("prepare_ns") * read / 1024 * NS

    def first(self, brings: bool) -> float:
        """Seconds from what a block has prepared to its first product, if it ``brings`` tiles."""
        return self.device.real("ready_ns") * NS if brings else 0.0

    def choosing(self, candidates: int) -> float:
        """Seconds in which a block makes gates of the scores of so many experts, and all blocks
        find those that are chosen."""
        return _at(self._points("choice_ns"), candidates) * NS if candidates else 0.0

    def copying(self, size: float) -> float:
        """Seconds in which copies bring a block so many bytes out of L2, and all others as many."""
        return size * self.device.cores / self.device.real("l2_bytes_per_second")

    def first_piece(self, copied: int) -> float:
        """Bytes that threads would read in the time in which the first piece of left sides of so
        many bytes is ``copied``."""
        if not copied:
            return 0.0
        rate = self.device.real("shared_bytes_per_second") / self.device.cores
        return self.copying(min(copied, PIECE_BYTES)) * rate

    def copied(self, tiles: Tiles, size: int, asked: bool) -> Tiles:
        """``tiles`` of a task, for whose left side of ``size`` bytes, which is copied piece by
        piece meanwhile, they wait. Unless its first piece is there, it is ``asked`` for behind the
        task in front."""
        apart = self.copying(size / max(len(tiles), 1))
        found = [tile._replace(computing=max(tile.computing, apart)) for tile in tiles]
        if asked and found:
            first = self.device.real("shared_latency_ns") * NS + self.copying(PIECE_BYTES)
            found[0] = found[0]._replace(computing=found[0].computing + first)
        return found

    def told(self, cluster: int, read: float) -> float:
        """Seconds until blocks of a cluster have what they gave each other, ``read`` bytes: a
        collective, and its bytes between blocks at the rate of that cluster size."""
        if cluster < 2:
            return 0.0
        moved = read * (cluster - 1) / cluster
        rate = link_bytes_per_second(self.device, cluster) / self.device.cores
        return _at(self._points("cluster_signal_ns"), cluster) * NS + moved / rate

    def linked(self, size: int) -> float:
        """Seconds over links until each rank has ``size`` bytes of the others."""
        return 0.0 if self.links is None else self.links.latency + size / self.links.rate

    def tiles(self, work: TaskWork) -> Tiles:
        """The tiles of a task. Its last one has what is computed at its end."""
        found: list[Tile] = []
        for piece in work.pieces:
            asking, size = self.asking(piece), self.size(piece)
            computing = self.piece(piece) / size
            more = self.of_copies(piece)
            full, rest = divmod(piece.bytes, size)
            found += [Tile(size * more, asking, computing * size)] * full
            found += [Tile(rest * more, asking, computing * rest)] if rest else []
        if found:
            last = found[-1]
            found[-1] = last._replace(computing=last.computing + self.end(work.pieces[-1]))
        return found

    def of_copies(self, piece: Piece) -> float:
        """How many bytes memory could give in the time that one of ``piece`` takes: more than one
        where tiles come in several copies, each of which takes time of its own."""
        if not piece.copied:
            return 1.0
        copies = max(1 / piece.copied - 1 / self.tile, 0.0)
        return (
            1 + copies * self.device.real("streamed_copy_ns") * NS * self.rate / self.device.cores
        )

    def size(self, piece: Piece) -> int:
        """Bytes of a tile of ``piece``: whole blocks of codes, all rows of a run of tokens, floats
        with their scales."""
        if piece.kind == "attention":
            return max(self.tile, piece.bytes)
        if piece.coded is None:
            return self.tile
        coded = piece.coded
        pairs = coded.whole and coded.groups == 1 and side_by_side(piece.rows, coded.groups)
        count = max(round(piece.bytes / (coded.bytes * piece.filled)), 1)
        return coded_tile_bytes(self.device, coded.bytes, count, pairs)

    def asking(self, piece: Piece) -> float:
        """Seconds until the next tile can be asked for behind one: tokens lie in pages, which are
        looked up, perhaps those of several tiles together."""
        if piece.kind != "attention":
            return 0.0
        whole = self.device.real("attention_asking_ns") * NS
        return whole if piece.looked_up == 1 else whole * LOOKED_UP_TOGETHER

    def piece(self, piece: Piece) -> float:
        """Seconds for a whole tile of what ``piece`` brings."""
        if piece.kind == "product":
            columns = 2 * piece.rows if piece.rows <= 4 else piece.rows
            times = self._points("product_tile_ns")
            parts = max(8 // columns, 1) if self.packed else 1
            whole = _at(times, columns) * NS
            size = self.size(piece)
            if piece.coded is not None:
                whole = self.decoded(piece.coded, size, whole, _at(times, 8) * NS, piece.rows)
            if piece.vectors:
                shared = self.device.real("shared_bytes_per_second") / self.device.cores
                whole = max(whole, size * (1 + piece.vectors) / shared)
            return whole / min(1.0, piece.filled * parts)
        if piece.kind == "attention" and piece.issued:
            return self.size(piece) * piece.issued / self._issued_per_second
        if piece.kind == "attention":
            at_once = 1 if piece.together else piece.tokens
            passes = float(-(-at_once * piece.rows // ATTENDED_QUERIES))
            if piece.together:
                passes *= 1 + LATENT_NEIGHBOUR * (piece.tokens - 1)
            whole = passes * self.device.real("attention_tile_ns") * NS
            if piece.of_floats:
                return self.of_floats(self.size(piece), whole)
            return whole * self.size(piece) / self.tile
        return 0.0

    def of_floats(self, size: int, whole: float) -> float:
        """Seconds for ``size`` bytes of rows of floats of eight bits, where a tile of rows of
        16-bit values takes ``whole``: those of as many values, and what makes these of floats."""
        issued = OF_FLOATS * size / (4 * WARP_LANES)
        return 2 * whole * size / self.tile + issued / self._issued_per_second

    @property
    def _issued_per_second(self) -> float:
        """Instructions of warps, such as those that make numbers of codes, of which a block does so
        many in a second: one waits for what the others have made."""
        at_once = self.device.real("f32_macs_per_cycle") / WARP_LANES
        return at_once * self.device.real("clock_hz") / self.device.real("decoding_cycles")

    def decoded(self, coded: Coded, size: int, whole: float, least: float, vectors: int) -> float:
        """Seconds for a tile of ``size`` bytes of codes by so many ``vectors``, where one of 16-bit
        weights takes ``whole``, and ``least`` by the fewest columns."""
        blocks = size // coded.bytes
        groups = blocks * coded.groups
        fragments = groups * coded.fragments
        if coded.whole:
            of_codes, of_group = OF_WHOLE[coded.codes], OF_WHOLE_GROUP
            of_group += OF_MORE_DIGITS if DIGITS * vectors > COLUMNS else 0
            if side_by_side(vectors, coded.groups):
                of_group -= OF_UNIT_PAIRS if coded.groups > 1 else OF_PAIRS
        else:
            of_codes = OF_CODES[coded.codes, coded.values]
            of_group = OF_SCALES + (OF_LEAST[coded.values] if coded.lifted else 0)
        issued = fragments * of_codes
        issued += groups * (of_group + (OF_UNITS if coded.groups > 1 else 0))
        more = issued - OF_NUMBERS * self.tile // FRAGMENT_BYTES
        columns = (whole - least) * fragments * FRAGMENT_BYTES / self.tile
        return least + columns + max(more, 0) / self._issued_per_second

    def end(self, piece: Piece) -> float:
        """Seconds at the end of a task that brought ``piece`` last."""
        if piece.kind == "product":
            return self.device.real("product_task_ns") * NS
        if piece.kind == "attention":
            return piece.tokens * self.device.real("attention_task_ns") * NS
        return 0.0

    def _points(self, name: str) -> Sequence[tuple[int, float]]:
        return [*dict(points(str(self.device.value(name)))).items()]


def _at(known: Sequence[tuple[int, float]], size: int) -> float:
    """A number at ``size``: linear between known sizes and beyond the last two, constant below the
    first one."""
    if size <= known[0][0] or len(known) == 1:
        return known[0][1]
    above = next((n for n, (x, _) in enumerate(known) if x >= size), len(known) - 1)
    (x, low), (y, high) = known[above - 1], known[above]
    return max(low + (high - low) * (size - x) / (y - x), 0.0)
