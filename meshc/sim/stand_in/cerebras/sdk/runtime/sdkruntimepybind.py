"""Names that host scripts import for running programs."""

from meshc.sim.host.api import (
    MemcpyDataType,
    MemcpyOrder,
    SdkRuntime,
)

__all__ = ["MemcpyDataType", "MemcpyOrder", "SdkRuntime"]
