"""Specs of passes for a mesh."""

from collections.abc import Mapping
from dataclasses import replace

from meshc.passes.mesh.partition import Partition
from meshc.passes.registry import own_pipeline


def laid_out(passes: Mapping[str, str] | None, mesh: str) -> dict[str, str]:
    """``passes``, specs by name, with a partition that lays the model over ``mesh``."""
    found = dict(passes or {})
    (step,) = own_pipeline(found.get("partition", "partition"))
    assert isinstance(step, Partition)
    return found | {"partition": str(replace(step, grid=mesh))}
