"""Names that host scripts import for running programs."""

from meshc.sim.host.host_classes import (
    MemcpyDataType,
    MemcpyOrder,
    SdkCompileArtifacts,
    SdkRuntime,
    Task,
)
from meshc.sim.host.platforms import (
    FP16TYPE,
    SdkExecutionPlatform,
    SdkTarget,
    SimfabConfig,
    get_platform,
    get_simulator,
    get_system,
)
from meshc.sim.host.sdk_layout import (
    CodeRegion,
    Color,
    Edge,
    EdgeRouting,
    Port,
    Route,
    RoutingPosition,
    SdkLayout,
    get_edge_routing,
)

EdgeRouteInfo, PortHandle = EdgeRouting, Port

__all__ = [
    "FP16TYPE",
    "CodeRegion",
    "Color",
    "Edge",
    "EdgeRouteInfo",
    "MemcpyDataType",
    "MemcpyOrder",
    "PortHandle",
    "Route",
    "RoutingPosition",
    "SdkCompileArtifacts",
    "SdkExecutionPlatform",
    "SdkLayout",
    "SdkRuntime",
    "SdkTarget",
    "SimfabConfig",
    "Task",
    "get_edge_routing",
    "get_platform",
    "get_simulator",
    "get_system",
]
