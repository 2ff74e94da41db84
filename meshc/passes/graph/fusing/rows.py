"""What patterns of products by rows share: which sizes fit, and what is told of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshc.cost import clusters
from meshc.devices import Device
from meshc.ir.ops import graph
from meshc.passes.graph.fusing.pattern import Choice, DoesNotFit, Match, Pattern


@dataclass(frozen=True)
class Rows:
    """Width and rows of each matrix, how many vectors it is multiplied with, and whether what comes
    out is a part of a sum over ranks."""

    batch: int
    matrices: tuple[tuple[int, int], ...]
    partial: bool = False


class RowsPattern(Pattern[Rows]):
    """A kernel, or some, of products with matrices by rows."""

    def choose(self, device: Device, match: Match[Rows], asked: Mapping[str, Any]) -> Choice:
        sizes = match.sizes
        check_rows(sizes)
        plans = [clusters.rows_plan(device, *matrix, sizes.batch) for matrix in sizes.matrices]
        for plan in plans:
            if not plan.memory.fits:
                raise DoesNotFit(clusters.memory_misfit(plan.memory))
        seconds = clusters.rows_cost(device, sizes.matrices).total
        remark = (
            f"{self.NAME}: clusters of {' and '.join(str(p.cluster) for p in plans)}, "
            f"{sum(p.dsmem_bytes for p in plans)} bytes of DSMEM per step, "
            f"{max(p.memory.bytes for p in plans)} bytes of shared memory, "
            f"predicted {1e6 * seconds:.1f} us"
        )
        return Choice(graph.Fuse(kernel=self.NAME, partial=sizes.partial), remark)


def check_rows(sizes: Rows) -> None:
    """Raises DoesNotFit for too many vectors, and for widths that are not read by eights."""
    if sizes.batch > clusters.MOST_BATCH:
        words = f"a batch of {sizes.batch} vectors is more than {clusters.MOST_BATCH}"
        raise DoesNotFit(words)
    for width, _ in sizes.matrices:
        if width % 8:
            raise DoesNotFit(f"rows of {width} values are no whole number of eights")
