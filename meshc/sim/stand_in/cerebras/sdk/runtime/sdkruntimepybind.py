"""Names that host scripts import for running programs."""

from meshc.sim.host.api import MemcpyDataType, MemcpyOrder, SdkCompileArtifacts, SdkRuntime
from meshc.sim.host.sdk_layout import (
    Color,
    Edge,
    Route,
    RoutingPosition,
    SdkExecutionPlatform,
    SdkLayout,
    SdkTarget,
    SimfabConfig,
    get_edge_routing,
    get_platform,
)

__all__ = [
    "Color",
    "Edge",
    "MemcpyDataType",
    "MemcpyOrder",
    "Route",
    "RoutingPosition",
    "SdkCompileArtifacts",
    "SdkExecutionPlatform",
    "SdkLayout",
    "SdkRuntime",
    "SdkTarget",
    "SimfabConfig",
    "get_edge_routing",
    "get_platform",
]
