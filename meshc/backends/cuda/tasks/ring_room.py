"""Shared memory of a kernel of tasks: a ring of tiles, and what stands beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeGuard

from meshc.analysis.cuda.blocks import FRAGMENT, FRAGMENT_BYTES, WARPS, block_memory
from meshc.analysis.tasks.tiles import tile_bytes
from meshc.backends.cuda.kernels.arena import Arena
from meshc.backends.cuda.tasks.attending import Attention
from meshc.backends.cuda.tasks.chosen_experts import Choosing
from meshc.backends.cuda.tasks.clusters import Clusters
from meshc.backends.cuda.tasks.elements import Elements
from meshc.backends.cuda.tasks.products import Product
from meshc.backends.cuda.tasks.statements import Locals
from meshc.backends.cuda.tasks.storage import Storage
from meshc.backends.cuda.tasks.streamed_products import SUMS_APART, CopiedProduct, StreamedProduct
from meshc.support.diagnostics import Diagnostic, MeshcError

MOST_STAGES = 16
"""Tiles of a ring at the most."""
COPIED_PIECES = 16
"""Pieces in which left sides in memory are copied, at the most (Copied in mc_tasks.cuh)."""
MEETINGS = 4
"""Meetings that have mbarriers of their own, which then take turns (Pace in mc_collectives.cuh)."""

Form = Product | Attention | Elements
"""How a family is written."""


def has_columns(form: Form) -> TypeGuard[Product]:
    """Whether a block has the left side of the products of a family in its memory."""
    return isinstance(form, Product) and not isinstance(form, StreamedProduct)


class QueriesDoNotFit(MeshcError):
    """What attention works in leaves a block no room for tiles, and is more than the left sides of
    products are: these may be divided, it may attend for fewer tokens."""


@dataclass(frozen=True)
class Room:
    """What the ``forms`` of all families take of a block, their ``locals`` and those of what is
    ``attending`` among it; choices of experts; and barriers where tiles are ``paced``."""

    storage: Storage
    clusters: Clusters
    forms: Sequence[Form]
    locals: Locals
    attending: Locals
    choosing: Choosing
    paced: bool = False

    def arena(self) -> tuple[Arena, int, int, int]:
        """Shared memory, bytes of a tile, tiles of the ring and tiles that are on their way; none
        where no family has anything brought."""
        device = self.storage.module.the_device()
        attending = [f.tiles.bytes for f in self.forms if isinstance(f, Attention)]
        multiplied = [f.tile_bytes for f in self.forms if isinstance(f, Product)]
        tile = max([tile_bytes(device), *multiplied, *attending])
        tile = -(-tile // FRAGMENT_BYTES) * FRAGMENT_BYTES
        brings = any(not isinstance(form, Elements) for form in self.forms)
        parts = self._parts(brings)
        room = block_memory(device) - sum(-(-size // 128) * 128 for _, size, _ in parts)
        stages = min(room // tile, MOST_STAGES) if brings else 0
        flying = -(-device.bytes_in_flight // tile) if brings else 0
        if room < 0 or (brings and stages <= flying):
            self._refuse(room, (flying + 1) * tile)
        arena = Arena()
        if brings:
            arena.add("RING", stages * tile)
        made = None
        for name, size, note in parts:
            made = arena.add(name, size, note)
        if made is not None and made.name == "COLUMNS":
            at = made.at
            for name, size, note in self._attending_parts():
                at = arena.add(name, size, note, at).end
        return arena, tile, stages, flying

    def _refuse(self, room: int, tiles: int) -> NoReturn:
        """Fail with ``does-not-fit``: so little ``room`` is left for ``tiles``."""
        of_queries = self._attending_bytes() > self._column_bytes()
        problem = Diagnostic(
            "error",
            "does-not-fit",
            f"{'queries' if of_queries else 'vectors'} of {self.storage.tokens} "
            f"{'token' if self.storage.of_prompt else 'request'}(s) leave {max(room, 0)} bytes of "
            f"shared memory for tiles, fewer than {tiles}",
            help=self.clusters.advice(self.storage),
        )
        raise (QueriesDoNotFit if of_queries else MeshcError)([problem])

    def _column_bytes(self) -> int:
        """Bytes of the left sides of products of a phase, of that in which these are largest."""
        return max((form.column_bytes for form in self.forms if has_columns(form)), default=0)

    def _attending_bytes(self) -> int:
        """Bytes of what attention works in."""
        return sum(-(-size // 128) * 128 for _, size, _ in self._attending_parts())

    def _parts(self, brings: bool) -> list[tuple[str, int, str]]:
        count = self.storage.tokens
        sums = WARPS * max(self.locals.combined, self.attending.combined, 1)
        if any(map(has_columns, self.forms)):
            sums = max(sums, 2 * WARPS * FRAGMENT * count)
        streamed = any(isinstance(form, StreamedProduct) for form in self.forms)
        if streamed:
            sums = max(sums, SUMS_APART * count)
        parts = [("BARRIERS", 16 * MOST_STAGES, "")] if brings else []
        if self.paced:
            parts.append(("PACE", 8 * MEETINGS, "that meetings are over"))
        parts.append(("PARTS", 4 * sums, "sums of the warps"))
        if streamed:
            parts.append(("READY", 8, ""))
        if any(isinstance(form, CopiedProduct) for form in self.forms):
            parts.append(("CAME", 8 * COPIED_PIECES, "that pieces of left sides have come"))
        parts += self.clusters.parts(self.storage)
        parts += self.choosing.parts()
        if self.storage.has_lengths:
            parts.append(("LENGTHS", 4 * count, "tokens that requests have cached"))
        if any(isinstance(form, Attention) and form.neighbours.most > 1 for form in self.forms):
            parts.append(("NEIGHBOURS", 4 * (count + 2), "first rows of neighbouring tokens"))
        if self.locals.most:
            parts.append(("LOCALS", 4 * self.locals.most, "values of tasks"))
        largest = max(self._column_bytes(), self._attending_bytes())
        if largest:
            parts.append(("COLUMNS", largest, "left sides of products"))
        return parts

    def _attending_parts(self) -> list[tuple[str, int, str]]:
        """What attention works in, where the left sides of products are not."""
        found: dict[str, tuple[str, int, str]] = {}
        if self.attending.most:
            size = 4 * self.attending.most
            found["ATTENDING"] = "ATTENDING", size, "values of tasks that attend"
        for form in self.forms:
            for name, size, note in form.parts if isinstance(form, Attention) else ():
                if name not in found or found[name][1] < size:
                    found[name] = name, size, note
        return list(found.values())
